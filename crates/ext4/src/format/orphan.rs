//! The orphan file (feature orphan_file): Documentation/filesystems/ext4/orphan.rst.
//!
//! Each block is inode numbers, 0 for a free slot, and at its end magic number and checksum.

use super::checksum::crc32c;

/// `ob_magic`, eight bytes before a block's end.
pub const MAGIC: u32 = 0x0b10_ca04;
/// Bytes of a block behind its slots.
pub const TAIL_SIZE: usize = 8;

/// The checksum, in the last four bytes of a block; `seed` is the orphan file's inode's.
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
