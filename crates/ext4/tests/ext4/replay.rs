//! Tests what else replaying a journal repairs, as a mount does.

use micabox_ext4::check::check;
use micabox_ext4::{Ext4, Options, ROOT};

use crate::support::engine::{Image, owner};
use micabox_testing::e2fsprogs::{self, debugfs, tool};
use micabox_testing::run;

/// Running kernels count free blocks and inodes only in the groups: the superblock has the counts
/// of the time of the mount, in its place and in the log. debugfs makes such a disk.
#[test]
fn free_counts_are_those_of_the_groups_after_replay() {
    for shape in [
        &["-t", "ext4"][..],
        &["-t", "ext4", "-b", "1024", "-g", "8192"],
    ] {
        let image = Image::mke2fs(24 << 20, shape);
        let mut filesystem = image.open();
        let file = filesystem.create(ROOT, b"file", owner()).unwrap();
        filesystem.write(file, 0, &[7; 300_000]).unwrap();
        drop(filesystem.close().unwrap());
        let copy = image.path().with_extension("block");
        std::fs::write(&copy, vec![7; 4096]).unwrap();
        let block = debugfs(&image.path(), "bmap /file 0");
        let number = |line: &str| line.trim().parse::<u64>().ok();
        let block = block.lines().find_map(number).unwrap();
        let requests = format!(
            "ssv free_blocks_count 77\nssv free_inodes_count 7\njo -c\njw -b {block} {}\njc\n",
            copy.display()
        );
        let script = image.path().with_extension("script");
        std::fs::write(&script, requests).unwrap();
        run(tool("debugfs")
            .args(["-w", "-f"])
            .args([script, image.path()]));
        let said = e2fsprogs::superblock(&image.path());
        assert!(said["Filesystem features"].contains("needs_recovery"));

        drop(
            Ext4::open(image.device(), Options::default())
                .unwrap()
                .close()
                .unwrap(),
        );
        assert_eq!(check(&image.device()), []);
        image.check();
        let said = e2fsprogs::superblock(&image.path());
        assert_ne!(said["Free blocks"], "77");
        assert_ne!(said["Free inodes"], "7");
    }
}

/// A filesystem that was unmounted stays unchanged, byte for byte.
#[test]
fn a_clean_filesystem_is_not_written_to() {
    let image = Image::mke2fs(24 << 20, &["-t", "ext4"]);
    let before = std::fs::read(image.path()).unwrap();
    drop(image.open().close().unwrap());
    assert!(std::fs::read(image.path()).unwrap() == before);
}

/// A log whose replay would change the log itself is damaged: in place and in memory it would
/// give different filesystems.
#[test]
fn a_log_that_contains_a_block_of_itself_is_not_replayed() {
    let image = Image::mke2fs(24 << 20, &["-t", "ext4"]);
    let copy = image.path().with_extension("block");
    std::fs::write(&copy, vec![7; 4096]).unwrap();
    let block = debugfs(&image.path(), "bmap <8> 40");
    let number = |line: &str| line.trim().parse::<u64>().ok();
    let block = block.lines().find_map(number).unwrap();
    let requests = format!("jo -c\njw -b {block} {}\njc\n", copy.display());
    let script = image.path().with_extension("script");
    std::fs::write(&script, requests).unwrap();
    run(tool("debugfs")
        .args(["-w", "-f"])
        .args([script, image.path()]));

    let before = std::fs::read(image.path()).unwrap();
    let refused = Ext4::open(image.device(), Options::default()).unwrap_err();
    assert!(
        refused.to_string().contains("a block of the log"),
        "{refused}"
    );
    assert!(Ext4::open_read_only(image.device(), Options::default()).is_err());
    assert!(std::fs::read(image.path()).unwrap() == before);
}

/// Neither Linux nor e2fsck takes a reserved inode from the list of orphans.
#[test]
fn a_reserved_inode_is_refused_as_an_orphan() {
    for field in ["last_orphan 2", "last_orphan 8", "first_ino 2"] {
        let image = Image::mke2fs(24 << 20, &["-t", "ext4"]);
        let script = image.path().with_extension("script");
        std::fs::write(&script, format!("ssv {field}\n")).unwrap();
        run(tool("debugfs")
            .args(["-w", "-f"])
            .args([script, image.path()]));
        let before = std::fs::read(image.path()).unwrap();
        let refused = Ext4::open(image.device(), Options::default());
        assert!(refused.is_err(), "{field}");
        assert!(std::fs::read(image.path()).unwrap() == before);
    }
}
