//! All operations that a program may do with a filesystem, on hostile ones: a sound filesystem in
//! which one structure is replaced. It has no metadata_csum, so that checksums don't hide the rest
//! from the fuzzer.
//!
//! An input's first byte chooses the operation: reading, changing, or checking, followed by both if
//! the check is clean. The rest is the structure. Each target has a sound filesystem of a few
//! blocks with little else in it, which is made once and never copied: replaced and written blocks
//! are kept beside it.

// Tests of crates/ext4 have this file too.
#[path = "ext4/patched.rs"]
mod patched;

use std::sync::OnceLock;

use micabox_ext4::check::check;
use micabox_ext4::device::Memory;
use micabox_ext4::format::features::{compat, incompat, ro_compat};
use micabox_ext4::format::superblock::{SUPERBLOCK_OFFSET, Superblock};
use micabox_ext4::format::{fields, journal as log};
use micabox_ext4::mkfs::{self, Journal, mkfs};
use micabox_ext4::{
    BlockDevice, Errno, Ext4, FileKind, Ino, Options, Owner, ROOT, Rename, Result, SetXattr,
    Timestamp,
};

use patched::{Disk, NONE, Patch};

const BLOCK: usize = 4096;
const INODES: u64 = 16;
/// Bytes of a filesystem that holds all of this.
const SIZE: usize = 64 * BLOCK;
/// The same with a log, which has at least 64 blocks.
const JOURNALED_SIZE: usize = SIZE + LOG * BLOCK;
const LOG: usize = 72;
/// Blocks of the log that an input may set.
const LOGGED: usize = 8;
/// Names in the indexed directory: enough for two leaf blocks below the root.
const NAMES: usize = 24;

/// The operation on a filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Read,
    Change,
    /// A filesystem that the check finds clean can be read and changed, and is clean afterwards.
    Check,
}

/// Splits an input: the operation, and the structure in pieces of these lengths.
fn parts<const N: usize>(input: &[u8], lengths: [usize; N]) -> (Operation, [&[u8]; N]) {
    let (first, mut rest) = input.split_first().unwrap_or((&0, &[]));
    let operation = [Operation::Read, Operation::Change, Operation::Check][usize::from(first % 3)];
    let parts = lengths.map(|length| {
        let (part, behind) = rest.split_at(rest.len().min(length));
        rest = behind;
        part
    });
    (operation, parts)
}

/// Replaces the superblock.
pub fn superblock(input: &[u8]) {
    let sound = with_all();
    let (operation, [bytes]) = parts(input, [Superblock::SIZE]);
    let mut raw = [0; Superblock::SIZE];
    raw.copy_from_slice(&sound.image[1024..2048]);
    raw[..bytes.len()].copy_from_slice(bytes);
    let features: u32 = fields::get(&raw, RO_COMPAT);
    fields::put(&mut raw, RO_COMPAT, features & !ro_compat::METADATA_CSUM);
    let disk = Disk::new(&sound.image, [(1024, &raw), NONE, NONE]);
    perform(operation, disk, walk, new_file);
}

/// Replaces parts of a directory with an index: its root, and one of its two leaves.
pub fn directory(input: &[u8]) {
    let sound = with_names();
    let (operation, [root, leaf]) = parts(input, [BLOCK; 2]);
    let disk = Disk::new(&sound.image, sound.patches([root, leaf, &[]]));
    let many = sound.file;
    perform(
        operation,
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
            let target = filesystem.lookup(ROOT, b"fifo")?;
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

/// Replaces an inode's extents, and a leaf of the tree.
pub fn extents(input: &[u8]) {
    let sound = with_islands();
    let (operation, [root, leaf]) = parts(input, [60, BLOCK]);
    let disk = Disk::new(&sound.image, sound.patches([root, leaf, &[]]));
    let file = sound.file;
    perform(
        operation,
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

/// Replaces attributes in an inode and in a block.
pub fn xattrs(input: &[u8]) {
    let sound = with_attributes();
    let (operation, [body, block]) = parts(input, [96, BLOCK]);
    let disk = Disk::new(&sound.image, sound.patches([body, block, &[]]));
    let file = sound.file;
    perform(
        operation,
        disk,
        |filesystem| {
            for name in filesystem.xattr_names(file)?.iter().take(8) {
                match filesystem.xattr(file, name) {
                    // Invalid names, such as a prefix alone; and lists that Linux would not accept
                    // either, or data that only looks like a list.
                    Err(error) if error.errno() == Errno::NotSupported => {}
                    Err(error) if is_systems(name) && unusable(&error) => {}
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

/// Replaces a log to be replayed: its superblock's fields, then its blocks. The result must be the
/// same in memory and on disk.
pub fn journal(input: &[u8]) {
    let sound = with_log();
    let (operation, [head, blocks]) = parts(input, [96, LOGGED * BLOCK]);
    let log = sound.parts[0];
    let mut raw = sound.image[log..log + 108].to_vec();
    raw[12..12 + head.len()].copy_from_slice(head);
    // The block size must be right, or the rest is never examined.
    fields::put_be(&mut raw, 12, BLOCK as u32);
    let disk = Disk::new(&sound.image, sound.patches([&raw, blocks, &[]]));
    let list = |result: Result<Vec<_>>| result.map_err(|error| error.errno());
    let read = |disk| {
        let mut reader = Ext4::open_read_only(disk, options()).ok()?;
        Some(list(reader.read_dir(ROOT)))
    };
    let in_memory = match operation {
        Operation::Read => return drop(read(disk)),
        Operation::Change => None,
        Operation::Check => match read(disk.clone()) {
            None => return,
            names => names,
        },
    };
    let Ok(mut writer) = Ext4::open(disk, options()) else {
        return;
    };
    // Opening deletes orphans, which changes anything where structures overlap.
    if let Some(names) = in_memory.filter(|_| !has_orphans(writer.device())) {
        let on_disk = list(writer.read_dir(ROOT));
        assert_eq!(names, on_disk, "replayed in memory and on disk");
    }
    let _ = new_file(&mut writer);
    let _ = writer.close();
}

/// Whether a filesystem without checksums has a list or a file of orphans.
fn has_orphans(disk: &Disk<'_>) -> bool {
    let mut raw = [0; Superblock::SIZE];
    if disk.read_at(SUPERBLOCK_OFFSET, &mut raw).is_err() {
        return true;
    }
    let superblock = Superblock::decode(&raw);
    superblock.last_orphan != 0 || superblock.has_ro_compat(ro_compat::ORPHAN_PRESENT)
}

/// The sound structures as seeds, for each operation.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let part = |sound: &Sound, lengths: &[usize]| -> Vec<u8> {
        let parts = sound.parts.iter().zip(lengths);
        let parts: Vec<&[u8]> = parts
            .map(|(&at, &length)| &sound.image[at..at + length])
            .collect();
        parts.concat()
    };
    let structures = [
        ("ext4_superblock", with_all().image[1024..2048].to_vec()),
        ("ext4_directory", part(with_names(), &[BLOCK; 2])),
        ("ext4_extents", part(with_islands(), &[60, 96])),
        ("ext4_xattrs", part(with_attributes(), &[96, BLOCK])),
        ("ext4_journal", transactions()),
    ];
    let mut seeds = Vec::new();
    for (target, structure) in structures {
        for operation in 0..3 {
            seeds.push((target, [&[operation], &structure[..]].concat()));
        }
    }
    seeds
}

/// Returns a log's superblock and blocks after a crash.
fn transactions() -> Vec<u8> {
    let sound = with_log();
    let mut image = sound.image.clone();
    image[INCOMPAT] &= !RECOVER;
    let mut filesystem = Ext4::open(Memory::from(image), options()).expect("it is sound");
    new_file(&mut filesystem).expect("there is room");
    let image = filesystem.abandon().into_bytes();
    let log = sound.parts[0];
    let end = log + (1 + LOGGED) * BLOCK;
    [&image[log + 12..log + 108], &image[log + BLOCK..end]].concat()
}

/// Offsets of `s_feature_ro_compat` in a superblock and of `s_feature_incompat` in an image, and
/// the latter's bit for a log to be replayed.
const RO_COMPAT: usize = 0x64;
const INCOMPAT: usize = SUPERBLOCK_OFFSET as usize + 0x60;
const RECOVER: u8 = incompat::RECOVER as u8;

/// A sound filesystem, and the place of its structure.
struct Sound {
    image: Vec<u8>,
    /// The inode that has the structure.
    file: Ino,
    /// Offsets at which its parts start.
    parts: Vec<usize>,
}

impl Sound {
    fn new(image: Vec<u8>, file: Ino, parts: Vec<usize>) -> Self {
        assert_eq!(check(&Disk::new(&image, [NONE; 3])), []);
        Self { image, file, parts }
    }

    /// Returns the patches that replace the parts.
    fn patches<'i>(&self, parts: [&'i [u8]; 3]) -> [Patch<'i>; 3] {
        let mut places = self.parts.iter();
        parts.map(|part| places.next().map_or(NONE, |&at| (at, part)))
    }
}

/// A filesystem with a file, attributes and a symbolic link.
fn with_all() -> &'static Sound {
    static SOUND: OnceLock<Sound> = OnceLock::new();
    SOUND.get_or_init(|| {
        let mut filesystem = new(SIZE);
        attributes(&mut filesystem).expect("there is room");
        let file = filesystem.create(ROOT, b"file", Owner::root(0o644));
        let written = filesystem.write(file.expect("there is room"), 0, b"a few bytes");
        written.expect("there is room");
        let target = b"many/somewhere";
        let link = filesystem.symlink(ROOT, b"link", target, Owner::root(0o777));
        link.expect("there is room");
        Sound::new(image(filesystem), ROOT, vec![1024])
    })
}

fn with_names() -> &'static Sound {
    static SOUND: OnceLock<Sound> = OnceLock::new();
    SOUND.get_or_init(|| {
        let mut filesystem = new(SIZE);
        let many = names(&mut filesystem).expect("there is room");
        let image = image(filesystem);
        // The index's root block has the directory's `.` entry, and no names.
        let mut root = u32::to_le_bytes(many).to_vec();
        root.extend([12, 0, 1, 2, b'.']);
        let blocks = image.chunks(BLOCK).enumerate();
        let named = blocks.filter(|(_, block)| {
            let name = b"a_name_in_an_indexed_directory";
            block.windows(name.len()).any(|bytes| bytes == name)
        });
        let leaves = named.map(|(number, _)| number * BLOCK);
        let parts: Vec<_> = [find(&image, &root)].into_iter().chain(leaves).collect();
        assert_eq!(parts.len(), 3);
        Sound::new(image, many, parts)
    })
}

fn with_islands() -> &'static Sound {
    static SOUND: OnceLock<Sound> = OnceLock::new();
    SOUND.get_or_init(|| {
        let mut filesystem = new(SIZE);
        let file = islands(&mut filesystem).expect("there is room");
        let image = image(filesystem);
        let parts = vec![inode_at(&image, file) + 40, find(&image, &[0x0a, 0xf3])];
        Sound::new(image, file, parts)
    })
}

fn with_attributes() -> &'static Sound {
    static SOUND: OnceLock<Sound> = OnceLock::new();
    SOUND.get_or_init(|| {
        let mut filesystem = new(SIZE);
        let file = attributes(&mut filesystem).expect("there is room");
        let image = image(filesystem);
        let block = find(&image, &[0, 0, 2, 0xea]);
        let parts = vec![inode_at(&image, file) + 160, block];
        Sound::new(image, file, parts)
    })
}

/// A filesystem with a short log to be replayed, in a file that became the journal.
fn with_log() -> &'static Sound {
    static SOUND: OnceLock<Sound> = OnceLock::new();
    SOUND.get_or_init(|| {
        let mut filesystem = new(JOURNALED_SIZE);
        let file = filesystem.create(ROOT, b"log", Owner::root(0o600));
        let file = file.expect("there is room");
        let zeros = filesystem.write(file, 0, &vec![b'L'; LOG * BLOCK]);
        zeros.expect("there is room");
        let mut image = image(filesystem);
        let log = find(&image, &[b'L'; BLOCK]);
        image[log..log + LOG * BLOCK].fill(0);
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
        journal.encode_into(&mut image[log..]);
        let raw = &mut image[1024..2048];
        let mut superblock = Superblock::decode(raw);
        superblock.feature_compat |= compat::HAS_JOURNAL;
        superblock.journal_inode = file;
        superblock.encode_into(raw);
        let mut sound = Sound::new(image, file, vec![log, log + BLOCK]);
        sound.image[INCOMPAT] |= RECOVER;
        sound
    })
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

/// Creates an empty filesystem.
fn new(size: usize) -> Ext4<Memory> {
    let mut device = Memory::new(size);
    let wanted = mkfs::Options {
        uuid: [5; 16],
        label: *b"fuzz\0\0\0\0\0\0\0\0\0\0\0\0",
        time: 1_700_000_000,
        inodes: Some(INODES),
        journal: Journal::None,
        reserved: 0,
    };
    mkfs(&mut device, size as u64, &wanted).expect("it has room");
    let mut image = device.into_bytes();
    let raw = &mut image[1024..2048];
    let mut superblock = Superblock::decode(raw);
    superblock.feature_ro_compat &= !ro_compat::METADATA_CSUM;
    superblock.encode_into(raw);
    // The only group's flags and its count of unused inodes, which need checksums.
    image[BLOCK + 0x12..BLOCK + 0x14].fill(0);
    image[BLOCK + 0x1c..BLOCK + 0x20].fill(0);
    Ext4::open(Memory::from(image), options()).expect("it is sound")
}

fn attributes(filesystem: &mut Ext4<Memory>) -> Result<Ino> {
    let file = filesystem.create(ROOT, b"attributes", Owner::root(0o755))?;
    let values = [
        (&b"user.small"[..], 20),
        (b"user.large", 900),
        (b"user.more", 700),
    ];
    for (name, length) in values {
        filesystem.set_xattr(file, name, &vec![b'v'; length], SetXattr::Any)?;
    }
    Ok(file)
}

fn names(filesystem: &mut Ext4<Memory>) -> Result<Ino> {
    let owner = Owner::root(0o755);
    let many = filesystem.mkdir(ROOT, b"many", owner)?;
    let target = filesystem.mknod(ROOT, b"fifo", FileKind::Fifo, (0, 0), owner)?;
    for number in 0..NAMES {
        let name = format!(
            "a_name_in_an_indexed_directory_{number}_{}",
            "x".repeat(180)
        );
        filesystem.link(target, many, name.as_bytes())?;
    }
    Ok(many)
}

fn islands(filesystem: &mut Ext4<Memory>) -> Result<Ino> {
    let fragmented = filesystem.create(ROOT, b"fragmented", Owner::root(0o755))?;
    for index in 0..6 {
        filesystem.write(fragmented, index * 3 * BLOCK as u64, b"island")?;
    }
    Ok(fragmented)
}

fn image(filesystem: Ext4<Memory>) -> Vec<u8> {
    filesystem.close().expect("there is room").into_bytes()
}

/// Returns the offset of the block that starts with some bytes.
fn find(image: &[u8], start: &[u8]) -> usize {
    let found = image
        .chunks(BLOCK)
        .position(|block| block.starts_with(start));
    found.expect("it was made") * BLOCK
}

fn inode_at(image: &[u8], ino: Ino) -> usize {
    // Group 0's table: its descriptor is in the block after the superblock's.
    let table: u32 = fields::get(image, BLOCK + 8);
    table as usize * BLOCK + (ino as usize - 1) * 256
}

fn perform<'i>(
    operation: Operation,
    disk: Disk<'i>,
    look: impl FnOnce(&mut Ext4<Disk<'i>>) -> Result<()>,
    change: impl FnOnce(&mut Ext4<Disk<'i>>) -> Result<()>,
) {
    if operation == Operation::Check && !check(&disk).is_empty() {
        return;
    }
    let clean = operation == Operation::Check;
    if operation != Operation::Change
        && let Ok(mut filesystem) = Ext4::open_read_only(disk.clone(), options())
    {
        let looked = look(&mut filesystem);
        assert!(!clean || looked.is_ok(), "clean, but {looked:?}");
    }
    if operation == Operation::Read {
        return;
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

/// Accepts that a name does not exist.
fn absent(found: Result<Ino>) -> Result<()> {
    match found {
        Err(error) if error.errno() == Errno::NotFound => Ok(()),
        other => other.map(drop),
    }
}

/// Whether a name is, or begins like, one that is itself a prefix: an access control list's.
fn is_systems(name: &[u8]) -> bool {
    name.starts_with(b"system.")
}

fn unusable(error: &micabox_ext4::Error) -> bool {
    let errno = error.errno();
    [Errno::Corrupt, Errno::NoAttribute].contains(&errno)
}
