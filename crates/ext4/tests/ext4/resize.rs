//! Checks growing with e2fsprogs and the kernel.

use std::fs::File;

use micabox_ext4::check::check;
use micabox_ext4::mkfs::{Journal, Options, mkfs};
use micabox_ext4::resize::{ResizeError, Resized, grow};

use micabox_testing::{e2fsprogs, run};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn make_file(size: u64) -> tempfile::NamedTempFile {
    let named = tempfile::NamedTempFile::new().unwrap();
    named.as_file().set_len(size).unwrap();
    let options = Options {
        uuid: [3; 16],
        label: [0; 16],
        time: 1_700_000_000,
        inodes: None,
        journal: Journal::Default,
        reserved: 100,
    };
    mkfs(&mut named.reopen().unwrap(), size, &options).unwrap();
    named
}

fn grow_file(image: &tempfile::NamedTempFile, size: u64) -> Result<Resized, ResizeError> {
    let mut file: File = image.reopen().unwrap();
    file.set_len(size).unwrap();
    grow(&mut file, size)
}

#[track_caller]
fn assert_sound(image: &tempfile::NamedTempFile) {
    e2fsprogs::assert_clean(image.path());
    assert_eq!(check(image.as_file()), []);
}

#[test]
fn a_filesystem_grown_step_by_step_is_sound() {
    let sizes = [
        8 * MIB,
        100 * MIB,
        128 * MIB,
        // Not enough for another group.
        128 * MIB + 40 * 4096,
        300 * MIB,
        2 * GIB + 4096,
        // Descriptors need a second block, then many more.
        8 * GIB + 500 * MIB,
        9 * GIB,
        40 * GIB,
        500 * GIB + 12_345,
    ];
    let image = make_file(4 * MIB);
    for size in sizes {
        let resized = grow_file(&image, size).unwrap();
        assert!(resized.blocks * 4096 > size - (128 * MIB).min(size / 2));
        assert_sound(&image);
        let said = e2fsprogs::superblock(image.path());
        assert_eq!(said["Block count"], resized.blocks.to_string());
        assert_eq!(said["Free blocks"], resized.free_blocks.to_string());
        assert_eq!(said["Inode count"], resized.inodes.to_string());
    }
    // New groups are holes.
    use std::os::unix::fs::MetadataExt;
    assert!(image.as_file().metadata().unwrap().blocks() * 512 < 4 * MIB);
}

#[test]
fn a_filesystem_of_any_size_grows_to_30_gib() {
    for from in [4 * MIB, 128 * MIB, 130 * MIB, 256 * MIB, 8 * GIB, 20 * GIB] {
        let image = make_file(from);
        grow_file(&image, 30 * GIB).unwrap();
        assert_sound(&image);
    }
}

#[test]
fn filesystems_of_mke2fs_grow_where_their_table_has_room() {
    for kind in [
        "-t ext4",
        "-t ext4 -O ^metadata_csum,uninit_bg",
        "-t ext4 -O ^64bit",
        "-t ext4 -b 1024",
        "-t ext4 -O meta_bg,^resize_inode",
        "-t ext4 -O ^resize_inode -b 1024",
    ] {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(20 * MIB).unwrap();
        let mut command = e2fsprogs::tool("mke2fs");
        run(command
            .args(["-q", "-F"])
            .args(kind.split(' '))
            .arg(image.path()));
        // Another backup needs more than the reserved descriptor blocks.
        let more = if kind.contains("^resize_inode") {
            100
        } else {
            24
        };
        grow_file(&image, more * MIB).unwrap();
        assert_sound(&image);
        match grow_file(&image, 20 * GIB) {
            Ok(_) => assert!(kind.contains("^resize_inode"), "{kind}"),
            Err(ResizeError::Unsupported(_)) => assert!(!kind.contains("^resize"), "{kind}"),
            Err(error) => panic!("{kind}: {error}"),
        }
        assert_sound(&image);
    }
}

#[test]
fn a_filesystem_does_not_shrink() {
    let image = make_file(100 * MIB);
    let refused = grow_file(&image, 50 * MIB).unwrap_err();
    // The device is now smaller than the filesystem.
    assert!(matches!(refused, ResizeError::Filesystem(_)), "{refused}");
    image.as_file().set_len(100 * MIB).unwrap();
    let refused = grow(&mut image.reopen().unwrap(), 50 * MIB).unwrap_err();
    assert!(matches!(refused, ResizeError::Shrink { .. }), "{refused}");
}

#[test]
#[ignore = "needs root"]
fn the_kernel_fills_the_space_that_was_added() {
    let directory = tempfile::tempdir().unwrap();
    let image = make_file(16 * MIB);
    let mount = || {
        let mut command = std::process::Command::new("mount");
        run(command
            .args(["-o", "loop"])
            .arg(image.path())
            .arg(directory.path()));
    };
    let unmount = || {
        run(std::process::Command::new("umount").arg(directory.path()));
        e2fsprogs::assert_clean(image.path());
    };
    mount();
    std::fs::write(directory.path().join("before"), vec![1; 2 << 20]).unwrap();
    unmount();
    for size in [400 * MIB, 9 * GIB] {
        grow_file(&image, size).unwrap();
        assert_sound(&image);
        mount();
        assert_eq!(
            std::fs::read(directory.path().join("before")).unwrap(),
            vec![1; 2 << 20]
        );
        for number in 0..300 {
            let path = directory.path().join(format!("{size}-{number}"));
            std::fs::write(path, vec![2; 500_000]).unwrap();
        }
        unmount();
        assert_eq!(check(image.as_file()), []);
    }
}
