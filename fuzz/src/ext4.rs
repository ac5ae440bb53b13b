//! Everything that a program may do with a filesystem, done to hostile ones: a sound one in
//! which one structure is replaced. Without metadata_csum, so that checksums don't keep the
//! rest from being looked at.

use std::sync::OnceLock;

use micabox_ext4::check::check;
use micabox_ext4::device::Memory;
use micabox_ext4::make::{self, Journal, make};
use micabox_ext4::{
    Ext4, FileKind, Ino, Options, Owner, ROOT, Rename, Result, SetXattr, Timestamp,
};

const BLOCK: usize = 4096;
/// `s_feature_ro_compat`, `s_feature_incompat`, and the bits that are changed there.
const RO_COMPAT: usize = 1024 + 0x64;
const INCOMPAT: usize = 1024 + 0x60;
const METADATA_CSUM: u8 = 0x4; // of the second byte
const RECOVER: u8 = 0x4;
/// Entries of a tree that are looked at.
const ENTRIES_MAX: usize = 200;

/// A superblock.
pub fn superblock(bytes: &[u8]) {
    let mut image = base(Journal::None).to_vec();
    let length = bytes.len().min(1024);
    image[1024..1024 + length].copy_from_slice(&bytes[..length]);
    image[RO_COMPAT + 1] &= !METADATA_CSUM;
    all(image);
}

/// A directory's first blocks.
pub fn directory(bytes: &[u8]) {
    let mut image = base(Journal::None).to_vec();
    let at = find(&image, b"a_name_in_an_indexed_directory_7_");
    overwrite(&mut image, at, bytes, 2 * BLOCK);
    // And, by its inode, the root of the index.
    all(image);
}

/// An inode with its extents, and a leaf of the tree.
pub fn extents(bytes: &[u8]) {
    let mut image = base(Journal::None).to_vec();
    let inode = inode_at(&image, b"fragmented");
    let (root, leaf) = bytes.split_at(bytes.len().min(60));
    overwrite(&mut image, inode + 40, root, 60);
    let magic = [0x0a, 0xf3];
    let node = image.chunks(BLOCK).position(|block| block[..2] == magic);
    overwrite(&mut image, node.expect("a leaf") * BLOCK, leaf, BLOCK);
    all(image);
}

/// Attributes in an inode and in a block.
pub fn xattrs(bytes: &[u8]) {
    let mut image = base(Journal::None).to_vec();
    let inode = inode_at(&image, b"attributes");
    let (body, block) = bytes.split_at(bytes.len().min(96));
    overwrite(&mut image, inode + 160, body, 96);
    let magic = [0, 0, 2, 0xea];
    let header = image.chunks(BLOCK).position(|block| block[..4] == magic);
    overwrite(
        &mut image,
        header.expect("a block of attributes") * BLOCK,
        block,
        BLOCK,
    );
    all(image);
}

/// A log that is to be replayed: its superblock's fields, then its blocks.
pub fn journal(bytes: &[u8]) {
    let mut image = base(Journal::Default).to_vec();
    let magic = [0xc0, 0x3b, 0x39, 0x98];
    let log = image.chunks(BLOCK).position(|block| block[..4] == magic);
    let log = log.expect("a journal") * BLOCK;
    let (head, blocks) = bytes.split_at(bytes.len().min(96));
    overwrite(&mut image, log + 12, head, 96);
    // What the block size must be, or the rest is never looked at.
    overwrite(&mut image, log + 12, &[0, 0, 16, 0], 4);
    overwrite(&mut image, log + BLOCK, blocks, 64 * BLOCK);
    image[INCOMPAT] |= RECOVER;
    all(image);
}

/// The sound structures, to start from.
pub fn seeds() -> [(&'static str, Vec<u8>); 5] {
    let image = base(Journal::None);
    let part = |at: usize, length: usize| image[at..at + length].to_vec();
    let block = |magic: &[u8]| {
        let found = image
            .chunks(BLOCK)
            .position(|block| block.starts_with(magic));
        part(found.expect("it was made") * BLOCK, BLOCK)
    };
    let names = find(image, b"a_name_in_an_indexed_directory_7_");
    let fragmented = inode_at(image, b"fragmented");
    let attributes = inode_at(image, b"attributes");
    let journaled = base(Journal::Default);
    let magic = [0xc0, 0x3b, 0x39, 0x98];
    let log = journaled
        .chunks(BLOCK)
        .position(|block| block[..4] == magic);
    let log = log.expect("a journal") * BLOCK;
    let log = [
        &journaled[log + 12..log + 108],
        &journaled[log + BLOCK..log + 9 * BLOCK],
    ]
    .concat();
    [
        ("ext4_superblock", part(1024, 1024)),
        ("ext4_directory", part(names, 2 * BLOCK)),
        (
            "ext4_extents",
            [part(fragmented + 40, 60), block(&[0x0a, 0xf3])].concat(),
        ),
        (
            "ext4_xattrs",
            [part(attributes + 160, 96), block(&[0, 0, 2, 0xea])].concat(),
        ),
        ("ext4_journal", log),
    ]
}

fn overwrite(image: &mut [u8], at: usize, bytes: &[u8], most: usize) {
    let length = bytes.len().min(most).min(image.len() - at);
    image[at..at + length].copy_from_slice(&bytes[..length]);
}

/// The start of the block with some bytes.
fn find(image: &[u8], needle: &[u8]) -> usize {
    let found = image
        .windows(needle.len())
        .position(|bytes| bytes == needle);
    found.expect("it was written") / BLOCK * BLOCK
}

/// Where the inode of a file in the root directory lies.
fn inode_at(image: &[u8], name: &[u8]) -> usize {
    let mut filesystem = Ext4::open_read_only(Memory::from(image.to_vec()), Options::default())
        .expect("it is sound");
    let ino = filesystem.lookup(ROOT, name).expect("it was made");
    // Group 0's table: its descriptor follows the superblock's block.
    let table = u32::from_le_bytes(image[BLOCK + 8..BLOCK + 12].try_into().expect("four"));
    table as usize * BLOCK + (ino as usize - 1) * 256
}

/// A small filesystem with one of each.
fn base(journal: Journal) -> &'static [u8] {
    static PLAIN: OnceLock<Vec<u8>> = OnceLock::new();
    static JOURNALED: OnceLock<Vec<u8>> = OnceLock::new();
    let place = match journal {
        Journal::None => &PLAIN,
        _ => &JOURNALED,
    };
    place.get_or_init(|| sound(journal).expect("a sound filesystem"))
}

fn options() -> Options {
    Options {
        page_cache: 1 << 20,
        block_cache: 1 << 20,
        clock: || Timestamp {
            seconds: 1_700_000_000,
            nanos: 0,
        },
        ..Options::default()
    }
}

fn sound(journal: Journal) -> Result<Vec<u8>> {
    let size = match journal {
        Journal::None => 2 << 20,
        _ => 8 << 20,
    };
    let mut device = Memory::new(size);
    let wanted = make::Options {
        uuid: [5; 16],
        label: *b"fuzz\0\0\0\0\0\0\0\0\0\0\0\0",
        time: 1_700_000_000,
        inodes: Some(256),
        journal,
        reserved: 0,
    };
    make(&mut device, size as u64, &wanted).expect("it has room");
    let mut image = device.into_bytes();
    image[RO_COMPAT + 1] &= !METADATA_CSUM;
    // The only group's flags, and its count of unused inodes: they need checksums.
    image[BLOCK + 0x12..BLOCK + 0x14].fill(0);
    image[BLOCK + 0x1c..BLOCK + 0x20].fill(0);
    let mut filesystem = Ext4::open(Memory::from(image), options())?;
    let many = filesystem.mkdir(ROOT, b"many", Owner::root(0o755))?;
    for number in 0..150 {
        let name = format!("a_name_in_an_indexed_directory_{number}_{}", "x".repeat(30));
        filesystem.mknod(
            many,
            name.as_bytes(),
            FileKind::Fifo,
            (0, 0),
            Owner::root(0o600),
        )?;
    }
    let fragmented = filesystem.create(ROOT, b"fragmented", Owner::root(0o644))?;
    for index in 0..20 {
        filesystem.write(fragmented, index * 3 * BLOCK as u64, b"island")?;
    }
    let attributes = filesystem.create(ROOT, b"attributes", Owner::root(0o644))?;
    for (name, length) in [
        (&b"user.small"[..], 20),
        (b"user.large", 900),
        (b"user.more", 700),
    ] {
        filesystem.set_xattr(attributes, name, &vec![b'v'; length], SetXattr::Any)?;
    }
    filesystem.symlink(ROOT, b"link", b"many/somewhere", Owner::root(0o777))?;
    let image = filesystem.close()?.into_bytes();
    assert_eq!(check(&Memory::from(image.clone())), []);
    Ok(image)
}

/// Does everything. If the check finds nothing wrong, everything must work, and the check must
/// find nothing wrong afterwards.
fn all(image: Vec<u8>) {
    let device = Memory::from(image);
    let clean = check(&device).is_empty();
    if let Ok(mut filesystem) = Ext4::open_read_only(device.clone(), options()) {
        let walked = walk(&mut filesystem);
        assert!(!clean || walked.is_ok(), "clean, but {walked:?}");
    }
    let Ok(mut filesystem) = Ext4::open(device, options()) else {
        return;
    };
    let changed = change(&mut filesystem);
    let full = matches!(&changed, Err(error) if error.errno() == micabox_ext4::Errno::NoSpace);
    let Ok(device) = filesystem.close() else {
        return;
    };
    if clean {
        assert!(changed.is_ok() || full, "clean, but {changed:?}");
        assert_eq!(check(&device), [], "it was clean before");
    }
}

/// Reads metadata, and the start of each file.
fn walk(filesystem: &mut Ext4<Memory>) -> Result<()> {
    let mut pending: Vec<Ino> = vec![ROOT];
    let mut seen = 0;
    let mut buffer = vec![0; 3 * BLOCK];
    while let Some(directory) = pending.pop() {
        for entry in filesystem.read_dir(directory)? {
            seen += 1;
            if seen > ENTRIES_MAX {
                return Ok(());
            }
            let found = filesystem.lookup(directory, &entry.name)?;
            let stat = filesystem.stat(found)?;
            for name in filesystem.xattr_names(found)? {
                filesystem.xattr(found, &name)?;
            }
            match stat.kind() {
                Some(FileKind::Directory) => pending.push(found),
                Some(FileKind::File) => {
                    filesystem.read(found, 0, &mut buffer)?;
                    filesystem.read(found, stat.size.saturating_sub(10), &mut buffer)?;
                    filesystem.segments(found)?;
                }
                Some(FileKind::Symlink) => {
                    filesystem.read_link(found)?;
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Changes what was replaced, and makes new things.
fn change(filesystem: &mut Ext4<Memory>) -> Result<()> {
    let owner = Owner::root(0o644);
    let new = filesystem.create(ROOT, b"new", owner)?;
    filesystem.write(new, 5 * BLOCK as u64, &[7; 2 * BLOCK])?;
    if let Ok(many) = filesystem.resolve(b"/many") {
        for number in 0..20 {
            let name = format!(
                "another_name_that_makes_blocks_split_{number}_{}",
                "y".repeat(60)
            );
            filesystem.create(many, name.as_bytes(), owner)?;
        }
        for entry in filesystem.read_dir(many)?.iter().take(20) {
            filesystem.unlink(many, &entry.name)?;
        }
    }
    if let Ok(file) = filesystem.resolve_no_follow(b"/fragmented") {
        filesystem.write(file, 4 * BLOCK as u64, &[8; 3 * BLOCK])?;
        filesystem.truncate(file, 10 * BLOCK as u64 + 17)?;
    }
    if let Ok(file) = filesystem.resolve_no_follow(b"/attributes") {
        filesystem.set_xattr(file, b"user.third", &[9; 200], SetXattr::Any)?;
        filesystem.remove_xattr(file, b"user.third")?;
        filesystem.rename(ROOT, b"attributes", ROOT, b"renamed", Rename::Replace)?;
    }
    filesystem.sync()
}
