//! Tests filesystems marked as having errors: they are read and replayed but not written, and a
//! check without findings clears the mark.

use micabox_ext4::check::{check, clear_errors};
use micabox_ext4::device::{Memory, ReadOnly};
use micabox_ext4::format::superblock::{STATE_ERROR, SUPERBLOCK_OFFSET, Superblock};
use micabox_ext4::{BlockDevice, Error, Ext4, Options, ROOT};

use crate::support::engine::{Image, owner};
use micabox_testing::e2fsprogs;

/// Returns the options for a copy, or for a filesystem that must remain usable.
fn despite() -> Options {
    Options {
        despite_errors: true,
        ..Options::default()
    }
}

fn change_superblock(device: &mut dyn BlockDevice, change: impl FnOnce(&mut Superblock)) {
    let mut bytes = [0; Superblock::SIZE];
    device.read_at(SUPERBLOCK_OFFSET, &mut bytes).unwrap();
    let mut superblock = Superblock::decode(&bytes);
    change(&mut superblock);
    superblock.seal_into(&mut bytes);
    device.write_at(SUPERBLOCK_OFFSET, &bytes).unwrap();
}

/// Returns a filesystem whose contents are all in the log, including a file without names.
fn crashed() -> Memory {
    let image = Image::new(16 << 20);
    let mut filesystem = image.open();
    let file = filesystem.create(ROOT, b"file", owner()).unwrap();
    filesystem.write(file, 0, b"contents").unwrap();
    let orphan = filesystem.create(ROOT, b"orphan", owner()).unwrap();
    filesystem.hold(orphan).unwrap();
    filesystem.unlink(ROOT, b"orphan").unwrap();
    filesystem.sync().unwrap();
    drop(filesystem.abandon());
    Memory::from(std::fs::read(image.path()).unwrap())
}

/// Returns a filesystem that a kernel could no longer write: it has the mark, outside the log.
fn marked() -> Memory {
    let mut device = crashed();
    change_superblock(&mut device, |superblock| {
        superblock.state |= STATE_ERROR;
        superblock.error_count = 3;
        superblock.last_error_function[..4].copy_from_slice(b"test");
    });
    device
}

fn on_disk(device: &impl BlockDevice) -> Superblock {
    let mut bytes = [0; Superblock::SIZE];
    device.read_at(SUPERBLOCK_OFFSET, &mut bytes).unwrap();
    Superblock::decode(&bytes)
}

fn contents<D: BlockDevice>(filesystem: &mut Ext4<D>) -> Vec<u8> {
    let file = filesystem.resolve(b"/file").unwrap();
    let mut contents = vec![0; 100];
    let length = filesystem.read(file, 0, &mut contents).unwrap();
    contents.truncate(length);
    contents
}

#[test]
fn a_marked_filesystem_is_read_as_its_journal_has_it() {
    let device = marked();
    let mut filesystem = Ext4::open_read_only(ReadOnly(device), Options::default()).unwrap();
    assert!(filesystem.has_errors());
    assert_eq!(contents(&mut filesystem), b"contents");
    let sound = Ext4::open_read_only(ReadOnly(crashed()), Options::default()).unwrap();
    assert!(!sound.has_errors());
}

#[test]
fn writing_to_a_marked_filesystem_is_refused_before_its_journal_is_replayed() {
    let mut device = marked();
    let before = device.clone();
    let refused = Ext4::open(&mut device, Options::default()).map(drop);
    assert!(matches!(refused, Err(Error::MarkedDamaged)), "{refused:?}");
    assert_eq!(device.bytes(), before.bytes());
}

#[test]
fn replay_on_request_keeps_the_error_mark() {
    let mut filesystem = Ext4::open(marked(), despite()).unwrap();
    assert!(filesystem.has_errors());
    assert_eq!(contents(&mut filesystem), b"contents");
    let device = filesystem.close().unwrap();
    let superblock = on_disk(&device);
    assert!(superblock.has_errors());
    assert_eq!(superblock.error_count, 3);
    // As in Linux, the list of orphans is not trusted.
    assert_eq!(superblock.last_orphan, 0);
    let mut reader = Ext4::open_read_only(device, Options::default()).unwrap();
    assert_eq!(contents(&mut reader), b"contents");
}

#[test]
fn a_check_without_findings_clears_the_error_mark() {
    let image = Image::new(16 << 20);
    let mut filesystem = image.open();
    filesystem.create(ROOT, b"file", owner()).unwrap();
    drop(filesystem.close().unwrap());
    let mut device = image.device();
    change_superblock(&mut device, |superblock| {
        superblock.state = STATE_ERROR;
        superblock.error_count = 1;
    });
    assert!(!check(&device).is_empty());
    assert_eq!(clear_errors(&mut device).unwrap(), []);
    assert_eq!(check(&device), []);
    assert_eq!(
        e2fsprogs::superblock(&image.path())["Filesystem state"],
        "clean"
    );
    assert!(!e2fsprogs::superblock(&image.path()).contains_key("FS Error count"));
    image.check();
    Ext4::open(device, Options::default()).unwrap();
}

#[test]
fn a_check_with_findings_changes_nothing() {
    // The orphan's inode and blocks have no owner once the list is dropped.
    let mut device = Ext4::open(marked(), despite()).unwrap().close().unwrap();
    let before = device.clone();
    assert!(!clear_errors(&mut device).unwrap().is_empty());
    assert_eq!(device.bytes(), before.bytes());
}

#[test]
fn an_error_that_stopped_the_journal_is_one_of_the_filesystem() {
    let mut device = crashed();
    let magic = [0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 4];
    let log = (0..device.bytes().len())
        .step_by(4096)
        .find(|&at| device.bytes()[at..].starts_with(&magic))
        .unwrap() as u64;
    let mut bytes = [0; 1024];
    device.read_at(log, &mut bytes).unwrap();
    let mut journal = micabox_ext4::format::journal::Superblock::decode(&bytes);
    // EIO, as the kernel writes it.
    journal.error = 5u32.wrapping_neg();
    journal.seal_into(&mut bytes);
    device.write_at(log, &bytes).unwrap();

    let mut reader = Ext4::open_read_only(device.clone(), Options::default()).unwrap();
    assert!(reader.has_errors());
    assert_eq!(contents(&mut reader), b"contents");
    let refused = Ext4::open(device.clone(), Options::default()).map(drop);
    assert!(matches!(refused, Err(Error::MarkedDamaged)), "{refused:?}");
    let device = Ext4::open(device, despite()).unwrap().close().unwrap();
    assert!(on_disk(&device).has_errors());
    device.read_at(log, &mut bytes).unwrap();
    assert_eq!(
        micabox_ext4::format::journal::Superblock::decode(&bytes).error,
        0
    );
}
