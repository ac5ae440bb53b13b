//! Checks new filesystems with e2fsprogs and the kernel.

use std::fs::File;
use std::os::unix::fs::MetadataExt;

use micabox_ext4::device::{BlockDevice, DeviceError, Memory};
use micabox_ext4::mkfs::{Journal, MkfsError, Options, Summary, mkfs};

use micabox_testing::{e2fsprogs, run};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

fn options() -> Options {
    Options {
        uuid: *b"\x01\x23\x45\x67\x89\xab\x4d\xef\x81\x23\x45\x67\x89\xab\xcd\xef",
        label: *b"mica\0\0\0\0\0\0\0\0\0\0\0\0",
        time: 1_735_689_600,
        inodes: None,
        journal: Journal::Default,
        reserved: 0,
    }
}

fn make_file(size: u64, options: &Options) -> (tempfile::NamedTempFile, Summary) {
    let named = tempfile::NamedTempFile::new().unwrap();
    let mut file: File = named.reopen().unwrap();
    file.set_len(size).unwrap();
    let summary = mkfs(&mut file, size, options).unwrap();
    (named, summary)
}

#[test]
fn e2fsck_finds_nothing_in_a_new_filesystem() {
    let block = 4096;
    let group = 128 * MIB;
    let sizes = [
        4 * MIB,
        8 * MIB - block,
        8 * MIB,
        100 * MIB,
        group,
        // Not enough for a second group, and just enough.
        group + 40 * block,
        group + 60 * block,
        512 * MIB,
        2 * group + 52 * block,
        // The last flex group has one group, with tables of its own.
        16 * group + 500 * block,
        16 * group + 2000 * block,
        3 * GIB + 12_345,
        8 * GIB,
        100 * GIB,
    ];
    for size in sizes {
        let (image, summary) = make_file(size, &options());
        e2fsprogs::assert_clean(image.path());
        let said = e2fsprogs::superblock(image.path());
        assert_eq!(said["Block count"], summary.blocks.to_string(), "{size}");
        assert_eq!(said["Free blocks"], summary.free_blocks.to_string());
        assert_eq!(said["Inode count"], summary.inodes.to_string());
        assert_eq!(said["Checksum type"], "crc32c");
    }
}

#[test]
fn dumpe2fs_shows_the_options_given() {
    let asked = Options {
        inodes: Some(1_000_000),
        journal: Journal::Bytes(32 * MIB),
        reserved: 500,
        ..options()
    };
    let (image, _) = make_file(8 * GIB, &asked);
    e2fsprogs::assert_clean(image.path());
    let said = e2fsprogs::superblock(image.path());
    assert_eq!(said["Filesystem volume name"], "mica");
    assert_eq!(
        said["Filesystem UUID"],
        "01234567-89ab-4def-8123-456789abcdef"
    );
    assert_eq!(
        said["Reserved block count"],
        (8 * GIB / 4096 / 20).to_string()
    );
    assert_eq!(said["Total journal size"], "32M");
    assert_eq!(said["Inode size"], "256");
    assert_eq!(said["Block size"], "4096");
    let inodes: u64 = said["Inode count"].parse().unwrap();
    assert!((1_000_000..1_010_000).contains(&inodes), "{inodes}");
    for feature in [
        "has_journal",
        "ext_attr",
        "dir_index",
        "sparse_super2",
        "filetype",
        "extent",
        "64bit",
        "flex_bg",
        "large_file",
        "huge_file",
        "dir_nlink",
        "extra_isize",
        "metadata_csum",
    ] {
        let features = &said["Filesystem features"];
        assert!(
            features.split(' ').any(|has| has == feature),
            "{feature}: {features}"
        );
    }
}

#[test]
fn journals_of_all_sizes_are_made() {
    for (size, journal) in [
        (64 * MIB, Journal::None),
        (64 * MIB, Journal::Bytes(4 * MIB)),
        // More extents than fit in the inode.
        (20 * GIB, Journal::Bytes(10 * GIB)),
    ] {
        let (image, summary) = make_file(
            size,
            &Options {
                journal,
                ..options()
            },
        );
        e2fsprogs::assert_clean(image.path());
        let expected = match journal {
            Journal::Bytes(bytes) => bytes / 4096,
            _ => 0,
        };
        assert_eq!(summary.journal_blocks, expected);
    }
}

#[test]
fn inodes_beyond_one_flex_group_are_made() {
    // The tables of 16 groups take more than one group.
    let inodes = Some(3 * GIB / 4096);
    let (image, _) = make_file(
        3 * GIB,
        &Options {
            inodes,
            ..options()
        },
    );
    e2fsprogs::assert_clean(image.path());
}

#[test]
#[ignore = "takes memory: 16 TiB before e2fsck"]
fn a_filesystem_of_16_tib_is_made() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("image");
    let mut file = File::create_new(&path).unwrap();
    file.set_len(16 * TIB).unwrap();
    mkfs(&mut file, 16 * TIB, &options()).unwrap();
    // Three copies of the descriptors, and a bitmap for each flex group.
    assert!(file.metadata().unwrap().blocks() * 512 < 64 * MIB);
    e2fsprogs::assert_clean(&path);
}

#[test]
fn the_same_options_give_the_same_bytes() {
    let bytes = || {
        let mut device = Memory::new(64 << 20);
        mkfs(&mut device, 64 * MIB, &options()).unwrap();
        device.into_bytes()
    };
    assert!(bytes() == bytes());
}

/// Counts the requests to a device.
#[derive(Default)]
struct Counting {
    writes: u32,
    bytes: u64,
}

impl BlockDevice for Counting {
    fn size(&self) -> Result<u64, DeviceError> {
        Ok(u64::MAX)
    }

    fn read_at(&self, _: u64, _: &mut [u8]) -> Result<(), DeviceError> {
        unreachable!("making a filesystem reads nothing")
    }

    fn write_at(&mut self, _: u64, buf: &[u8]) -> Result<(), DeviceError> {
        self.writes += 1;
        self.bytes += buf.len() as u64;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }
}

#[test]
fn a_filesystem_of_8_gib_is_a_dozen_writes() {
    let mut device = Counting::default();
    mkfs(&mut device, 8 * GIB, &options()).unwrap();
    assert!(device.writes <= 12, "{} writes", device.writes);
    assert!(device.bytes <= 80 << 10, "{} bytes", device.bytes);
    let (image, _) = make_file(8 * GIB, &options());
    assert!(image.as_file().metadata().unwrap().blocks() <= 160);
}

#[test]
fn impossible_options_are_named() {
    let refused =
        |size, options: Options| mkfs(&mut Counting::default(), size, &options).unwrap_err();
    for size in [0, 4095, 4096, 100 << 10] {
        assert!(
            matches!(refused(size, options()), MkfsError::TooSmall(_)),
            "{size}"
        );
    }
    assert!(matches!(
        refused(u64::MAX, options()),
        MkfsError::TooLarge(_)
    ));
    let journal = Journal::Bytes(MIB);
    let wrong = refused(
        GIB,
        Options {
            journal,
            ..options()
        },
    );
    assert!(matches!(wrong, MkfsError::JournalSize(_)));
    let journal = Journal::Bytes(64 * MIB);
    let wrong = refused(
        32 * MIB,
        Options {
            journal,
            ..options()
        },
    );
    assert!(matches!(wrong, MkfsError::TooSmall(_)));
    for inodes in [u64::MAX, GIB] {
        let inodes = Some(inodes);
        let wrong = refused(
            GIB,
            Options {
                inodes,
                ..options()
            },
        );
        assert!(matches!(wrong, MkfsError::TooManyInodes(_)));
    }
}

#[test]
#[ignore = "needs root"]
fn the_kernel_writes_to_a_new_filesystem() {
    let directory = tempfile::tempdir().unwrap();
    for size in [4 * MIB, 64 * MIB, 8 * GIB] {
        let (image, _) = make_file(size, &options());
        let mount = |source: &std::path::Path| {
            let mut command = std::process::Command::new("mount");
            run(command
                .args(["-o", "loop"])
                .arg(source)
                .arg(directory.path()))
        };
        mount(image.path());
        for number in 0..200 {
            std::fs::write(directory.path().join(format!("file{number}")), "text").unwrap();
        }
        run(std::process::Command::new("umount").arg(directory.path()));
        e2fsprogs::assert_clean(image.path());
    }
}
