//! Tests the engine, checked with e2fsck.

use micabox_ext4::mkfs::Journal;
use micabox_ext4::{Errno, Ext4, Fallocate, FileKind, Options, Owner, ROOT, Rename, SetXattr};

use crate::support::engine::{Image, owner};

#[test]
fn a_file_is_created_written_and_read() {
    let image = Image::new(64 << 20);
    let mut filesystem = image.open();
    let file = filesystem.create(ROOT, b"hello", owner()).unwrap();
    assert_eq!(filesystem.write(file, 0, b"world").unwrap(), 5);
    let mut buf = [0; 10];
    assert_eq!(filesystem.read(file, 0, &mut buf).unwrap(), 5);
    assert_eq!(&buf[..5], b"world");
    filesystem.close().unwrap();
    image.check();
    let mut filesystem = image.open_read_only();
    let file = filesystem.resolve(b"/hello").unwrap();
    assert_eq!(filesystem.read(file, 1, &mut buf).unwrap(), 4);
    assert_eq!(&buf[..4], b"orld");
}

#[test]
fn directories_grow_into_trees() {
    let image = Image::new(256 << 20);
    let mut filesystem = image.open();
    let directory = filesystem.mkdir(ROOT, b"many", owner()).unwrap();
    for number in 0..20_000u32 {
        let name = format!("a file with a name that takes some room {number}");
        filesystem
            .create(directory, name.as_bytes(), owner())
            .unwrap();
    }
    filesystem.sync().unwrap();
    let device = filesystem.close().unwrap();
    drop(device);
    image.check();
    let mut filesystem = image.open();
    let directory = filesystem.resolve(b"/many").unwrap();
    assert_eq!(filesystem.read_dir(directory).unwrap().len(), 20_000);
    for number in (0..20_000u32).step_by(3) {
        let name = format!("a file with a name that takes some room {number}");
        filesystem.unlink(directory, name.as_bytes()).unwrap();
    }
    for number in 0..20_000u32 {
        let name = format!("a file with a name that takes some room {number}");
        let found = filesystem.lookup(directory, name.as_bytes());
        assert_eq!(found.is_err(), number % 3 == 0, "{number}");
    }
    filesystem.close().unwrap();
    image.check();
}

#[test]
fn extents_split_and_merge() {
    let image = Image::new(64 << 20);
    let mut filesystem = image.open();
    let a = filesystem.create(ROOT, b"a", owner()).unwrap();
    // Every other block: no two extents can be joined.
    for block in 0..3000u64 {
        filesystem
            .write(a, block * 8192, &[block as u8; 4096])
            .unwrap();
    }
    filesystem.sync().unwrap();
    image.check_live(&filesystem);
    for block in 0..3000u64 {
        filesystem
            .write(a, block * 8192 + 4096, &[block as u8; 4096])
            .unwrap();
    }
    filesystem.sync().unwrap();
    image.check_live(&filesystem);
    filesystem
        .fallocate(a, Fallocate::PunchHole, 100_000, 10_000_000)
        .unwrap();
    filesystem.sync().unwrap();
    image.check_live(&filesystem);
    let mut buf = vec![1; 4096];
    filesystem.read(a, 2999 * 8192 + 4096, &mut buf).unwrap();
    assert_eq!(buf, [2999u32 as u8; 4096]);
    filesystem.read(a, 5_000_000, &mut buf).unwrap();
    assert_eq!(buf, [0; 4096]);
    filesystem.truncate(a, 10).unwrap();
    filesystem.close().unwrap();
    image.check();
}

#[test]
fn names_and_links_are_made_and_removed() {
    let image = Image::new(64 << 20);
    let mut filesystem = image.open();
    let one = filesystem.mkdir(ROOT, b"one", owner()).unwrap();
    let two = filesystem.mkdir(ROOT, b"two", owner()).unwrap();
    let file = filesystem.create(one, b"file", owner()).unwrap();
    filesystem.link(file, two, b"link").unwrap();
    assert_eq!(filesystem.stat(file).unwrap().links, 2);
    filesystem
        .rename(one, b"file", two, b"moved", Rename::Replace)
        .unwrap();
    filesystem
        .rename(ROOT, b"one", two, b"one", Rename::Replace)
        .unwrap();
    assert_eq!(filesystem.stat(two).unwrap().links, 3);
    let inside = filesystem.rename(ROOT, b"two", one, b"two", Rename::Replace);
    assert_eq!(inside.unwrap_err().errno(), Errno::Invalid);
    filesystem
        .rename(two, b"one", two, b"link", Rename::Exchange)
        .unwrap();
    assert_eq!(filesystem.resolve(b"/two/one").unwrap(), file);
    let taken = filesystem.rename(two, b"one", two, b"moved", Rename::NoReplace);
    assert_eq!(taken.unwrap_err().errno(), Errno::Exists);
    filesystem
        .symlink(ROOT, b"short", b"two/moved", owner())
        .unwrap();
    filesystem
        .symlink(ROOT, b"long", &[b'x'; 300], owner())
        .unwrap();
    assert_eq!(filesystem.resolve(b"/short").unwrap(), file);
    filesystem
        .mknod(ROOT, b"null", FileKind::CharDevice, (1, 3), owner())
        .unwrap();
    filesystem
        .mknod(ROOT, b"pipe", FileKind::Fifo, (0, 0), owner())
        .unwrap();
    assert_eq!(
        filesystem.rmdir(ROOT, b"two").unwrap_err().errno(),
        Errno::NotEmpty
    );
    let held = filesystem.create(ROOT, b"held", owner()).unwrap();
    filesystem.write(held, 0, &[7; 100_000]).unwrap();
    filesystem.hold(held).unwrap();
    filesystem.unlink(ROOT, b"held").unwrap();
    filesystem.sync().unwrap();
    let mut buf = [0; 3];
    filesystem.read(held, 50_000, &mut buf).unwrap();
    assert_eq!(buf, [7; 3]);
    // A crash at this point leaves an orphan, which the next open cleans up.
    drop(filesystem.abandon());
    let filesystem = image.open();
    filesystem.close().unwrap();
    image.check();
    let mut filesystem = image.open_read_only();
    let long = filesystem.resolve_no_follow(b"/long").unwrap();
    assert_eq!(filesystem.read_link(long).unwrap(), [b'x'; 300]);
}

#[test]
fn attributes_are_kept_in_inode_and_block() {
    let image = Image::new(64 << 20);
    let mut filesystem = image.open();
    let file = filesystem.create(ROOT, b"file", owner()).unwrap();
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    filesystem
        .set_xattr(file, b"security.capability", &capability, SetXattr::Any)
        .unwrap();
    filesystem
        .set_xattr(file, b"user.big", &[5; 3000], SetXattr::Create)
        .unwrap();
    filesystem
        .set_xattr(file, b"user.empty", b"", SetXattr::Any)
        .unwrap();
    for number in 0..10 {
        let name = format!("trusted.n\u{e4}me{number}");
        filesystem
            .set_xattr(file, name.as_bytes(), &[number; 20], SetXattr::Any)
            .unwrap();
    }
    let full = filesystem.set_xattr(file, b"user.more", &[5; 3000], SetXattr::Any);
    assert_eq!(full.unwrap_err().errno(), Errno::NoSpace);
    filesystem
        .remove_xattr(file, b"trusted.n\xc3\xa4me5")
        .unwrap();
    filesystem.close().unwrap();
    image.check();
    let mut filesystem = image.open();
    let file = filesystem.resolve(b"/file").unwrap();
    assert_eq!(
        filesystem.xattr(file, b"security.capability").unwrap(),
        capability
    );
    assert_eq!(filesystem.xattr(file, b"user.big").unwrap(), [5; 3000]);
    assert_eq!(filesystem.xattr_names(file).unwrap().len(), 12);
    let gone = filesystem.xattr(file, b"trusted.n\xc3\xa4me5").unwrap_err();
    assert_eq!(gone.errno(), Errno::NoAttribute);
    filesystem.unlink(ROOT, b"file").unwrap();
    filesystem.close().unwrap();
    image.check();
}

#[test]
fn allocated_space_reads_as_zeros_until_written() {
    let image = Image::new(64 << 20);
    let mut filesystem = image.open();
    let file = filesystem.create(ROOT, b"file", owner()).unwrap();
    filesystem
        .fallocate(file, Fallocate::Allocate { keep_size: false }, 0, 8 << 20)
        .unwrap();
    assert_eq!(filesystem.stat(file).unwrap().size, 8 << 20);
    filesystem.sync().unwrap();
    image.check_live(&filesystem);
    filesystem.write(file, 1 << 20, &[9; 10_000]).unwrap();
    filesystem.sync().unwrap();
    image.check_live(&filesystem);
    let segments = filesystem.segments(file).unwrap();
    assert_eq!(segments.len(), 1);
    assert_eq!((segments[0].offset, segments[0].length), (1 << 20, 12288));
    filesystem
        .fallocate(
            file,
            Fallocate::ZeroRange { keep_size: true },
            (1 << 20) + 1,
            5000,
        )
        .unwrap();
    let mut buf = [1; 3];
    filesystem.read(file, 1 << 20, &mut buf).unwrap();
    assert_eq!(buf, [9, 0, 0]);
    filesystem.close().unwrap();
    image.check();
}

#[test]
fn a_full_filesystem_refuses_writes() {
    let image = Image::new(16 << 20);
    let mut filesystem = Ext4::open(image.device(), Options::default()).unwrap();
    let mut written = 0u64;
    let file = filesystem
        .create(ROOT, b"file", Owner::root(0o600))
        .unwrap();
    loop {
        match filesystem.write(file, written, &[3; 65536]) {
            Ok(count) => written += count as u64,
            Err(error) => {
                assert_eq!(error.errno(), Errno::NoSpace);
                break;
            }
        }
    }
    assert!(written > 8 << 20, "{written}");
    filesystem.sync().unwrap();
    filesystem.truncate(file, 0).unwrap();
    // The blocks just freed may be used, after a commit that happens automatically.
    assert_eq!(
        filesystem
            .write(file, 0, &vec![4; written as usize / 2])
            .unwrap(),
        written as usize / 2
    );
    filesystem.close().unwrap();
    image.check();
}

#[test]
fn a_large_filesystem_is_made_and_used() {
    let image = Image::new(2 << 40);
    let mut filesystem = image.open();
    let free = filesystem.statistics().free_blocks;
    let file = filesystem.create(ROOT, b"file", owner()).unwrap();
    // Every group that the file extends through has its own bitmap.
    filesystem
        .fallocate(file, Fallocate::Allocate { keep_size: false }, 0, 200 << 30)
        .unwrap();
    filesystem.write(file, 150 << 30, b"in the middle").unwrap();
    filesystem.write(file, 3 << 40, b"far out").unwrap();
    filesystem.sync().unwrap();
    assert!(filesystem.statistics().free_blocks < free - (200 << 18));
    let mut buf = [0; 13];
    filesystem.read(file, 150 << 30, &mut buf).unwrap();
    assert_eq!(&buf, b"in the middle");
    filesystem.close().unwrap();
    image.check();
    let mut filesystem = image.open();
    filesystem.unlink(ROOT, b"file").unwrap();
    assert_eq!(filesystem.statistics().free_blocks, free);
    filesystem.close().unwrap();
    image.check();
}

#[test]
fn a_directory_has_more_subdirectories_than_its_link_count() {
    let image = Image::with_options(2 << 30, Journal::Default, Some(80_000));
    let mut filesystem = image.open();
    let directory = filesystem.mkdir(ROOT, b"directory", owner()).unwrap();
    for number in 0..66_000 {
        filesystem
            .mkdir(directory, format!("{number}").as_bytes(), owner())
            .unwrap();
    }
    assert_eq!(filesystem.stat(directory).unwrap().links, 1);
    filesystem.close().unwrap();
    image.check();
}
