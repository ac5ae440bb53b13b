//! Group descriptors: `struct ext4_group_desc`, and Documentation/filesystems/ext4/group_descr.rst.

use super::checksum::{crc16, crc32c};
use super::fields::{self, record};
use super::superblock::Superblock;
use micabox_file::narrow::low16;

/// `flags`: the inode bitmap and table are not written yet; no inode is in use.
pub const INODE_UNINIT: u16 = 0x1;
/// `flags`: the block bitmap is not written yet; only metadata of the group itself is in use.
pub const BLOCK_UNINIT: u16 = 0x2;
/// `flags`: the unused part of the inode table is zeroed.
pub const INODE_ZEROED: u16 = 0x4;

const CHECKSUM_OFFSET: usize = 0x1E;

record! {
    /// A group's descriptor, little-endian: 32 bytes, or with 64bit `s_desc_size` bytes, of which
    /// the first 64 have a meaning.
    pub struct GroupDescriptor[64, le] {
        /// Block of the block bitmap, low half.
        0x00 block_bitmap_lo: u32,
        /// Block of the inode bitmap, low half.
        0x04 inode_bitmap_lo: u32,
        /// First block of the inode table, low half.
        0x08 inode_table_lo: u32,
        /// Free blocks (clusters), low half.
        0x0C free_blocks_lo: u16,
        /// Free inodes, low half.
        0x0E free_inodes_lo: u16,
        /// Directories, low half.
        0x10 directories_lo: u16,
        /// `INODE_UNINIT` and so on.
        0x12 flags: u16,
        /// Unused.
        0x14 exclude_bitmap_lo: u32,
        /// Checksum of the block bitmap, low half.
        0x18 block_bitmap_checksum_lo: u16,
        /// Checksum of the inode bitmap, low half.
        0x1A inode_bitmap_checksum_lo: u16,
        /// Inodes at the table's end that were never used, low half.
        0x1C unused_inodes_lo: u16,
        /// Checksum of the descriptor.
        0x1E checksum: u16,
        /// Block of the block bitmap, high half.
        0x20 block_bitmap_hi: u32,
        /// Block of the inode bitmap, high half.
        0x24 inode_bitmap_hi: u32,
        /// First block of the inode table, high half.
        0x28 inode_table_hi: u32,
        /// Free blocks, high half.
        0x2C free_blocks_hi: u16,
        /// Free inodes, high half.
        0x2E free_inodes_hi: u16,
        /// Directories, high half.
        0x30 directories_hi: u16,
        /// Inodes at the table's end that were never used, high half.
        0x32 unused_inodes_hi: u16,
        /// Unused.
        0x34 exclude_bitmap_hi: u32,
        /// Checksum of the block bitmap, high half.
        0x38 block_bitmap_checksum_hi: u16,
        /// Checksum of the inode bitmap, high half.
        0x3A inode_bitmap_checksum_hi: u16,
        /// Zero.
        0x3C reserved: u32,
    }
}

macro_rules! joined {
    ($($(#[$doc:meta])* $get:ident, $set:ident: $whole:ty = $lo:ident + $hi:ident : $half:ty;)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $get(&self) -> $whole {
            <$whole>::from(self.$lo) | <$whole>::from(self.$hi) << <$half>::BITS
        }

        /// Sets both halves.
        #[expect(clippy::cast_possible_truncation, reason = "the other half has the rest")]
        pub fn $set(&mut self, value: $whole) {
            self.$lo = value as $half;
            self.$hi = (value >> <$half>::BITS) as $half;
        }
    )*};
}

impl GroupDescriptor {
    joined! {
        /// Block of the block bitmap.
        block_bitmap, set_block_bitmap: u64 = block_bitmap_lo + block_bitmap_hi: u32;
        /// Block of the inode bitmap.
        inode_bitmap, set_inode_bitmap: u64 = inode_bitmap_lo + inode_bitmap_hi: u32;
        /// First block of the inode table.
        inode_table, set_inode_table: u64 = inode_table_lo + inode_table_hi: u32;
        /// Free blocks; with bigalloc, clusters.
        free_blocks, set_free_blocks: u32 = free_blocks_lo + free_blocks_hi: u16;
        /// Free inodes.
        free_inodes, set_free_inodes: u32 = free_inodes_lo + free_inodes_hi: u16;
        /// Directories.
        directories, set_directories: u32 = directories_lo + directories_hi: u16;
        /// Inodes at the table's end that were never used.
        unused_inodes, set_unused_inodes: u32 = unused_inodes_lo + unused_inodes_hi: u16;
        /// Checksum of the block bitmap; 32-byte descriptors keep the low half only.
        block_bitmap_checksum, set_block_bitmap_checksum: u32
            = block_bitmap_checksum_lo + block_bitmap_checksum_hi: u16;
        /// Checksum of the inode bitmap; 32-byte descriptors keep the low half only.
        inode_bitmap_checksum, set_inode_bitmap_checksum: u32
            = inode_bitmap_checksum_lo + inode_bitmap_checksum_hi: u16;
    }

    /// Computes the checksum of the encoded descriptor `bytes` (all `s_desc_size` of them) of group
    /// `group`; 0 if the filesystem has no group checksums.
    #[must_use]
    pub fn checksum_of(superblock: &Superblock, group: u32, bytes: &[u8]) -> u16 {
        let head = bytes.get(..CHECKSUM_OFFSET).unwrap_or_default();
        let tail = bytes.get(CHECKSUM_OFFSET + 2..).unwrap_or_default();
        if superblock.has_checksums() {
            let crc = crc32c(superblock.seed(), &group.to_le_bytes());
            let crc = crc32c(crc, head);
            low16(crc32c(crc32c(crc, &[0; 2]), tail))
        } else if superblock.has_group_checksums() {
            let crc = crc16(!0, &superblock.uuid);
            let crc = crc16(crc, &group.to_le_bytes());
            crc16(crc16(crc, head), tail)
        } else {
            0
        }
    }

    /// Encodes the descriptor over `bytes`, with its checksum.
    pub fn seal_into(&self, superblock: &Superblock, group: u32, bytes: &mut [u8]) {
        self.encode_into(bytes);
        let checksum = Self::checksum_of(superblock, group, bytes);
        fields::put(bytes, CHECKSUM_OFFSET, checksum);
    }
}

/// Computes the checksum of a bitmap; `bytes` is the part of the bitmap that has a meaning:
/// clusters per group / 8 of the block bitmap, inodes per group / 8 of the inode bitmap.
#[must_use]
pub fn bitmap_checksum(superblock: &Superblock, bytes: &[u8]) -> u32 {
    crc32c(superblock.seed(), bytes)
}
