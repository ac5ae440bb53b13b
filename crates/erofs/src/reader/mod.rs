//! Reads images without trusting any byte: every input results in a tree or an error.
//!
//! Sizes, positions and counts are checked against the length of the image before anything is
//! allocated or read, names must ascend, and walks visit every directory once.

mod clusters;
mod data;
mod directory;
mod walk;
mod xattrs;

use std::ops::Range;

use crate::format::{
    self, COMPACT_SIZE, DEVICE_SLOT_SIZE, DeviceSlot, EXTENDED_SIZE, FileType,
    INCOMPAT_DEVICE_TABLE, INCOMPAT_ZERO_PADDING, INODE_SLOT, InodeFormat, Layout, RawInode,
    SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, Superblock, SuperblockProblem,
};
use crate::source::ReadAt;
use crate::{BLOCK_SIZE, Description, Error, Result};
use micabox_file::Timestamp;
use micabox_file::narrow::in_memory;

pub use self::clusters::{Algorithm, Cluster, Clusters, Place};
pub use self::data::Extent;
pub use self::directory::DirEntry;
pub(crate) use self::walk::Budget;
use self::xattrs::Prefix;
pub(crate) use self::xattrs::SharedXattrs;

/// An image that is being read.
#[derive(Debug)]
pub struct Reader<R> {
    source: R,
    /// Length of the source in bytes: including the devices after the image, if present.
    source_size: u64,
    /// Length of the image itself in bytes.
    size: u64,
    superblock: Superblock,
    devices: Vec<Device>,
    prefixes: Vec<Prefix>,
    /// Whether compressed files are read ([`Reader::clusters`]), not refused.
    with_compressed: bool,
}

/// A device in the table of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its tag, padded with NULs; for a layer the hexadecimal digits of its diff ID.
    pub tag: [u8; 64],
    /// Its length in blocks.
    pub blocks: u32,
    /// Its first block in the address space that all devices share; 0 if it has no position there.
    pub first_block: u32,
}

/// An inode as stored in an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inode {
    /// Its number, which also gives its position.
    pub nid: u64,
    /// Its type.
    pub kind: FileType,
    /// Permission, set-id and sticky bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names.
    pub nlink: u32,
    /// Modification time.
    pub mtime: Timestamp,
    /// Length in bytes of a file's contents, a link's target or a directory's entries; 0 for other
    /// types.
    pub size: u64,
    /// Device number for [`format::decode_device`]; 0 unless the inode is a device.
    pub device: u32,
    layout: Layout,
    /// Start block or chunk format.
    union: u32,
    /// Position of the attributes in bytes.
    xattrs_at: u64,
    /// Their length in bytes.
    xattrs_size: usize,
}

impl Inode {
    /// Returns the position, in bytes, of what follows the attributes.
    fn body_at(&self) -> u64 {
        self.xattrs_at + self.xattrs_size as u64
    }

    fn corrupt(&self, problem: &'static str) -> Error {
        Error::CorruptInode {
            nid: self.nid,
            problem,
        }
    }
}

/// Returns the length in bytes, without padding, of the image that begins with `head`, its first block.
///
/// # Errors
///
/// Those of [`Reader::open`] for the superblock.
pub fn length_of(head: &[u8]) -> Result<u64> {
    let superblock = head.get(in_memory(SUPERBLOCK_OFFSET)..in_memory(BLOCK_SIZE));
    let superblock = decode(superblock.ok_or(Error::NotErofs)?, false)?;
    Ok(u64::from(superblock.blocks) * BLOCK_SIZE)
}

/// Returns where the metadata begins, in bytes, of the image that begins with `head`, its first block. In an image that
/// this crate wrote, metadata is the first block and all from there to the end: before it are files' contents.
///
/// # Errors
///
/// Those of [`Reader::open`] for the superblock.
pub fn metadata_start(head: &[u8]) -> Result<u64> {
    let superblock = head.get(in_memory(SUPERBLOCK_OFFSET)..in_memory(BLOCK_SIZE));
    let superblock = decode(superblock.ok_or(Error::NotErofs)?, false)?;
    let start = match superblock.xattr_block {
        0 => superblock.meta_block,
        shared => superblock.meta_block.min(shared),
    };
    Ok(u64::from(start.min(superblock.blocks)) * BLOCK_SIZE)
}

fn decode(superblock: &[u8], compressed: bool) -> Result<Superblock> {
    Superblock::decode(superblock, compressed).map_err(|problem| match problem {
        SuperblockProblem::Magic => Error::NotErofs,
        SuperblockProblem::Checksum => Error::Corrupt("the superblock's checksum is wrong"),
        SuperblockProblem::Compressed(algorithm) => Error::Compressed(algorithm),
        SuperblockProblem::Unsupported(what) => Error::Unsupported(what),
    })
}

impl<R: ReadAt> Reader<R> {
    /// Opens an image: checks the superblock and reads the table of devices.
    ///
    /// # Errors
    ///
    /// [`Error::NotErofs`], [`Error::Compressed`], [`Error::Unsupported`] with the feature that the image needs,
    /// [`Error::Corrupt`], or [`Error::Read`].
    pub fn open(source: R) -> Result<Self> {
        Self::open_with(source, false)
    }

    /// Opens an image like [`Reader::open`], also one that has prefixes of attributes' names of its own, or compressed
    /// files: only [`Reader::clusters`] reads these.
    ///
    /// # Errors
    ///
    /// Those of [`Reader::open`] but for [`Error::Compressed`].
    pub fn open_compressed(source: R) -> Result<Self> {
        Self::open_with(source, true)
    }

    fn open_with(source: R, with_compressed: bool) -> Result<Self> {
        let source_size = source.size().map_err(Error::Read)?;
        let mut head = [0; in_memory(BLOCK_SIZE - SUPERBLOCK_OFFSET)];
        if source_size < BLOCK_SIZE {
            // One with smaller blocks may be that short.
            let described = Description::read(&source)?;
            return Err(if u64::from(described.block_size) == BLOCK_SIZE {
                Error::Corrupt("it is shorter than its superblock says")
            } else {
                Error::Unsupported("blocks of another size than 4 KiB")
            });
        }
        source
            .read_exact_at(&mut head, SUPERBLOCK_OFFSET)
            .map_err(Error::Read)?;
        let superblock = decode(&head, with_compressed)?;
        let size = u64::from(superblock.blocks) * BLOCK_SIZE;
        if size > source_size {
            return Err(Error::Corrupt("it is shorter than its superblock says"));
        }
        if superblock.build_time.nanos >= 1_000_000_000 {
            return Err(Error::Corrupt("its build time is invalid"));
        }
        let mut reader = Self {
            source,
            source_size,
            size,
            superblock,
            devices: Vec::new(),
            prefixes: Vec::new(),
            with_compressed,
        };
        reader.devices = reader.read_devices()?;
        reader.prefixes = reader.read_prefixes()?;
        Ok(reader)
    }

    fn read_devices(&self) -> Result<Vec<Device>> {
        if self.superblock.feature_incompat & INCOMPAT_DEVICE_TABLE == 0 {
            return Ok(Vec::new());
        }
        let start = u64::from(self.superblock.device_table) * DEVICE_SLOT_SIZE as u64;
        let mut table = vec![0; usize::from(self.superblock.devices) * DEVICE_SLOT_SIZE];
        if start + table.len() as u64 > self.size {
            return Err(Error::Corrupt("the device table lies outside"));
        }
        self.fill(&mut table, start)?;
        table
            .chunks_exact(DEVICE_SLOT_SIZE)
            .map(DeviceSlot::decode)
            .map(|slot| match slot.first_block.checked_add(slot.blocks) {
                Some(_) => Ok(Device {
                    tag: slot.tag,
                    blocks: slot.blocks,
                    first_block: slot.first_block,
                }),
                None => Err(Error::Corrupt("a device ends after the last block number")),
            })
            .collect()
    }

    /// Returns the ranges of the superblock and the device table in bytes.
    pub(crate) fn head_ranges(&self) -> [Range<u64>; 2] {
        let table = u64::from(self.superblock.device_table) * DEVICE_SLOT_SIZE as u64;
        let table_size = (self.devices.len() * DEVICE_SLOT_SIZE) as u64;
        [
            SUPERBLOCK_OFFSET..SUPERBLOCK_OFFSET + SUPERBLOCK_SIZE as u64,
            table..table + table_size,
        ]
    }

    /// Returns the filesystem's UUID.
    pub fn uuid(&self) -> [u8; 16] {
        self.superblock.uuid
    }

    /// Returns the length of the image in blocks, without padding.
    pub fn blocks(&self) -> u32 {
        self.superblock.blocks
    }

    /// Returns whether images are read that this crate would not write: those that [`Reader::open_compressed`] opens.
    pub(crate) fn takes_foreign(&self) -> bool {
        self.with_compressed
    }

    /// Returns whether `names` inodes that have names are all that the superblock counts: tools count the packed inode,
    /// which has no name, or don't.
    pub(crate) fn has_inodes(&self, names: u64) -> bool {
        let packed = u64::from(self.superblock.packed_nid != 0);
        self.superblock.inodes == names || self.superblock.inodes == names + packed
    }

    /// Returns the number of inodes from the superblock.
    pub fn inode_count(&self) -> u64 {
        self.superblock.inodes
    }

    /// Returns the devices, besides the image itself, that hold file data.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Returns the number of the root directory's inode.
    pub fn root(&self) -> u64 {
        u64::from(self.superblock.root_nid)
    }

    /// Returns whether files may be compressed, which only [`Reader::inode`] tells of each.
    pub fn may_be_compressed(&self) -> bool {
        self.superblock.feature_incompat & INCOMPAT_ZERO_PADDING != 0
    }

    /// Returns the source of this reader.
    pub fn source(&self) -> &R {
        &self.source
    }

    /// Reads an inode.
    ///
    /// # Errors
    ///
    /// [`Error::CorruptInode`] if no inode has this number or the inode is inconsistent,
    /// [`Error::Compressed`] if its contents are.
    pub fn inode(&self, nid: u64) -> Result<Inode> {
        let corrupt = |problem| Error::CorruptInode { nid, problem };
        let at = nid
            .checked_mul(INODE_SLOT)
            .and_then(|at| at.checked_add(u64::from(self.superblock.meta_block) * BLOCK_SIZE))
            .filter(|at| at.saturating_add(COMPACT_SIZE as u64) <= self.size)
            .ok_or(corrupt("it lies outside the image"))?;
        let mut bytes = [0; EXTENDED_SIZE];
        let (compact, rest) = bytes.split_at_mut(COMPACT_SIZE);
        self.fill(compact, at)?;
        let (layout, extended) = match format::inode_format(compact) {
            InodeFormat::Known(Layout::CompressedFull | Layout::CompressedCompact, _)
                if !self.with_compressed =>
            {
                return Err(Error::Compressed(self.superblock.algorithm()));
            }
            InodeFormat::Known(layout, extended) => (layout, extended),
            InodeFormat::Unknown => return Err(corrupt("its format is unknown")),
        };
        let (raw, length) = if extended {
            if at + EXTENDED_SIZE as u64 > self.size {
                return Err(corrupt("it lies outside the image"));
            }
            self.fill(rest, at + COMPACT_SIZE as u64)?;
            (RawInode::decode_extended(&bytes, layout), EXTENDED_SIZE)
        } else {
            let mtime = self.superblock.build_time;
            (
                RawInode::decode_compact(compact, layout, mtime),
                COMPACT_SIZE,
            )
        };
        if raw.mtime.nanos >= 1_000_000_000 {
            return Err(corrupt("its modification time is invalid"));
        }
        let kind = FileType::of_mode(raw.mode).ok_or(corrupt("its type is unknown"))?;
        let (size, device) = match kind {
            FileType::Regular | FileType::Directory | FileType::Symlink => (raw.size, 0),
            FileType::CharDevice | FileType::BlockDevice => (0, raw.union),
            FileType::Fifo | FileType::Socket => (0, 0),
        };
        let inode = Inode {
            nid,
            kind,
            mode: raw.mode & 0o7777,
            uid: raw.uid,
            gid: raw.gid,
            nlink: raw.nlink,
            mtime: raw.mtime,
            size,
            device,
            layout,
            union: raw.union,
            xattrs_at: at + length as u64,
            xattrs_size: format::xattr_body_size(raw.xattr_count),
        };
        if inode.body_at() > self.size {
            return Err(corrupt("its extended attributes lie outside the image"));
        }
        self.check_data(&inode)?;
        Ok(inode)
    }

    /// Reads bytes of the image itself; the caller has checked that they lie inside.
    fn fill(&self, buf: &mut [u8], at: u64) -> Result<()> {
        self.source.read_exact_at(buf, at).map_err(Error::Read)
    }
}
