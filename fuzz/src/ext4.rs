//! What a program may do with a filesystem, done to hostile ones: a sound one in which one
//! structure is replaced. Without metadata_csum, so that checksums don't keep the rest from being
//! looked at.
//!
//! The sound one is a few blocks, is made once, and is never copied: what is replaced and what is
//! written lies beside it. Each target looks at its structure only.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use micabox_ext4::check::check;
use micabox_ext4::device::Memory;
use micabox_ext4::format::features::{compat, incompat, ro_compat};
use micabox_ext4::format::superblock::{SUPERBLOCK_OFFSET, Superblock};
use micabox_ext4::format::{fields, journal as log};
use micabox_ext4::make::{self, Journal, make};
use micabox_ext4::{
    BlockDevice, DeviceError, Errno, Ext4, FileKind, Ino, Options, Owner, ROOT, Rename, Result,
    SetXattr, Timestamp,
};

const BLOCK: usize = 4096;
const INODES: u64 = 32;
/// What all of it needs, and no more.
const SIZE: usize = 64 * BLOCK;
/// With a log, which is no shorter than 64 blocks.
const JOURNALED_SIZE: usize = SIZE + LOG * BLOCK;
const LOG: usize = 72;
/// Names in the indexed directory: enough for two blocks below the root.
const NAMES: usize = 90;

/// A superblock.
pub fn superblock(bytes: &[u8]) {
    let sound = base();
    let mut raw = [0; Superblock::SIZE];
    raw.copy_from_slice(&sound.image[1024..2048]);
    let length = bytes.len().min(raw.len());
    raw[..length].copy_from_slice(&bytes[..length]);
    let mut superblock = Superblock::decode(&raw);
    superblock.feature_ro_compat &= !ro_compat::METADATA_CSUM;
    superblock.encode_into(&mut raw);
    let disk = Disk::new(&sound.image).with(1024, &raw);
    both(disk, walk, new_file);
}

/// A directory with an index: its first blocks.
pub fn directory(bytes: &[u8]) {
    let sound = base();
    let disk = sound.directory.iter().zip(bytes.chunks(BLOCK));
    let disk = disk.fold(Disk::new(&sound.image), |disk, (&at, bytes)| {
        disk.with(at, bytes)
    });
    let many = sound.many;
    both(
        disk,
        |filesystem| {
            let names = filesystem.read_dir(many)?;
            for entry in names.iter().step_by(16) {
                filesystem.lookup(many, &entry.name)?;
            }
            absent(filesystem.lookup(many, b"absent"))
        },
        |filesystem| {
            let names = filesystem.read_dir(many)?;
            let target = filesystem.lookup(ROOT, b"attributes")?;
            for number in 0..3 {
                let name = format!("another_{number}_{}", "y".repeat(200));
                filesystem.link(target, many, name.as_bytes())?;
            }
            for entry in names.iter().step_by(32) {
                filesystem.unlink(many, &entry.name)?;
            }
            filesystem.sync()
        },
    );
}

/// An inode with its extents, and a leaf of the tree.
pub fn extents(bytes: &[u8]) {
    let sound = base();
    let (root, leaf) = bytes.split_at(bytes.len().min(60));
    let disk = Disk::new(&sound.image)
        .with(sound.inode_at(sound.fragmented) + 40, root)
        .with(sound.leaf, &leaf[..leaf.len().min(BLOCK)]);
    let file = sound.fragmented;
    both(
        disk,
        |filesystem| {
            let mut buffer = [0; 100];
            for segment in filesystem.segments(file)?.iter().take(8) {
                filesystem.read(file, segment.offset, &mut buffer)?;
            }
            Ok(())
        },
        |filesystem| {
            filesystem.write(file, 4 * BLOCK as u64, &[8; 100])?;
            filesystem.truncate(file, 7 * BLOCK as u64 + 17)?;
            filesystem.sync()
        },
    );
}

/// Attributes in an inode and in a block.
pub fn xattrs(bytes: &[u8]) {
    let sound = base();
    let (body, block) = bytes.split_at(bytes.len().min(96));
    let disk = Disk::new(&sound.image)
        .with(sound.inode_at(sound.attributes) + 160, body)
        .with(sound.xattr_block, &block[..block.len().min(BLOCK)]);
    let file = sound.attributes;
    both(
        disk,
        |filesystem| {
            for name in filesystem.xattr_names(file)?.iter().take(8) {
                match filesystem.xattr(file, name) {
                    // Lists that Linux would not take either.
                    Err(error) if error.errno() == Errno::Corrupt && is_acl(name) => {}
                    other => drop(other?),
                }
            }
            Ok(())
        },
        |filesystem| {
            filesystem.set_xattr(file, b"user.third", &[9; 200], SetXattr::Any)?;
            filesystem.remove_xattr(file, b"user.third")?;
            filesystem.rename(ROOT, b"attributes", ROOT, b"renamed", Rename::Replace)?;
            filesystem.sync()
        },
    );
}

/// A log that is to be replayed: its superblock's fields, then its blocks. In memory and on disk,
/// the same comes out.
pub fn journal(bytes: &[u8]) {
    let sound = journaled();
    let (head, blocks) = bytes.split_at(bytes.len().min(96));
    let mut raw = sound.image[sound.log..sound.log + 108].to_vec();
    raw[12..12 + head.len()].copy_from_slice(head);
    // What the block size must be, or the rest is never looked at.
    fields::put_be(&mut raw, 12, BLOCK as u32);
    let length = blocks.len().min((LOG - 1) * BLOCK);
    let disk = Disk::new(&sound.image)
        .with(sound.log, &raw)
        .with(sound.log + BLOCK, &blocks[..length]);
    let Ok(mut reader) = Ext4::open_read_only(disk.clone(), options()) else {
        return;
    };
    let Ok(mut writer) = Ext4::open(disk, options()) else {
        return;
    };
    let list = |result: Result<Vec<_>>| result.map_err(|error| error.errno());
    let (one, other) = (list(reader.read_dir(ROOT)), list(writer.read_dir(ROOT)));
    assert_eq!(one, other, "replayed in memory and on disk");
    let _ = new_file(&mut writer);
    let _ = writer.close();
}

/// The sound structures, to start from.
pub fn seeds() -> [(&'static str, Vec<u8>); 5] {
    let sound = base();
    let part = |at: usize, length: usize| &sound.image[at..at + length];
    let directory: Vec<_> = sound.directory.iter().map(|&at| part(at, BLOCK)).collect();
    let extents = [
        part(sound.inode_at(sound.fragmented) + 40, 60),
        part(sound.leaf, 96),
    ];
    let inode = sound.inode_at(sound.attributes);
    let xattrs = [part(inode + 160, 96), part(sound.xattr_block, BLOCK)];
    [
        ("ext4_superblock", part(1024, 1024).to_vec()),
        ("ext4_directory", directory.concat()),
        ("ext4_extents", extents.concat()),
        ("ext4_xattrs", xattrs.concat()),
        ("ext4_journal", transactions()),
    ]
}

/// A log's superblock and blocks after a crash.
fn transactions() -> Vec<u8> {
    let sound = journaled();
    let mut image = sound.image.clone();
    image[INCOMPAT] &= !RECOVER;
    let mut filesystem = Ext4::open(Memory::from(image), options()).expect("it is sound");
    new_file(&mut filesystem).expect("there is room");
    filesystem.unlink(ROOT, b"new").expect("it was made");
    filesystem.sync().expect("there is room");
    let image = filesystem.abandon().into_bytes();
    let end = sound.log + 12 * BLOCK;
    [
        &image[sound.log + 12..sound.log + 108],
        &image[sound.log + BLOCK..end],
    ]
    .concat()
}

/// Byte of `s_feature_incompat` with the bit that says that there is a log to replay.
const INCOMPAT: usize = SUPERBLOCK_OFFSET as usize + 0x60;
const RECOVER: u8 = incompat::RECOVER as u8;

/// A sound filesystem, and where its structures are.
struct Sound {
    image: Vec<u8>,
    many: Ino,
    fragmented: Ino,
    attributes: Ino,
    /// Bytes at which things start: blocks of the directory, the extent tree's leaf, the block of
    /// attributes, the log.
    directory: Vec<usize>,
    leaf: usize,
    xattr_block: usize,
    log: usize,
}

impl Sound {
    fn inode_at(&self, ino: Ino) -> usize {
        // Group 0's table: its descriptor follows the superblock's block.
        let table: u32 = fields::get(&self.image, BLOCK + 8);
        table as usize * BLOCK + (ino as usize - 1) * 256
    }
}

fn base() -> &'static Sound {
    static SOUND: OnceLock<Sound> = OnceLock::new();
    SOUND.get_or_init(|| {
        let sound = sound(SIZE).expect("a sound filesystem");
        assert_eq!(check(&Disk::new(&sound.image)), []);
        sound
    })
}

/// The same with a log that is to be replayed.
fn journaled() -> &'static Sound {
    static SOUND: OnceLock<Sound> = OnceLock::new();
    SOUND.get_or_init(|| with_log().expect("a sound filesystem"))
}

fn options() -> Options {
    Options {
        page_cache: 64 << 10,
        block_cache: 256 << 10,
        clock: || Timestamp {
            seconds: 1_700_000_000,
            nanos: 0,
        },
        ..Options::default()
    }
}

fn sound(size: usize) -> Result<Sound> {
    let mut device = Memory::new(size);
    let wanted = make::Options {
        uuid: [5; 16],
        label: *b"fuzz\0\0\0\0\0\0\0\0\0\0\0\0",
        time: 1_700_000_000,
        inodes: Some(INODES),
        journal: Journal::None,
        reserved: 0,
    };
    make(&mut device, size as u64, &wanted).expect("it has room");
    let mut image = device.into_bytes();
    let raw = &mut image[1024..2048];
    let mut superblock = Superblock::decode(raw);
    superblock.feature_ro_compat &= !ro_compat::METADATA_CSUM;
    superblock.encode_into(raw);
    // The only group's flags, and its count of unused inodes: they need checksums.
    image[BLOCK + 0x12..BLOCK + 0x14].fill(0);
    image[BLOCK + 0x1c..BLOCK + 0x20].fill(0);
    let mut filesystem = Ext4::open(Memory::from(image), options())?;
    let owner = Owner::root(0o755);
    let attributes = filesystem.create(ROOT, b"attributes", owner)?;
    let values = [
        (&b"user.small"[..], 20),
        (b"user.large", 900),
        (b"user.more", 700),
    ];
    for (name, length) in values {
        filesystem.set_xattr(attributes, name, &vec![b'v'; length], SetXattr::Any)?;
    }
    let many = filesystem.mkdir(ROOT, b"many", owner)?;
    let target = filesystem.mknod(ROOT, b"fifo", FileKind::Fifo, (0, 0), owner)?;
    for number in 0..NAMES {
        let name = format!("a_name_in_an_indexed_directory_{number}_{}", "x".repeat(30));
        filesystem.link(target, many, name.as_bytes())?;
    }
    let fragmented = filesystem.create(ROOT, b"fragmented", owner)?;
    for index in 0..6 {
        filesystem.write(fragmented, index * 3 * BLOCK as u64, b"island")?;
    }
    filesystem.symlink(ROOT, b"link", b"many/somewhere", Owner::root(0o777))?;
    let image = filesystem.close()?.into_bytes();
    let find = |start: &[u8]| {
        let found = image
            .chunks(BLOCK)
            .position(|block| block.starts_with(start));
        found.expect("it was made") * BLOCK
    };
    let blocks = image.chunks(BLOCK).enumerate();
    let names = blocks.filter(|(_, block)| {
        let name = b"a_name_in_an_indexed_directory";
        block.windows(name.len()).any(|bytes| bytes == name)
    });
    // The root of the index has `.` of this directory, and no name.
    let mut root = u32::to_le_bytes(many).to_vec();
    root.extend([12, 0, 1, 2, b'.']);
    let directory = [find(&root)]
        .into_iter()
        .chain(names.map(|(number, _)| number * BLOCK));
    Ok(Sound {
        many,
        fragmented,
        attributes,
        directory: directory.collect(),
        leaf: find(&[0x0a, 0xf3]),
        xattr_block: find(&[0, 0, 2, 0xea]),
        log: 0,
        image,
    })
}

/// A short log, in a file that becomes the journal.
fn with_log() -> Result<Sound> {
    let mut sound = sound(JOURNALED_SIZE)?;
    let mut filesystem = Ext4::open(Memory::from(sound.image), options())?;
    let file = filesystem.create(ROOT, b"log", Owner::root(0o600))?;
    filesystem.write(file, 0, &vec![b'L'; LOG * BLOCK])?;
    sound.image = filesystem.close()?.into_bytes();
    let start = sound
        .image
        .chunks(BLOCK)
        .position(|block| block == [b'L'; BLOCK]);
    sound.log = start.expect("it was written") * BLOCK;
    sound.image[sound.log..sound.log + LOG * BLOCK].fill(0);
    let journal = log::Superblock {
        magic: log::MAGIC,
        block_type: log::SUPERBLOCK_V2,
        block_size: BLOCK as u32,
        blocks: LOG as u32,
        first: 1,
        sequence: 1,
        users: 1,
        ..log::Superblock::default()
    };
    journal.encode_into(&mut sound.image[sound.log..]);
    let raw = &mut sound.image[1024..2048];
    let mut superblock = Superblock::decode(raw);
    superblock.feature_compat |= compat::HAS_JOURNAL;
    superblock.journal_inode = file;
    superblock.encode_into(raw);
    assert_eq!(check(&Disk::new(&sound.image)), []);
    sound.image[INCOMPAT] |= RECOVER;
    Ok(sound)
}

/// A sound image with some bytes replaced, and blocks written since.
#[derive(Clone)]
struct Disk<'i> {
    image: &'i [u8],
    blocks: BTreeMap<u64, Vec<u8>>,
}

impl<'i> Disk<'i> {
    fn new(image: &'i [u8]) -> Self {
        Self {
            image,
            blocks: BTreeMap::new(),
        }
    }

    fn with(mut self, at: usize, bytes: &[u8]) -> Self {
        let length = bytes.len().min(self.image.len() - at);
        self.write_at(at as u64, &bytes[..length])
            .expect("it is in range");
        self
    }

    fn fits(&self, offset: u64, length: usize) -> std::result::Result<(), DeviceError> {
        let size = self.image.len() as u64;
        match offset.checked_add(length as u64) {
            Some(end) if end <= size => Ok(()),
            _ => Err(DeviceError::OutOfRange {
                offset,
                length: length as u64,
                size,
            }),
        }
    }
}

impl BlockDevice for Disk<'_> {
    fn size(&self) -> std::result::Result<u64, DeviceError> {
        Ok(self.image.len() as u64)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::result::Result<(), DeviceError> {
        self.fits(offset, buf.len())?;
        let start = offset as usize;
        buf.copy_from_slice(&self.image[start..start + buf.len()]);
        let blocks = offset / BLOCK as u64..(offset + buf.len() as u64).div_ceil(BLOCK as u64);
        for (number, block) in self.blocks.range(blocks) {
            let first = *number as usize * BLOCK;
            let (from, to) = (start.max(first), (start + buf.len()).min(first + BLOCK));
            buf[from - start..to - start].copy_from_slice(&block[from - first..to - first]);
        }
        Ok(())
    }

    fn write_at(&mut self, offset: u64, buf: &[u8]) -> std::result::Result<(), DeviceError> {
        self.fits(offset, buf.len())?;
        let mut at = offset as usize;
        let mut rest = buf;
        while !rest.is_empty() {
            let (number, within) = (at / BLOCK, at % BLOCK);
            let count = rest.len().min(BLOCK - within);
            let image = self.image;
            let block = self
                .blocks
                .entry(number as u64)
                .or_insert_with(|| image[number * BLOCK..(number + 1) * BLOCK].to_vec());
            block[within..within + count].copy_from_slice(&rest[..count]);
            at += count;
            rest = &rest[count..];
        }
        Ok(())
    }

    fn flush(&mut self) -> std::result::Result<(), DeviceError> {
        Ok(())
    }
}

/// Looks, then changes. If the check finds nothing wrong, both must work, and the check must find
/// nothing wrong afterwards.
fn both<'i>(
    disk: Disk<'i>,
    look: impl FnOnce(&mut Ext4<Disk<'i>>) -> Result<()>,
    change: impl FnOnce(&mut Ext4<Disk<'i>>) -> Result<()>,
) {
    let clean = check(&disk).is_empty();
    if let Ok(mut filesystem) = Ext4::open_read_only(disk.clone(), options()) {
        let looked = look(&mut filesystem);
        assert!(!clean || looked.is_ok(), "clean, but {looked:?}");
    }
    let Ok(mut filesystem) = Ext4::open(disk, options()) else {
        return;
    };
    let changed = change(&mut filesystem);
    let full = matches!(&changed, Err(error) if error.errno() == Errno::NoSpace);
    let Ok(disk) = filesystem.close() else {
        return;
    };
    if clean {
        assert!(changed.is_ok() || full, "clean, but {changed:?}");
        assert_eq!(check(&disk), [], "it was clean before");
    }
}

/// Reads metadata, and the start of each file.
fn walk<D: BlockDevice>(filesystem: &mut Ext4<D>) -> Result<()> {
    let mut buffer = [0; 64];
    for entry in filesystem.read_dir(ROOT)? {
        let found = filesystem.lookup(ROOT, &entry.name)?;
        let stat = filesystem.stat(found)?;
        filesystem.xattr_names(found)?;
        match stat.kind() {
            Some(FileKind::File) => drop(filesystem.read(found, 0, &mut buffer)?),
            Some(FileKind::Symlink) => drop(filesystem.read_link(found)?),
            _ => {}
        }
    }
    Ok(())
}

fn new_file<D: BlockDevice>(filesystem: &mut Ext4<D>) -> Result<()> {
    let new = filesystem.create(ROOT, b"new", Owner::root(0o644))?;
    filesystem.write(new, BLOCK as u64, &[7; 100])?;
    filesystem.sync()
}

/// That a name is not there is an answer.
fn absent(found: Result<Ino>) -> Result<()> {
    match found {
        Err(error) if error.errno() == Errno::NotFound => Ok(()),
        other => other.map(drop),
    }
}

fn is_acl(name: &[u8]) -> bool {
    name.starts_with(b"system.posix_acl")
}
