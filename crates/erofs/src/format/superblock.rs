//! The superblock and the device table that follows it.

use super::checksum;
use super::fields::{Fields, Parse};
use micabox_file::Timestamp;

/// Position of the superblock in bytes.
pub(crate) const SUPERBLOCK_OFFSET: u64 = 1024;
pub(crate) const SUPERBLOCK_SIZE: usize = 128;
/// Size of a slot of the device table; the superblock gives the table's position in this unit.
pub(crate) const DEVICE_SLOT_SIZE: usize = 128;

const MAGIC: u32 = 0xe0f5_e1e2;
const BLOCK_BITS: u8 = 12;

/// The superblock has a checksum.
pub(crate) const COMPAT_CHECKSUM: u32 = 0x1;
/// Inodes keep mtime, not ctime.
pub(crate) const COMPAT_MTIME: u32 = 0x2;

/// Compressed files, if there are any, begin with zeros.
pub(crate) const INCOMPAT_ZERO_PADDING: u32 = 0x1;
pub(crate) const INCOMPAT_CHUNKED: u32 = 0x4;
pub(crate) const INCOMPAT_DEVICE_TABLE: u32 = 0x8;

/// The superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub feature_compat: u32,
    pub feature_incompat: u32,
    pub root_nid: u16,
    pub inodes: u64,
    /// mtime of every compact inode.
    pub build_time: Timestamp,
    pub blocks: u32,
    pub meta_block: u32,
    pub xattr_block: u32,
    pub uuid: [u8; 16],
    pub devices: u16,
    /// Position of the device table in units of [`DEVICE_SLOT_SIZE`].
    pub device_table: u16,
}

/// Why a superblock can't be read.
pub(crate) enum SuperblockProblem {
    /// The magic number is wrong.
    Magic,
    /// The checksum is wrong.
    Checksum,
    /// The image needs an unsupported feature.
    Unsupported(&'static str),
}

/// The incompatible features that have names.
const INCOMPAT_NAMES: [(u32, &str); 9] = [
    (INCOMPAT_ZERO_PADDING, "zero padding"),
    (0x2, "compression"),
    (INCOMPAT_CHUNKED, "chunk-based files"),
    (INCOMPAT_DEVICE_TABLE, "device tables"),
    (0x10, "compression with inline tails"),
    (0x20, "compression with fragments or deduplication"),
    (0x40, "long attribute name prefixes"),
    (0x80, "48-bit block addresses"),
    (0x100, "metadata compression"),
];

/// Incompatible features that this crate supports. Zero padding only concerns compressed data.
const INCOMPAT_KNOWN: u32 = INCOMPAT_ZERO_PADDING | INCOMPAT_CHUNKED | INCOMPAT_DEVICE_TABLE;

impl Superblock {
    /// Decodes and checks the bytes from [`SUPERBLOCK_OFFSET`] to the end of the block.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, SuperblockProblem> {
        let mut parse = Parse(bytes);
        if parse.u32() != MAGIC {
            return Err(SuperblockProblem::Magic);
        }
        let stored_checksum = parse.u32();
        let feature_compat = parse.u32();
        if parse.u8() != BLOCK_BITS {
            return Err(SuperblockProblem::Unsupported(
                "blocks of another size than 4 KiB",
            ));
        }
        if feature_compat & COMPAT_CHECKSUM != 0 {
            let mut without = bytes.to_vec();
            without.get_mut(4..8).unwrap_or_default().fill(0);
            if checksum(&without) != stored_checksum {
                return Err(SuperblockProblem::Checksum);
            }
        }
        let _extension_slots = parse.u8();
        let root_nid = parse.u16();
        let inodes = parse.u64();
        let build_time = Timestamp {
            seconds: parse.u64().cast_signed(),
            nanos: parse.u32(),
        };
        let blocks = parse.u32();
        let meta_block = parse.u32();
        let xattr_block = parse.u32();
        let uuid = parse.take();
        let _volume_name: [u8; 16] = parse.take();
        let feature_incompat = parse.u32();
        if let Some(unknown) = (0..32)
            .map(|bit| 1u32 << bit)
            .find(|bit| feature_incompat & bit & !INCOMPAT_KNOWN != 0)
        {
            let name = INCOMPAT_NAMES.iter().find(|(bit, _)| *bit == unknown);
            return Err(SuperblockProblem::Unsupported(
                name.map_or("a feature newer than this program", |(_, name)| name),
            ));
        }
        let _compression = parse.u16();
        let devices = parse.u16();
        let device_table = parse.u16();
        if parse.u8() != 0 {
            return Err(SuperblockProblem::Unsupported(
                "directory blocks of another size than 4 KiB",
            ));
        }
        Ok(Self {
            feature_compat,
            feature_incompat,
            root_nid,
            inodes,
            build_time,
            blocks,
            meta_block,
            xattr_block,
            uuid,
            devices,
            device_table,
        })
    }

    /// Encodes the 128 bytes at [`SUPERBLOCK_OFFSET`], with `checksum` in its field.
    pub(crate) fn encode(&self, checksum: u32) -> [u8; SUPERBLOCK_SIZE] {
        Fields::new()
            .u32(MAGIC)
            .u32(checksum)
            .u32(self.feature_compat)
            .u8(BLOCK_BITS)
            .u8(0) // no extension slots
            .u16(self.root_nid)
            .u64(self.inodes)
            .u64(self.build_time.seconds.cast_unsigned())
            .u32(self.build_time.nanos)
            .u32(self.blocks)
            .u32(self.meta_block)
            .u32(self.xattr_block)
            .put(&self.uuid)
            .put(&[0; 16]) // volume name
            .u32(self.feature_incompat)
            .u16(0) // compression algorithms
            .u16(self.devices)
            .u16(self.device_table)
            .done()
    }
}

/// One slot of the device table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeviceSlot {
    pub tag: [u8; 64],
    pub blocks: u32,
    /// First block of the device in the address space shared by all devices.
    pub first_block: u32,
}

impl DeviceSlot {
    pub(crate) fn encode(&self) -> [u8; DEVICE_SLOT_SIZE] {
        Fields::new()
            .put(&self.tag)
            .u32(self.blocks)
            .u32(self.first_block)
            .done()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let mut parse = Parse(bytes);
        Self {
            tag: parse.take(),
            blocks: parse.u32(),
            first_block: parse.u32(),
        }
    }
}
