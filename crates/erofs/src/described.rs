//! What an image says of itself, whether this crate reads its files or only Linux does.

use crate::format::{SUPERBLOCK_OFFSET, Superblock, SuperblockProblem};
use crate::{BLOCK_SIZE, Error, ReadAt, Result};

/// Bytes of a superblock.
const SUPERBLOCK: usize = 128;

const MAGIC: u32 = 0xe0f5_e1e2;

/// Sizes of blocks, as powers of two, that Linux reads where its pages have 4 KiB.
const BLOCKS: std::ops::RangeInclusive<u8> = 9..=12;

/// Incompatible features of Linux 6.12: all up to prefixes of attributes' names.
const KNOWN: u32 = 0x7f;

/// What an image says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Its length in bytes, without padding.
    pub size: u64,
    /// The size of its blocks in bytes.
    pub block_size: u32,
    /// Whether files' contents are on other devices.
    pub has_devices: bool,
}

impl Description {
    /// Reads the superblock of an image that Linux 6.12 reads: compressed, or with smaller blocks than
    /// [`Reader`](crate::Reader) takes.
    ///
    /// # Errors
    /// [`Error::NotErofs`], [`Error::Unsupported`], [`Error::Corrupt`], [`Error::Read`].
    pub fn read(source: &impl ReadAt) -> Result<Self> {
        let length = source.size().map_err(Error::Read)?;
        if length < SUPERBLOCK_OFFSET + SUPERBLOCK as u64 {
            return Err(Error::NotErofs);
        }
        let mut bytes = [0; SUPERBLOCK];
        source
            .read_exact_at(&mut bytes, SUPERBLOCK_OFFSET)
            .map_err(Error::Read)?;
        let u32_at = |at: usize| {
            let field = bytes.get(at..).and_then(|rest| rest.first_chunk());
            u32::from_le_bytes(field.copied().unwrap_or_default())
        };
        if u32_at(0) != MAGIC {
            return Err(Error::NotErofs);
        }
        let [_, _, _, _, _, _, _, _, _, _, _, _, block_bits, ..] = bytes;
        if !BLOCKS.contains(&block_bits) {
            return Err(Error::Unsupported("blocks larger than 4 KiB"));
        }
        let features = u32_at(80);
        if features & !KNOWN != 0 {
            return Err(Error::Unsupported("a feature newer than Linux 6.12"));
        }
        if 1 << block_bits == BLOCK_SIZE && length >= BLOCK_SIZE {
            let mut whole = vec![0; usize::try_from(BLOCK_SIZE - SUPERBLOCK_OFFSET).unwrap_or(0)];
            source
                .read_exact_at(&mut whole, SUPERBLOCK_OFFSET)
                .map_err(Error::Read)?;
            if let Err(SuperblockProblem::Checksum) = Superblock::decode(&whole, true) {
                return Err(Error::Corrupt("the superblock's checksum is wrong"));
            }
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(bytes.get(48..64).unwrap_or(&[0; 16]));
        let devices = u32_at(84) >> 16;
        Ok(Self {
            uuid,
            size: u64::from(u32_at(36)) << block_bits,
            block_size: 1 << block_bits,
            has_devices: devices > 0,
        })
    }
}
