//! The orphan file (feature orphan_file): Documentation/filesystems/ext4/orphan.rst.
//!
//! Each block has inode numbers, 0 for a free slot, and ends with magic number and checksum.

use super::checksum::crc32c;

/// `ob_magic`, eight bytes before the end of a block.
pub const MAGIC: u32 = 0x0b10_ca04;
/// Size in bytes of a block's tail, after its slots.
pub const TAIL_SIZE: usize = 8;

/// Computes the checksum in the last four bytes of a block; `seed` is that of the file's inode.
#[must_use]
pub fn checksum_of(seed: u32, number: u64, block: &[u8]) -> u32 {
    let crc = crc32c(seed, &number.to_le_bytes());
    crc32c(
        crc,
        block
            .get(..block.len().saturating_sub(TAIL_SIZE))
            .unwrap_or_default(),
    )
}
