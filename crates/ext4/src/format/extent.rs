//! Extent tree nodes: `fs/ext4/ext4_extents.h`, and Documentation/filesystems/ext4/ifork.rst.
//!
//! A node is a header and entries of 12 bytes, sorted by logical block: extents in leaves (depth
//! 0), references to other nodes otherwise. The root is `i_block`; other nodes are whole blocks
//! with, under metadata_csum, a checksum directly after the room for entries.

use super::checksum::crc32c;
use super::fields::{self, record};
use micabox_file::narrow::{low16, low32, saturate16};

/// `magic` of a node's header.
pub const MAGIC: u16 = 0xF30A;
/// Size in bytes of a header.
pub const HEADER_SIZE: usize = 12;
/// Size in bytes of an entry of either kind.
pub const ENTRY_SIZE: usize = 12;
/// Number of entries that fit in `i_block`.
pub const ROOT_ENTRIES: u16 = 4;
/// The deepest tree that the kernel accepts.
pub const MAX_DEPTH: u16 = 5;
/// Number of blocks in the longest written extent.
pub const MAX_LENGTH: u32 = 0x8000;
/// Number of blocks in the longest unwritten extent.
pub const MAX_UNWRITTEN_LENGTH: u32 = 0x7FFF;
/// Upper bound (exclusive) of logical blocks.
pub const MAX_LOGICAL: u32 = u32::MAX;

record! {
    /// The start of a node, little-endian.
    pub struct Header[12, le] {
        /// [`MAGIC`].
        0x00 magic: u16,
        /// Entries in use.
        0x02 entries: u16,
        /// Capacity in entries.
        0x04 max: u16,
        /// 0 for a leaf, otherwise one more than the depth of the nodes below.
        0x06 depth: u16,
        /// Unused.
        0x08 generation: u32,
    }
}

/// Consecutive blocks of a file: an entry of a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// First block within the file.
    pub logical: u32,
    /// Number of blocks, 1 to [`MAX_LENGTH`].
    pub length: u32,
    /// First block on the device, 48 bits.
    pub physical: u64,
    /// Whether the blocks are allocated, but read as zeros.
    pub unwritten: bool,
}

impl Extent {
    /// Decodes an entry of a leaf: `ee_block`, `ee_len`, `ee_start_hi`, `ee_start_lo`.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Self {
        let length: u16 = fields::get(bytes, 4);
        let unwritten = u32::from(length) > MAX_LENGTH;
        Self {
            logical: fields::get(bytes, 0),
            length: if unwritten {
                u32::from(length) - MAX_LENGTH
            } else {
                length.into()
            },
            physical: u64::from(fields::get::<u16>(bytes, 6)) << 32
                | u64::from(fields::get::<u32>(bytes, 8)),
            unwritten,
        }
    }

    /// Encodes an entry of a leaf.
    #[must_use]
    pub fn encode(&self) -> [u8; ENTRY_SIZE] {
        let mut bytes = [0; ENTRY_SIZE];
        let flag = if self.unwritten { MAX_LENGTH } else { 0 };
        fields::put(&mut bytes, 0, self.logical);
        fields::put(&mut bytes, 4, saturate16(self.length + flag));
        fields::put(&mut bytes, 6, low16(self.physical >> 32));
        fields::put(&mut bytes, 8, low32(self.physical));
        bytes
    }

    /// Returns the logical block after the last, which may be 2^32.
    #[must_use]
    pub fn end(&self) -> u64 {
        u64::from(self.logical) + u64::from(self.length)
    }
}

/// A reference to a node: an entry of an inner node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Index {
    /// First logical block that the node covers.
    pub logical: u32,
    /// The node's block on the device, 48 bits.
    pub child: u64,
}

impl Index {
    /// Decodes an entry of an inner node: `ei_block`, `ei_leaf_lo`, `ei_leaf_hi`.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Self {
        Self {
            logical: fields::get(bytes, 0),
            child: u64::from(fields::get::<u32>(bytes, 4))
                | u64::from(fields::get::<u16>(bytes, 8)) << 32,
        }
    }

    /// Encodes an entry of an inner node.
    #[must_use]
    pub fn encode(&self) -> [u8; ENTRY_SIZE] {
        let mut bytes = [0; ENTRY_SIZE];
        fields::put(&mut bytes, 0, self.logical);
        fields::put(&mut bytes, 4, low32(self.child));
        fields::put(&mut bytes, 8, low16(self.child >> 32));
        bytes
    }
}

/// Returns how many entries fit in a block of `block_size` bytes beside header and checksum.
#[must_use]
pub fn node_capacity(block_size: usize) -> u16 {
    saturate16(block_size.saturating_sub(HEADER_SIZE) / ENTRY_SIZE)
}

/// Returns the offset of the checksum of a node block: after the room for entries.
#[must_use]
pub fn checksum_offset(node: &[u8]) -> usize {
    HEADER_SIZE + ENTRY_SIZE * usize::from(fields::get::<u16>(node, 4))
}

/// Computes the checksum of a node block; `seed` is the inode's.
#[must_use]
pub fn checksum_of(seed: u32, node: &[u8]) -> u32 {
    crc32c(seed, node.get(..checksum_offset(node)).unwrap_or_default())
}

/// Writes the checksum into a node block; `seed` is the inode's.
pub fn seal(seed: u32, node: &mut [u8]) {
    let checksum = checksum_of(seed, node);
    let offset = checksum_offset(node);
    fields::put(node, offset, checksum);
}
