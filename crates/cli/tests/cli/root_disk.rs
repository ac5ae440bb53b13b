//! Disk images as roots: ext4 and EROFS filesystems made by other programs, without an OCI image.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Home, image, wait_until_closed};

const KILL: i32 = 9;

/// Unpacks the bottom layer of the tests' image on the host.
fn tree(home: &Home) -> PathBuf {
    let directory = home.path().join("tree");
    fs::create_dir(&directory).unwrap();
    let archive = home.path().join("tree.tar");
    fs::write(&archive, &image::layers()[0]).unwrap();
    succeed(
        Command::new("tar")
            .args(["-xpf", archive.to_str().unwrap(), "-C"])
            .arg(&directory),
    );
    directory
}

/// Makes an ext4 filesystem of `size` bytes with mke2fs and `options`.
fn ext4(home: &Home, tree: &Path, options: &[&str], size: u64) -> PathBuf {
    made(home, tree, &[&["-t", "ext4"], options].concat(), size)
}

fn made(home: &Home, tree: &Path, options: &[&str], size: u64) -> PathBuf {
    let file = home.path().join("root.ext4");
    let _ = fs::remove_file(&file);
    File::create(&file).unwrap().set_len(size).unwrap();
    let owner = ["-E", "root_owner=0:0"];
    succeed(
        Command::new("mke2fs")
            .args(["-q", "-F"])
            .args(owner)
            .args(options)
            .arg("-d")
            .args([tree, &file]),
    );
    file
}

/// Makes an EROFS filesystem with mkfs.erofs, without padding.
fn erofs(home: &Home, tree: &Path) -> PathBuf {
    let file = home.path().join("root.erofs");
    succeed(
        Command::new("mkfs.erofs")
            .args(["--quiet", "--all-root"])
            .args([&file, tree]),
    );
    file
}

#[track_caller]
fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns all that would reveal a write to a file.
fn state(path: &Path) -> (String, i64, i64) {
    let metadata = fs::metadata(path).unwrap();
    let sum = succeed(Command::new("sha256sum").arg(path));
    (sum, metadata.mtime(), metadata.mtime_nsec())
}

/// Appends `end` to the path of a file.
fn with(path: &Path, end: &str) -> String {
    format!("{}{end}", path.display())
}

#[test]
#[ignore = "needs a built guest"]
fn a_filesystem_in_a_file_is_a_root() {
    const LOOK: &str = "head -1 /etc/passwd; stat -c '%a %u' /root /tmp; ls /bin | wc -l; \
        md5sum < /bin/busybox; echo x > /new; rm /etc/group; ls -d /new /etc/group 2>&1; pwd; \
        echo $A; id -un; grep -c ' / overlay' /proc/mounts";
    let home = Home::empty();
    let tree = tree(&home);
    let applets = fs::read_dir(tree.join("bin")).unwrap().count();
    let busybox = succeed(Command::new("sh").args(["-c", "md5sum < /bin/busybox"]));
    let expected = format!(
        "root:x:0:0:root:/root:/bin/sh\n700 0\n1777 0\n{applets}\n{busybox}\
         ls: /etc/group: No such file or directory\n/new\n/srv\nyes\nroot\n1\n"
    );
    let mapped = ext4(&home, &tree, &["-b", "4096"], 32 << 20);
    let copies: Vec<(PathBuf, &str)> = vec![
        (mapped.clone(), "pmem"),
        (mapped, "blk"),
        (erofs(&home, &tree), "blk"),
    ];
    let run = |file: &Path, transport: &str| {
        let before = state(file);
        let file_name = file.to_str().unwrap();
        let arguments = ["--rm", "--root-disk", file_name, "--transport", transport];
        let more = ["-e", "A=yes", "-w", "/srv", "-u", "0", "sh", "-c", LOOK];
        let text = home
            .output(&[&["run"], &arguments[..], &more].concat())
            .ok();
        assert_eq!(text, expected, "{file:?} over {transport}");
        assert_eq!(state(file), before);
    };
    for (file, transport) in &copies {
        run(file, transport);
    }
    // A disk's size is a multiple of sectors, not of blocks; and a padded file can be mapped.
    let erofs = home.path().join("root.erofs");
    let length = fs::metadata(&erofs).unwrap().len();
    File::options()
        .write(true)
        .open(&erofs)
        .unwrap()
        .set_len(length + 512)
        .unwrap();
    run(&erofs, "blk");
    let padded = length.next_multiple_of(2 << 20);
    File::options()
        .write(true)
        .open(&erofs)
        .unwrap()
        .set_len(padded)
        .unwrap();
    run(&erofs, "pmem");
    // A file that can't be mapped is attached as a disk, unless pmem is requested.
    let small_blocks = ext4(&home, &tree, &["-b", "1024"], 32 << 20);
    run(&small_blocks, "auto");
    let file = small_blocks.to_str().unwrap();
    let refused = home.output(&["run", "--rm", "--transport", "pmem", "--root-disk", file]);
    assert_eq!(refused.code(), 125);
    assert!(
        refused.stderr().contains("4096 bytes; use the blk"),
        "{}",
        refused.stderr()
    );
    // An old one, without a journal; and a shell, the default command.
    let old = made(&home, &tree, &["-t", "ext2"], 32 << 20);
    let shell = home.output(&["run", "--rm", "--root-disk", old.to_str().unwrap()]);
    assert_eq!((shell.code(), shell.stderr()), (0, String::new()));
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn changes_to_a_root_disk_are_kept_apart_from_it() {
    let home = Home::empty();
    let tree = tree(&home);
    let host_file = home.path().join("host");
    fs::write(&host_file, "from the host\n").unwrap();
    let patch = with(&host_file, ":/etc/patched");
    for file in [ext4(&home, &tree, &[], 32 << 20), erofs(&home, &tree)] {
        let before = state(&file);
        let file = file.to_str().unwrap();
        let script = "cat /etc/patched; ls /etc; [ -e /n ] && exit 3; echo x > /n; rm -r /home";
        let text = home.output(&[
            "run",
            "--name",
            "it",
            "--root-disk",
            file,
            "--upper",
            "disk:64m",
            "--patch",
            &patch,
            "--remove=/etc/passwd",
            "--mkdir",
            "/made/here",
            "sh",
            "-c",
            script,
        ]);
        let etc = "group\nhostname\nhosts\nmachine-id\npatched\nresolv.conf\n";
        assert_eq!(text.ok(), format!("from the host\n{etc}"));
        let changes =
            "C /etc\nD /etc/passwd\nA /etc/patched\nD /home\nA /made\nA /made/here\nA /n\n";
        assert_eq!(home.output(&["diff", "it"]).ok(), changes);

        // Copies into it and out of it: changed files, and files of the root disk.
        home.output(&["cp", host_file.to_str().unwrap(), "it:/etc/patched"])
            .ok();
        let out = home.path().join("out");
        home.output(&["cp", "it:/bin/busybox", out.to_str().unwrap()])
            .ok();
        assert_eq!(fs::read(&out).unwrap(), fs::read("/bin/busybox").unwrap());

        // Another sandbox from a copy of its disk, and the same one again.
        home.output(&["snapshot", "create", "it", "shot"]).ok();
        let copy = home.output(&["run", "--rm", "--from", "shot", "ls", "/", "/made"]);
        assert_eq!(copy.ok().matches("made").count(), 2);
        assert_eq!(home.output(&["start", "-a", "it"]).code(), 3);
        let list = home.output(&["ps", "-a"]).ok();
        assert!(list.contains(file), "{list}");

        // There is no image to add a layer to.
        let commit = home.output(&["commit", "it", "new"]);
        assert!(
            commit.stderr().contains("not made from an image"),
            "{}",
            commit.stderr()
        );

        // The root disk is unchanged, and a changed one is refused.
        assert_eq!(state(Path::new(file)), before);
        let written = File::options().write(true).open(file).unwrap();
        written.write_all_at(b"x", before.0.len() as u64).unwrap();
        for arguments in [
            &["start", "it"][..],
            &["diff", "it"],
            &["run", "--from", "shot", "ls"],
        ] {
            let refused = home.output(arguments);
            assert!(refused.code() != 0);
            assert!(
                refused.stderr().contains("it has changed"),
                "{}",
                refused.stderr()
            );
        }
        home.output(&["snapshot", "rm", "shot"]).ok();
        home.output(&["rm", "it"]).ok();
        home.assert_nothing_left();
    }
}

#[test]
#[ignore = "needs a built guest"]
fn a_root_disk_is_written_to_when_asked_for() {
    let home = Home::empty();
    let tree = tree(&home);
    let file = ext4(&home, &tree, &[], 32 << 20);
    let in_place = with(&file, ":rw");
    let read_only = file.to_str().unwrap();
    let check = || succeed(Command::new("e2fsck").arg("-fn").arg(&file));

    let script = "echo $(($(cat /count) + 1)) > /count; cat /count; \
        case $(cat /count) in 2) echo kept > /flushed; sync; echo ready; exec sleep 1000;; esac";
    let run = [
        "run",
        "--name",
        "it",
        "--root-disk",
        &in_place,
        "sh",
        "-c",
        script,
    ];
    assert_eq!(home.output(&run).stdout(), "1\n");
    check();
    let count = succeed(
        Command::new("debugfs")
            .args(["-R", "cat /count"])
            .arg(&file),
    );
    assert_eq!(count, "1\n");

    // Another start, which excludes other sandboxes meanwhile.
    let mut running = home.start(&["start", "-a", "it"]);
    assert_eq!(
        (running.line(), running.line()),
        ("2".into(), "ready".into())
    );
    for path in [read_only, &in_place] {
        let busy = home.output(&["run", "--rm", "--root-disk", path, "true"]);
        assert_eq!(busy.code(), 125);
        assert!(
            busy.stderr().contains("another sandbox uses it"),
            "{}",
            busy.stderr()
        );
    }
    running.signal(KILL);
    assert_eq!(running.wait(), -KILL);
    wait_until_closed(&file);

    // A power cut: the disk is not used without its journal, and not written to without a request.
    let before = state(&file);
    let dirty = home.output(&["run", "--rm", "--root-disk", read_only, "true"]);
    assert_eq!(dirty.code(), 125);
    let words = dirty.stderr();
    assert!(
        words.contains("not unmounted") && words.contains("ext4 replay"),
        "{words}"
    );
    assert_eq!(state(&file), before);
    home.output(&["ext4", "replay", read_only]).ok();
    check();
    let text = home.output(&["run", "--rm", "--root-disk", read_only, "cat", "/flushed"]);
    assert_eq!(text.ok(), "kept\n");
    // A clean filesystem is unchanged.
    let before = state(&file);
    home.output(&["ext4", "replay", read_only]).ok();
    assert_eq!(state(&file).0, before.0);
    // The guest's kernel replays the journal as well.
    assert_eq!(home.output(&["start", "-a", "it"]).ok(), "3\n");
    check();

    // There are no changes apart from the disk.
    for arguments in [
        &["diff", "it"][..],
        &["snapshot", "create", "it", "shot"],
        &["cp", "it:/n", "n"],
    ] {
        let refused = home.output(arguments);
        assert_eq!(refused.code(), 1);
        assert!(
            refused.stderr().contains("directly"),
            "{}",
            refused.stderr()
        );
    }
    home.output(&["rm", "it"]).ok();
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn root_disks_as_other_tools_make_them_boot() {
    let home = Home::empty();
    let tree = tree(&home);
    let at = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    let boot = |disk: &str, script: &str| {
        let flags = ["run", "--rm", "-q", "--root-disk", disk, "sh", "-c", script];
        home.output(&flags).ok()
    };
    let look = "head -1 /etc/passwd; echo x >/new && cat /new";
    let seen = "root:x:0:0:root:/root:/bin/sh\nx\n";
    let erofs = at("lz4.erofs");
    let words = [
        "-zlz4hc",
        "--quiet",
        "--all-root",
        &erofs,
        tree.to_str().unwrap(),
    ];
    succeed(Command::new("mkfs.erofs").args(words));
    assert_eq!(boot(&erofs, look), seen);

    let quota = ext4(&home, &tree, &["-O", "quota"], 32 << 20);
    let quota = quota.to_str().unwrap();
    // mke2fs counts before it copies files.
    Command::new("e2fsck")
        .args(["-fy", quota])
        .output()
        .unwrap();
    assert_eq!(boot(&format!("{quota}:rw"), look), seen);
    succeed(Command::new("e2fsck").args(["-fn", quota]));

    // On the second partition of a qcow2 image.
    let script = "label: gpt\nstart=1M, size=4M, type=uefi\nstart=8M, size=32M";
    let disk = at("disk");
    File::create(&disk).unwrap().set_len(48 << 20).unwrap();
    succeed(Command::new("bash").args(["-c", &format!("sfdisk -q {disk} <<<\"$0\"",), script]));
    let contents = File::options().write(true).open(&disk).unwrap();
    contents
        .write_all_at(&fs::read(quota).unwrap(), 8 << 20)
        .unwrap();
    let qcow2 = at("qcow2");
    let convert = [
        "convert", "-q", "-c", "-f", "raw", "-O", "qcow2", &disk, &qcow2,
    ];
    succeed(Command::new("qemu-img").args(convert));
    let before = state(Path::new(&qcow2));
    assert_eq!(boot(&qcow2, look), seen);
    assert_eq!(boot(&format!("{qcow2},partition=2"), look), seen);
    assert_eq!(state(Path::new(&qcow2)), before);
    let missing = home.output(&[
        "run",
        "--rm",
        "--root-disk",
        &format!("{qcow2},partition=7"),
        "true",
    ]);
    assert!(
        missing.stderr().contains("has the number 7"),
        "{}",
        missing.stderr()
    );
    home.assert_nothing_left();
}

#[test]
fn a_file_that_cannot_be_a_root_is_refused_by_name() {
    let home = Home::empty();
    let tree = tree(&home);
    let file = home.path().join("disk");
    let refused = |path: &str, words: [&str; 2]| {
        let refused = home.output(&["run", "--rm", "--root-disk", path, "true"]);
        assert_eq!((refused.code(), refused.stdout()), (125, String::new()));
        for word in words {
            assert!(refused.stderr().contains(word), "{}", refused.stderr());
        }
    };
    let path = file.to_str().unwrap();
    refused(path, ["No such file", path]);
    refused(home.path().to_str().unwrap(), ["not a regular file", ""]);
    File::create(&file).unwrap().set_len(4 << 20).unwrap();
    refused(path, ["neither an ext4 nor an EROFS", "mke2fs -d"]);
    let contents = File::options().write(true).open(&file).unwrap();
    let boot_sector = |name: &[u8], at: usize| {
        let mut sector = vec![0; 512];
        sector[at..at + name.len()].copy_from_slice(name);
        // What looks like entries of a partition table is text.
        sector[440..510].fill(b'A');
        sector[510..].copy_from_slice(&[0x55, 0xaa]);
        sector
    };
    for (start, bytes, words) in [
        (0, boot_sector(b"FAT32", 82), ["holds FAT", "mke2fs -d"]),
        (0, boot_sector(b"NTFS    ", 3), ["holds NTFS", "mke2fs -d"]),
        (0x8001, b"CD001".to_vec(), ["holds ISO 9660", "mke2fs -d"]),
        (0x1_0040, b"_BHRfS_M".to_vec(), ["holds btrfs", "mke2fs -d"]),
        (
            0x40,
            b"\x7f\x10\xda\xbe".to_vec(),
            ["a VDI image", "qemu-img convert"],
        ),
        (0, b"BZh".to_vec(), ["compressed with bzip2", "decompress"]),
    ] {
        contents.write_all_at(&bytes, start).unwrap();
        refused(path, words);
        contents.write_all_at(&vec![0; bytes.len()], start).unwrap();
    }

    // A partition of type 0x83 from sector 2048 on; then a GPT's signature.
    contents
        .write_all_at(&[0x80, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0], 446)
        .unwrap();
    contents.write_all_at(&[0x55, 0xaa], 510).unwrap();
    refused(path, ["partition table (MBR)", "partition=N"]);
    contents.write_all_at(b"EFI PART", 512).unwrap();
    refused(path, ["partition table", "sfdisk -d"]);

    // In an image of another format: none, and one whose contents are in another file.
    let qcow2 = home.path().join("qcow2");
    let make = |words: &[&str]| succeed(Command::new("qemu-img").args(words).arg(&qcow2).arg("4M"));
    make(&["create", "-q", "-f", "qcow2"]);
    let qcow2_path = qcow2.to_str().unwrap();
    refused(qcow2_path, ["qcow2", "neither an ext4 nor an EROFS"]);
    refused(&with(&qcow2, ":rw"), ["disk image", "omit :rw"]);
    make(&["create", "-q", "-f", "qcow2", "-F", "raw", "-b", path]);
    refused(qcow2_path, ["a backing file", "qemu-img convert -O raw"]);
    succeed(Command::new("gzip").arg("-k").arg(&file));
    refused(&with(&file, ".gz"), ["compressed with gzip", "decompress"]);

    let erofs = erofs(&home, &tree);
    refused(&with(&erofs, ":rw"), ["can't be written to", "omit :rw"]);
    let length = fs::metadata(&erofs).unwrap().len();
    File::options()
        .write(true)
        .open(&erofs)
        .unwrap()
        .set_len(length + 100)
        .unwrap();
    refused(erofs.to_str().unwrap(), ["not a multiple of 512", ""]);

    let ext4 = ext4(&home, &tree, &[], 32 << 20);
    let in_place = with(&ext4, ":rw");
    for flags in [&["--upper", "disk"][..], &["--mkdir", "/x"]] {
        let run = [&["run", "--rm", "--root-disk", &in_place], flags, &["true"]].concat();
        let refused = home.output(&run);
        assert_eq!(refused.code(), 125);
        assert!(
            refused.stderr().contains("omit :rw"),
            "{}",
            refused.stderr()
        );
    }
    File::options()
        .write(true)
        .open(&ext4)
        .unwrap()
        .set_len(1 << 20)
        .unwrap();
    refused(ext4.to_str().unwrap(), ["larger than its device", ""]);
    home.assert_nothing_left();
}
