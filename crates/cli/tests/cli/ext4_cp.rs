//! `mica ext4 cp` and related commands on filesystems that are not trusted.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Output};
use std::time::Instant;

use micabox_ext4::{Ext4, Options, Owner, ROOT};
use micabox_testing::{PATIENCE, shell};

const MICA: &str = env!("CARGO_BIN_EXE_mica");

fn mica(words: &[&str]) -> Output {
    let mut command = Command::new(MICA);
    command.arg("ext4").args(words).output().unwrap()
}

#[track_caller]
fn done(words: &[&str]) -> Output {
    let output = mica(words);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "mica ext4 {words:?}: {said}");
    output
}

/// Makes a directory with a filesystem that `fill` fills.
fn image(size: u64, fill: impl FnOnce(&mut Ext4<File>)) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    let path = path.to_str().unwrap().to_owned();
    done(&["mkfs", &path, "--size", &size.to_string()]);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let mut filesystem = Ext4::open(file, Options::default()).unwrap();
    fill(&mut filesystem);
    filesystem.close().unwrap();
    (directory, path)
}

#[test]
fn set_id_bits_are_not_copied_out() {
    let (directory, path) = image(20 << 20, |filesystem| {
        let top = filesystem.mkdir(ROOT, b"top", Owner::root(0o6755)).unwrap();
        filesystem
            .create(top, b"suid", Owner::root(0o4755))
            .unwrap();
        filesystem
            .create(top, b"sgid", Owner::root(0o2755))
            .unwrap();
        filesystem.mkdir(top, b"tmp", Owner::root(0o7777)).unwrap();
    });
    let at = |name: &str| directory.path().join(name);
    let mode = |name: &str| fs::metadata(at(name)).unwrap().permissions().mode() & 0o7777;
    done(&["cp", &format!("{path}:/top"), at("out").to_str().unwrap()]);
    assert_eq!(mode("out"), 0o755);
    assert_eq!(mode("out/suid"), 0o755);
    assert_eq!(mode("out/sgid"), 0o755);
    assert_eq!(mode("out/tmp"), 0o1777);
    done(&[
        "cp",
        &format!("{path}:/top/suid"),
        at("file").to_str().unwrap(),
    ]);
    assert_eq!(mode("file"), 0o755);
}

#[test]
fn links_are_not_followed_and_files_in_the_way_are_replaced() {
    let (directory, path) = image(20 << 20, |filesystem| {
        let top = filesystem.mkdir(ROOT, b"top", Owner::root(0o755)).unwrap();
        let inner = filesystem.mkdir(top, b"inner", Owner::root(0o755)).unwrap();
        let file = filesystem
            .create(inner, b"file", Owner::root(0o644))
            .unwrap();
        filesystem.write(file, 0, b"new").unwrap();
        let file = filesystem
            .create(top, b"plain", Owner::root(0o644))
            .unwrap();
        filesystem.write(file, 0, b"new").unwrap();
    });
    let here = directory.path();
    shell(
        here,
        "mkdir -p out/top elsewhere; echo old > elsewhere/file; echo old > secret;
         ln -s ../../elsewhere out/top/inner; mkdir out2; ln -s ../secret out2/plain",
    );
    let out = |name: &str| here.join(name).to_str().unwrap().to_owned();
    // Nothing is copied into a directory behind a link on the host.
    let refused = mica(&["cp", &format!("{path}:/top"), &out("out")]);
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(fs::read(here.join("elsewhere/file")).unwrap(), b"old\n");
    done(&["cp", &format!("{path}:/top/plain"), &out("out2")]);
    assert_eq!(fs::read(here.join("secret")).unwrap(), b"old\n");
    assert_eq!(fs::read(here.join("out2/plain")).unwrap(), b"new");
    assert!(!here.join("out2/plain").is_symlink());
}

#[test]
fn a_directory_with_several_names_is_copied_once_at_most() {
    const LEVELS: usize = 40;
    let (directory, path) = image(20 << 20, |filesystem| {
        let mut at = ROOT;
        for level in 0..LEVELS {
            let name = format!("{level}");
            at = filesystem
                .mkdir(at, name.as_bytes(), Owner::root(0o755))
                .unwrap();
        }
    });
    // Each directory has the next one twice: 2^40 paths to the last.
    let mut script = String::new();
    let mut parent = String::new();
    for level in 0..LEVELS {
        let name = format!("{parent}/{level}");
        script.push_str(&format!("ln {name} {parent}/again{level}\n"));
        parent = name;
    }
    fs::write(directory.path().join("script"), script).unwrap();
    shell(directory.path(), "debugfs -w -f script image 2>&1");
    let begun = Instant::now();
    let out = directory.path().join("out");
    for from in ["/", "/0"] {
        let refused = mica(&["cp", &format!("{path}:{from}"), out.to_str().unwrap()]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.contains("several names"), "{said}");
    }
    let exported = directory.path().join("tar");
    let refused = mica(&["export", &path, exported.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(begun.elapsed() < PATIENCE);
}

#[test]
fn holes_come_out_as_holes() {
    const SIZE: u64 = 500 << 30;
    let (directory, path) = image(64 << 20, |filesystem| {
        let file = filesystem
            .create(ROOT, b"sparse", Owner::root(0o644))
            .unwrap();
        filesystem.write(file, 300 << 30, b"middle").unwrap();
        filesystem.truncate(file, SIZE).unwrap();
    });
    let out = directory.path().join("out");
    let begun = Instant::now();
    done(&["cp", &format!("{path}:/sparse"), out.to_str().unwrap()]);
    let found = fs::metadata(&out).unwrap();
    assert_eq!(found.len(), SIZE);
    assert!(found.blocks() * 512 < 1 << 20, "{} blocks", found.blocks());
    assert!(begun.elapsed() < PATIENCE);
    let mut middle = [0; 6];
    let file = File::open(&out).unwrap();
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut middle, 300 << 30).unwrap();
    assert_eq!(&middle, b"middle");
}

#[test]
fn files_that_share_their_blocks_end_at_what_the_disk_can_hold() {
    const FILES: usize = 60;
    const SIZE: usize = 4 << 20;
    let (directory, path) = image(20 << 20, |filesystem| {
        let file = filesystem
            .create(ROOT, b"first", Owner::root(0o644))
            .unwrap();
        filesystem.write(file, 0, &vec![b'x'; SIZE]).unwrap();
        for number in 0..FILES {
            let name = format!("other{number:03}");
            filesystem
                .create(ROOT, name.as_bytes(), Owner::root(0o644))
                .unwrap();
        }
    });
    // Copies the words of the first file's extent tree to each of the others.
    let dump = shell(
        directory.path(),
        "debugfs -R 'inode_dump -b /first' image 2>/dev/null",
    );
    let bytes: Vec<u8> = dump
        .lines()
        .flat_map(|line| line.split_whitespace().skip(1).take(8).collect::<Vec<_>>())
        .filter(|word| word.len() == 4)
        .flat_map(|word| {
            let byte = |at: usize| u8::from_str_radix(&word[at..at + 2], 16).unwrap();
            [byte(0), byte(2)]
        })
        .collect();
    assert_eq!(bytes.get(..2), Some(&[0x0a, 0xf3][..]), "{dump}");
    let mut script = String::new();
    for number in 0..FILES {
        let name = format!("/other{number:03}");
        for (word, index) in bytes.chunks_exact(4).take(15).zip(0..) {
            let word = u32::from_le_bytes(word.try_into().unwrap());
            script.push_str(&format!("sif {name} block[{index}] {word:#x}\n"));
        }
        script.push_str(&format!("sif {name} size {SIZE}\n"));
    }
    fs::write(directory.path().join("script"), script).unwrap();
    shell(directory.path(), "debugfs -w -f script image 2>&1");
    let found = done(&["cat", &path, "/other007"]).stdout;
    assert!(found.len() == SIZE && found.iter().all(|byte| *byte == b'x'));
    let out = directory.path().join("out");
    let refused = mica(&["cp", &format!("{path}:/"), out.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("more than the filesystem"), "{said}");
    let got = fs::read_dir(&out).unwrap().count() * SIZE;
    assert!(got < 120 << 20, "{got} bytes came out");
}

#[test]
fn devices_are_left_out_and_named() {
    let (directory, path) = image(20 << 20, |filesystem| {
        use micabox_ext4::FileKind::{CharDevice, Socket};
        let top = filesystem.mkdir(ROOT, b"top", Owner::root(0o755)).unwrap();
        filesystem
            .mknod(top, b"null\x1b[2J", CharDevice, (1, 3), Owner::root(0o666))
            .unwrap();
        filesystem
            .mknod(ROOT, b"socket", Socket, (0, 0), Owner::root(0o666))
            .unwrap();
        filesystem
            .create(top, b"zfile", Owner::root(0o644))
            .unwrap();
    });
    let out = directory.path().join("out");
    for from in ["/top", "/socket"] {
        let refused = mica(&["cp", &format!("{path}:{from}"), out.to_str().unwrap()]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.contains("are not copied out"), "{said}");
        assert!(!said.contains('\x1b'), "{said:?}");
    }
    assert!(out.join("zfile").exists());
    assert!(fs::symlink_metadata(out.join("null\x1b[2J")).is_err());
}

/// Names with `=`, and empty values.
#[test]
fn attributes_that_a_record_cannot_carry_are_in_another_one() {
    let (directory, path) = image(20 << 20, |filesystem| {
        use micabox_ext4::SetXattr::Any;
        let file = filesystem
            .create(ROOT, b"file", Owner::root(0o644))
            .unwrap();
        for (name, value) in [
            (&b"user.a=b"[..], &b"one\0=\n"[..]),
            (b"user.empty", b""),
            (b"user.e=", b""),
            (b"user.plain", b"two"),
        ] {
            filesystem.set_xattr(file, name, value, Any).unwrap();
        }
    });
    let here = directory.path();
    done(&["export", &path, here.join("tar").to_str().unwrap()]);
    // As libarchive reads and writes it.
    shell(here, "bsdtar --format=pax -cf again.tar @tar");
    for archive in ["tar", "again.tar"] {
        let copy = here.join(format!("{archive}.image"));
        let copy = copy.to_str().unwrap();
        done(&["mkfs", copy, "--size", "20M"]);
        done(&["import", copy, here.join(archive).to_str().unwrap()]);
        let shown = done(&["stat", copy, "/file", "--json"]).stdout;
        let shown: serde_json::Value = serde_json::from_slice(&shown).unwrap();
        for (name, value) in [
            ("user.a=b", "one\\x00=\\n"),
            ("user.empty", ""),
            ("user.e=", ""),
            ("user.plain", "two"),
        ] {
            assert_eq!(shown["xattrs"][name], value, "{archive}: {shown}");
        }
    }
    // GNU tar supports half of them, and takes the rest for optional records.
    let said = shell(
        here,
        "tar --xattrs --xattrs-include='*' -tvvf tar 2>/dev/null",
    );
    assert!(
        said.contains("user.plain") && said.contains("user.empty"),
        "{said}"
    );
}
