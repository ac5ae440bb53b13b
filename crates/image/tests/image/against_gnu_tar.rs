//! Compares conversions, mounted by the kernel, with extractions by GNU tar: both trees must be
//! the same in everything that a user could observe.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use micabox_testing::mounts::Mount;
use micabox_testing::run;
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps};

use crate::layer::archive::Archive;
use crate::layer::tree;
use crate::layer::{check_structure, convert, store};

/// Converts and extracts `archive`, and compares the trees.
fn compare(archive: &Path) {
    let store = store();
    let layer = convert(&store, &fs::read(archive).unwrap()).unwrap();
    check_structure(&layer.path);
    let mounted = Mount::erofs(&layer.path, &[]);
    let mut ours = tree::read(mounted.path());

    let extracted = store.directory.path().join("extracted");
    fs::create_dir(&extracted).unwrap();
    // Without the delay, a directory whose entries don't follow it immediately gets the time of
    // its extraction.
    run(Command::new("tar")
        .args([
            "--xattrs",
            "--xattrs-include=*",
            "--acls",
            "--numeric-owner",
        ])
        .args(["--delay-directory-restore", "-xpf"])
        .arg(archive)
        .arg("-C")
        .arg(&extracted));
    let mut theirs = tree::read(&extracted);

    for (path, node) in &mut ours {
        // A directory that the archive doesn't contain has no attributes to compare.
        if node.xattrs.remove("trusted.overlay.implied").is_some() {
            *node = theirs[path].clone();
        }
    }
    // Names first: a missing one explains everything else.
    let names = |tree: &std::collections::BTreeMap<Vec<u8>, tree::Node>| {
        tree.keys()
            .map(|name| name.escape_ascii().to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&ours), names(&theirs), "{}", archive.display());
    for (path, our) in ours {
        let their = theirs.remove(&path).unwrap();
        assert_eq!(
            our,
            their,
            "{} of {}",
            path.escape_ascii(),
            archive.display()
        );
    }
}

/// A tree with every kind of file and attribute in Linux, as far as the filesystem of the
/// temporary directory supports them.
fn tree_of_everything(root: &Path) {
    let write = |path: &str, contents: &[u8]| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, contents).unwrap();
        path
    };
    for name in [
        "+page.svelte",
        "(group)",
        "$x",
        "-x",
        "#x",
        "a b",
        "tab\t",
        "new\nline",
        "\\",
    ] {
        write(&format!("names/{name}"), name.as_bytes());
    }
    for name in [&b"caf\xe9"[..], b"\xff\xfe\xfd", "日本語".as_bytes()] {
        fs::write(root.join("names").join(OsStr::from_bytes(name)), name).unwrap();
    }
    write(
        &format!("{}/{}", "deep/".repeat(40), "n".repeat(255)),
        b"deep",
    );
    for size in [0, 1, 4095, 4096, 4097, 70_000, 3_000_000] {
        let contents: Vec<u8> = (0..size as u64).map(|i| (i * 31 % 251) as u8).collect();
        write(&format!("sizes/{size}"), &contents);
    }
    for i in 0..1500 {
        write(&format!("many/{i}-{}", "x".repeat(i % 60)), b"");
    }
    write("links/target", b"linked");
    for name in ["links/one", "links/two", "another"] {
        fs::hard_link(root.join("links/target"), root.join(name)).unwrap();
    }
    symlink("target", root.join("links/relative")).unwrap();
    symlink("/absolute/".repeat(30), root.join("links/long")).unwrap();
    symlink("../../../..", root.join("links/up")).unwrap();
    symlink(OsStr::from_bytes(b"\xff"), root.join("links/bytes")).unwrap();
    fs::hard_link(root.join("links/up"), root.join("links/up-too")).unwrap();

    let special = |path: &str, kind, device| {
        rustix::fs::mknodat(CWD, root.join(path), kind, Mode::from(0o640), device).unwrap();
    };
    fs::create_dir(root.join("special")).unwrap();
    special(
        "special/null",
        FileType::CharacterDevice,
        rustix::fs::makedev(1, 3),
    );
    special(
        "special/disk",
        FileType::BlockDevice,
        rustix::fs::makedev(259, 70_000),
    );
    special("special/pipe", FileType::Fifo, 0);

    for (path, mode) in [
        ("modes/setuid", 0o4755),
        ("modes/setgid", 0o2755),
        ("modes/none", 0),
        ("modes/all", 0o7777),
    ] {
        let path = write(path, b"");
        std::os::unix::fs::chown(&path, Some(1000), Some(3_000_000_000)).unwrap();
        rustix::fs::chmod(&path, Mode::from(mode)).unwrap();
    }
    fs::create_dir(root.join("modes/sticky")).unwrap();
    rustix::fs::chmod(root.join("modes/sticky"), Mode::from(0o1777)).unwrap();

    for (path, seconds, nanos) in [
        ("times/epoch", 0, 0),
        ("times/before", -1_000_000, 250_000_000),
        ("times/fraction", 1_700_000_000, 123_456_789),
        ("times/late", 5_000_000_000, 1),
    ] {
        set_time(&write(path, b""), seconds, nanos);
    }

    let attribute = |path: &Path, name: &str, value: &[u8]| {
        rustix::fs::lsetxattr(path, name, value, rustix::fs::XattrFlags::empty()).unwrap();
    };
    let capability = b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    let file = write("xattrs/file", b"");
    attribute(&file, "security.capability", capability);
    attribute(&file, "user.binary", b"\0=\n\xff");
    attribute(&file, "user.large", &[b'v'; 2000]);
    attribute(&root.join("xattrs"), "user.of-a-directory", b"1");
    symlink("file", root.join("xattrs/symlink")).unwrap();
    attribute(&root.join("xattrs/symlink"), "trusted.of-a-symlink", b"2");
    attribute(&root.join("special/null"), "trusted.of-a-device", b"3");
    for i in 0..20 {
        attribute(
            &write(&format!("xattrs/shared-{i}"), b""),
            "user.shared",
            b"the same",
        );
    }
    // Numbers without a name on any host, because the archive would contain the name.
    fs::create_dir(root.join("acls")).unwrap();
    let file = write("acls/file", b"");
    run(Command::new("setfacl")
        .args(["-m", "u:54321:rw,g:54322:r,m::rw"])
        .arg(&file));
    run(Command::new("setfacl")
        .args(["-d", "-m", "u:54321:rwx"])
        .arg(root.join("acls")));

    sparse_file(&root.join("sparse"), 40 << 20);
}

fn set_time(path: &Path, seconds: i64, nanos: i64) {
    let time = Timespec {
        tv_sec: seconds,
        tv_nsec: nanos,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// Writes a file with data at a few odd offsets.
fn sparse_file(path: &Path, size: u64) {
    let file = File::create(path).unwrap();
    file.set_len(size).unwrap();
    for at in [0, 70_001, 8 << 20, (8 << 20) + 9000, size - 10] {
        file.write_all_at(b"0123456789", at).unwrap();
    }
}

struct Made {
    directory: tempfile::TempDir,
}

impl Made {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("tree")).unwrap();
        Self { directory }
    }

    fn tree(&self) -> PathBuf {
        self.directory.path().join("tree")
    }

    /// Runs an archiver in the tree; `{}` among its arguments is replaced by the archive's path.
    fn archive(&self, program: &str, arguments: &[&str]) -> PathBuf {
        let archive = self.directory.path().join("archive.tar");
        let arguments = arguments.iter().map(|&argument| match argument {
            "{}" => archive.as_os_str(),
            other => OsStr::new(other),
        });
        run(Command::new(program)
            .args(arguments)
            .current_dir(self.tree()));
        archive
    }
}

#[test]
#[ignore = "needs root"]
fn archives_of_gnu_tar_in_every_format_mean_the_same() {
    let made = Made::new();
    tree_of_everything(&made.tree());
    let everything = [
        "--xattrs",
        "--xattrs-include=*",
        "--acls",
        "--numeric-owner",
    ];
    compare(&made.archive(
        "tar",
        &[&everything[..], &["--posix", "-cf", "{}", "."]].concat(),
    ));
    for version in ["0.0", "0.1", "1.0"] {
        let version = format!("--sparse-version={version}");
        let arguments = ["--posix", "-S", &version, "-cf", "{}", "."];
        compare(&made.archive("tar", &[&everything[..], &arguments].concat()));
    }
    for arguments in [
        &["--format=gnu", "-cf", "{}", "."][..],
        &["--format=gnu", "-S", "-cf", "{}", "."],
        &["--format=oldgnu", "-S", "-cf", "{}", "."],
        // Names without `./`, parents after their entries.
        &[
            "--format=gnu",
            "-cf",
            "{}",
            "sizes/1",
            "links",
            "sizes",
            "modes/none",
        ],
        &["--format=v7", "-cf", "{}", "sizes", "links/relative"],
        &["--format=ustar", "-cf", "{}", "sizes", "names", "many"],
        &[
            "--posix",
            "--hard-dereference",
            "-cf",
            "{}",
            "links",
            "another",
        ],
        &[
            "--posix",
            "--no-recursion",
            "-cf",
            "{}",
            "sizes/4097",
            "names/-x",
        ],
    ] {
        compare(&made.archive("tar", arguments));
    }
}

#[test]
#[ignore = "needs root"]
fn archives_of_bsdtar_in_every_format_mean_the_same() {
    let made = Made::new();
    tree_of_everything(&made.tree());
    // GNU tar by itself reads neither ACLs with numbers in a fourth field nor libarchive's
    // attributes; the archive contains both beside the dialect that GNU tar reads.
    run(Command::new("setfacl")
        .args(["-R", "-b"])
        .arg(made.tree().join("acls")));
    for format in ["pax", "gnutar"] {
        let format = format!("--format={format}");
        compare(&made.archive("bsdtar", &["-c", "--xattrs", &format, "-f", "{}", "."]));
    }
    compare(&made.archive(
        "bsdtar",
        &["-c", "--format=ustar", "-f", "{}", "sizes", "many"],
    ));
}

#[test]
#[ignore = "needs root"]
fn archives_of_python_in_every_format_mean_the_same() {
    let made = Made::new();
    tree_of_everything(&made.tree());
    for format in ["PAX_FORMAT", "GNU_FORMAT"] {
        let program = format!(
            "import sys, tarfile\n\
             with tarfile.open(sys.argv[1], 'w', format=tarfile.{format}) as archive:\n\
             \tarchive.add('.')\n"
        );
        compare(&made.archive("python3", &["-c", &program, "{}"]));
    }
}

#[test]
#[ignore = "needs root"]
fn archives_that_no_archiver_would_make_mean_the_same() {
    let archives = [
        // The last entry wins.
        Archive::new()
            .file("f", "old")
            .hard_link("g", "f")
            .file("f", "new"),
        Archive::new()
            .directory("d")
            .file("d/x", "")
            .header(100, "0000700\0")
            .directory("d"),
        Archive::new()
            .file("f", "")
            .symlink("f", "x")
            .fifo("f")
            .file("f", "file again"),
        Archive::new()
            .directory("empty")
            .file("empty", "now a file"),
        // Parents that come late or never.
        Archive::new()
            .file("a/b/c", "")
            .header(100, "0000711\0")
            .directory("a/"),
        // Through symbolic links of the same archive.
        Archive::new()
            .directory("usr/")
            .directory("usr/lib/")
            .symlink("lib", "usr/lib")
            .symlink("lib64", "lib")
            .file("lib/a", "1")
            .file("lib64/b", "2"),
        // Odd spellings.
        Archive::new()
            .file("./a", "")
            .file("b//c", "")
            .file("./d/./e", "")
            .directory("f////"),
        // Directories from before a type for them existed.
        Archive::new()
            .header(257, "\0\0\0\0\0\0\0\0")
            .member(0, b"v7/", b"", 0o755, b"")
            .file("v7/x", ""),
        // Numbers that octal can't hold.
        Archive::new()
            .header(257, "ustar  \0")
            .header(
                136,
                [
                    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xf0, 0, 0,
                ],
            )
            .file("before-1970", ""),
        Archive::new()
            .pax(&[("mtime", b"-1.75"), ("uid", b"4000000000")])
            .file("pax", ""),
    ];
    let directory = tempfile::tempdir().unwrap();
    for (index, archive) in archives.into_iter().enumerate() {
        let path = directory.path().join(format!("{index}.tar"));
        fs::write(&path, archive.finish()).unwrap();
        compare(&path);
    }
}

#[test]
#[ignore = "needs root"]
fn a_file_of_more_than_8_gib_with_holes_means_the_same() {
    let made = Made::new();
    sparse_file(&made.tree().join("large"), (9 << 30) + 12_345);
    let archive = made.archive("tar", &["--posix", "-S", "-cf", "{}", "."]);
    let store = store();
    let layer = convert(&store, &fs::read(archive).unwrap()).unwrap();
    check_structure(&layer.path);
    let mounted = Mount::erofs(&layer.path, &[]);
    // Hashing 9 GiB would take long; only a small part isn't a hole.
    let (ours, theirs) = (mounted.path().join("large"), made.tree().join("large"));
    assert_eq!(
        fs::metadata(&ours).unwrap().len(),
        fs::metadata(&theirs).unwrap().len()
    );
    let (ours, theirs) = (File::open(ours).unwrap(), File::open(theirs).unwrap());
    for at in [
        0,
        65_536,
        (8 << 20) - 4096,
        (8 << 20) + 4096,
        4 << 30,
        9 << 30,
    ] {
        let (mut our, mut their) = (vec![0; 12_000], vec![0; 12_000]);
        ours.read_exact_at(&mut our, at).unwrap();
        theirs.read_exact_at(&mut their, at).unwrap();
        assert!(our == their, "{at}");
    }
}
