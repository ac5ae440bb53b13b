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
/// Prefixes of attributes' names are in the image, though it has a packed inode.
pub(crate) const COMPAT_PLAIN_PREFIXES: u32 = 0x10;

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
    /// How files are compressed: a bit for each algorithm, or what lz4 needs to know.
    pub compression: u16,
    /// Number of the inode that has the ends of compressed files; 0 if there is none.
    pub packed_nid: u64,
    pub devices: u16,
    /// Position of the device table in units of [`DEVICE_SLOT_SIZE`].
    pub device_table: u16,
    /// Number of prefixes of attributes' names that the image has itself.
    pub prefixes: u8,
    /// Their position in units of 4 bytes, in the image or in its packed inode.
    pub prefixes_at: u32,
}

/// Why a superblock can't be read.
pub(crate) enum SuperblockProblem {
    /// The magic number is wrong.
    Magic,
    /// The checksum is wrong.
    Checksum,
    /// Its files are compressed, by this algorithm.
    Compressed(&'static str),
    /// The image needs an unsupported feature.
    Unsupported(&'static str),
}

/// The algorithms of an image are listed; otherwise it has lz4 alone.
const INCOMPAT_ALGORITHMS: u32 = 0x2;
/// Features of compressed files: listed algorithms, inline tails, fragments and deduplication.
const INCOMPAT_COMPRESSED: u32 = INCOMPAT_ALGORITHMS | 0x10 | 0x20;

/// Prefixes of attributes' names, beside those that have numbers. Our own images have none, and Linux 6.12 looks for
/// them elsewhere than later ones do: an image that a guest mounts may not have them.
const INCOMPAT_PREFIXES: u32 = 0x40;

/// The other incompatible features that have names.
const INCOMPAT_NAMES: [(u32, &str); 3] = [
    (INCOMPAT_PREFIXES, "long attribute name prefixes"),
    (0x80, "48-bit block addresses"),
    (0x100, "metadata compression"),
];

/// Incompatible features that this crate supports. Zero padding only concerns compressed data.
const INCOMPAT_KNOWN: u32 = INCOMPAT_ZERO_PADDING | INCOMPAT_CHUNKED | INCOMPAT_DEVICE_TABLE;

impl Superblock {
    /// Decodes and checks the bytes from [`SUPERBLOCK_OFFSET`] to the end of the block.
    /// Those of images with compressed files, or with prefixes of names, are for who asks for them.
    pub(crate) fn decode(bytes: &[u8], compressed: bool) -> Result<Self, SuperblockProblem> {
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
        let compression = parse.u16();
        if feature_incompat & INCOMPAT_COMPRESSED != 0 && !compressed {
            let algorithm = compressed_by(feature_incompat, compression);
            return Err(SuperblockProblem::Compressed(algorithm));
        }
        let known = if compressed {
            INCOMPAT_KNOWN | INCOMPAT_COMPRESSED | INCOMPAT_PREFIXES
        } else {
            INCOMPAT_KNOWN
        };
        if let Some(unknown) = (0..32)
            .map(|bit| 1u32 << bit)
            .find(|bit| feature_incompat & bit & !known != 0)
        {
            let name = INCOMPAT_NAMES.iter().find(|(bit, _)| *bit == unknown);
            return Err(SuperblockProblem::Unsupported(
                name.map_or("a feature newer than this program", |(_, name)| name),
            ));
        }
        let devices = parse.u16();
        let device_table = parse.u16();
        if parse.u8() != 0 {
            return Err(SuperblockProblem::Unsupported(
                "directory blocks of another size than 4 KiB",
            ));
        }
        let (prefixes, prefixes_at) = (parse.u8(), parse.u32());
        let packed_nid = parse.u64();
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
            compression,
            packed_nid,
            devices,
            device_table,
            prefixes: if feature_incompat & INCOMPAT_PREFIXES == 0 {
                0
            } else {
                prefixes
            },
            prefixes_at,
        })
    }

    /// Returns the algorithm that compresses files, if any are compressed.
    pub(crate) fn algorithm(&self) -> &'static str {
        compressed_by(self.feature_incompat, self.compression)
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
            .u16(self.compression)
            .u16(self.devices)
            .u16(self.device_table)
            .u8(0) // directory blocks are blocks
            .u8(self.prefixes)
            .u32(self.prefixes_at)
            .u64(self.packed_nid)
            .done()
    }
}

/// Source: Linux, `fs/erofs/erofs_fs.h`, `Z_EROFS_COMPRESSION_*`.
fn compressed_by(feature_incompat: u32, compression: u16) -> &'static str {
    if feature_incompat & INCOMPAT_ALGORITHMS == 0 {
        return "lz4";
    }
    match compression {
        0b1 => "lz4",
        0b10 => "lzma",
        0b100 => "deflate",
        0b1000 => "zstd",
        _ => "several algorithms, or a new one",
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
