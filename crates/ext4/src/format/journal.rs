//! The journal: `include/linux/jbd2.h`, and Documentation/filesystems/ext4/journal.rst.
//! Everything is big-endian.
//!
//! The log's first block is the superblock. A transaction consists of descriptor blocks, each
//! followed by the blocks that its tags name, revocation blocks, and one commit block, all with the
//! transaction's sequence number. The log is a ring from `s_first` to `s_maxlen`.

use super::checksum::crc32c;
use super::fields::{self, record};
use micabox_file::narrow::{low16, low32};

/// `h_magic` of every block of the log except for copies of filesystem blocks. A copy of a block
/// that starts with it has zeros there and [`TAG_ESCAPED`].
pub const MAGIC: u32 = 0xC03B_3998;

/// `h_blocktype`: tags of the blocks that follow.
pub const DESCRIPTOR: u32 = 1;
/// `h_blocktype`: end of a transaction.
pub const COMMIT: u32 = 2;
/// `h_blocktype`: superblock of the first version, without features.
pub const SUPERBLOCK_V1: u32 = 3;
/// `h_blocktype`: superblock.
pub const SUPERBLOCK_V2: u32 = 4;
/// `h_blocktype`: blocks whose older copies must not be replayed.
pub const REVOKE: u32 = 5;

/// `s_feature_compat`: commit blocks have a checksum of their transaction (version 1).
pub const COMPAT_CHECKSUM: u32 = 0x1;
/// `s_feature_incompat`: the log may have revocations.
pub const INCOMPAT_REVOKE: u32 = 0x1;
/// `s_feature_incompat`: block numbers have 64 bits.
pub const INCOMPAT_64BIT: u32 = 0x2;
/// `s_feature_incompat`: commit blocks may be written before the blocks that they commit.
pub const INCOMPAT_ASYNC_COMMIT: u32 = 0x4;
/// `s_feature_incompat`: checksums, 16 bits in tags.
pub const INCOMPAT_CSUM_V2: u32 = 0x8;
/// `s_feature_incompat`: checksums, 32 bits in tags.
pub const INCOMPAT_CSUM_V3: u32 = 0x10;
/// `s_feature_incompat`: the log ends with an area of fast commits.
pub const INCOMPAT_FAST_COMMIT: u32 = 0x20;
/// The incompatible features that this crate knows.
pub const INCOMPAT_KNOWN: u32 = 0x3F;

/// `s_checksum_type`.
pub const CHECKSUM_CRC32C: u8 = 4;

/// A tag's flag: the copy's first four bytes were [`MAGIC`].
pub const TAG_ESCAPED: u32 = 1;
/// A tag's flag: no UUID follows.
pub const TAG_SAME_UUID: u32 = 2;
/// A tag's flag: the block was deleted by this transaction.
pub const TAG_DELETED: u32 = 4;
/// A tag's flag: the last tag of its descriptor.
pub const TAG_LAST: u32 = 8;

/// Number of fast-commit blocks in a log that does not store it: `s_num_fc_blks` is 0.
pub const DEFAULT_FAST_COMMIT_BLOCKS: u32 = 256;
/// Tag of the first record of the area of fast commits; little-endian, like all of that area.
pub const FAST_COMMIT_HEAD: u16 = 0x9;

/// Length in blocks of the smallest log that the kernel accepts.
pub const MIN_BLOCKS: u32 = 1024;

record! {
    /// The start of every block of the log, big-endian.
    pub struct Header[12, be] {
        /// [`MAGIC`].
        0x00 magic: u32,
        /// [`DESCRIPTOR`] and so on.
        0x04 block_type: u32,
        /// The transaction's sequence number.
        0x08 sequence: u32,
    }
}

record! {
    /// The log's superblock, big-endian, at the start of its first block.
    pub struct Superblock[1024, be] {
        /// [`MAGIC`].
        0x00 magic: u32,
        /// [`SUPERBLOCK_V2`].
        0x04 block_type: u32,
        /// Zero.
        0x08 header_sequence: u32,
        /// Block size in bytes: the filesystem's.
        0x0C block_size: u32,
        /// Number of blocks in the log, including this one.
        0x10 blocks: u32,
        /// First block of the ring.
        0x14 first: u32,
        /// Sequence number of the transaction at `start`, or of the next one if the log is empty.
        0x18 sequence: u32,
        /// Block of the first transaction to replay; 0 if there is none.
        0x1C start: u32,
        /// Error that stopped the journal.
        0x20 error: u32,
        /// [`COMPAT_CHECKSUM`].
        0x24 feature_compat: u32,
        /// `INCOMPAT_*`.
        0x28 feature_incompat: u32,
        /// No bits are defined.
        0x2C feature_ro_compat: u32,
        /// UUID of the log: zero, or that of its own device.
        0x30 uuid: [u8; 16],
        /// Number of filesystems that use the log, 1.
        0x40 users: u32,
        /// Unused.
        0x44 dynamic_superblock: u32,
        /// Unused.
        0x48 max_transaction: u32,
        /// Unused.
        0x4C max_transaction_data: u32,
        /// [`CHECKSUM_CRC32C`], with `INCOMPAT_CSUM_*`.
        0x50 checksum_type: u8,
        /// Number of blocks for fast commits at the log's end.
        0x54 fast_commit_blocks: u32,
        /// Position at which the log continued when it became empty.
        0x58 head: u32,
        /// CRC-32C of the 1024 bytes with this field zero.
        0xFC checksum: u32,
        /// UUIDs of the filesystems that use the log.
        0x100 user_ids: [u8; 768],
    }
}

const SUPERBLOCK_CHECKSUM_OFFSET: usize = 0xFC;

impl Superblock {
    /// Whether all of `bits` (`INCOMPAT_*`) are set.
    #[must_use]
    pub fn has_incompat(&self, bits: u32) -> bool {
        self.block_type != SUPERBLOCK_V1 && self.feature_incompat & bits == bits
    }

    /// Whether blocks have checksums of version 2 or 3.
    #[must_use]
    pub fn has_checksums(&self) -> bool {
        self.has_incompat(INCOMPAT_CSUM_V2) || self.has_incompat(INCOMPAT_CSUM_V3)
    }

    /// Returns the seed of all checksums.
    #[must_use]
    pub fn seed(&self) -> u32 {
        crc32c(!0, &self.uuid)
    }

    /// Returns the size in bytes of a tag without the UUID that follows the first.
    #[must_use]
    pub fn tag_size(&self) -> usize {
        let short = if self.has_incompat(INCOMPAT_CSUM_V3) {
            return 16;
        } else if self.has_incompat(INCOMPAT_CSUM_V2) {
            10
        } else {
            8
        };
        if self.has_incompat(INCOMPAT_64BIT) {
            short + 4
        } else {
            short
        }
    }

    /// Returns the number of blocks at the log's end that are not part of the ring.
    #[must_use]
    pub fn fast_commit_area(&self) -> u32 {
        if !self.has_incompat(INCOMPAT_FAST_COMMIT) {
            0
        } else if self.fast_commit_blocks == 0 {
            DEFAULT_FAST_COMMIT_BLOCKS
        } else {
            self.fast_commit_blocks
        }
    }

    /// Returns the block after the ring's last.
    #[must_use]
    pub fn end(&self) -> u32 {
        self.blocks.saturating_sub(self.fast_commit_area())
    }

    /// Computes the checksum of the superblock with the encoding `bytes`.
    #[must_use]
    pub fn checksum_of(bytes: &[u8]) -> u32 {
        let part = |from, to| bytes.get(from..to).unwrap_or_default();
        let crc = crc32c(!0, part(0, SUPERBLOCK_CHECKSUM_OFFSET));
        let crc = crc32c(crc, &[0; 4]);
        crc32c(crc, part(SUPERBLOCK_CHECKSUM_OFFSET + 4, Self::SIZE))
    }

    /// Encodes the superblock over `bytes`, with its checksum if the log has checksums.
    pub fn seal_into(&self, bytes: &mut [u8]) {
        self.encode_into(bytes);
        if self.has_checksums() {
            let checksum = Self::checksum_of(bytes);
            fields::put_be(bytes, SUPERBLOCK_CHECKSUM_OFFSET, checksum);
        }
    }
}

/// A descriptor's entry for one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    /// The block in the filesystem.
    pub block: u64,
    /// `TAG_*`.
    pub flags: u32,
    /// Checksum of the copy: 32 bits (version 3), the low 16 (version 2) or 0.
    pub checksum: u32,
}

impl Tag {
    /// Decodes the [`Superblock::tag_size`] bytes of a tag.
    #[must_use]
    pub fn decode(superblock: &Superblock, bytes: &[u8]) -> Self {
        let low: u32 = fields::get_be(bytes, 0);
        let high: u32 = if superblock.has_incompat(INCOMPAT_64BIT) {
            fields::get_be(bytes, 8)
        } else {
            0
        };
        let block = u64::from(low) | u64::from(high) << 32;
        if superblock.has_incompat(INCOMPAT_CSUM_V3) {
            Self {
                block,
                flags: fields::get_be(bytes, 4),
                checksum: fields::get_be(bytes, 12),
            }
        } else {
            Self {
                block,
                flags: fields::get_be::<u16>(bytes, 6).into(),
                checksum: fields::get_be::<u16>(bytes, 4).into(),
            }
        }
    }

    /// Encodes into the [`Superblock::tag_size`] bytes of a tag.
    pub fn encode_into(&self, superblock: &Superblock, bytes: &mut [u8]) {
        bytes.fill(0);
        fields::put_be(bytes, 0, low32(self.block));
        if superblock.has_incompat(INCOMPAT_64BIT) {
            fields::put_be(bytes, 8, (self.block >> 32) as u32);
        }
        if superblock.has_incompat(INCOMPAT_CSUM_V3) {
            fields::put_be(bytes, 4, self.flags);
            fields::put_be(bytes, 12, self.checksum);
        } else {
            fields::put_be(bytes, 4, low16(self.checksum));
            fields::put_be(bytes, 6, low16(self.flags));
        }
    }
}

/// Computes the checksum of a copy, for its tag; `seed` is the log's. For an escaped copy, `copy`
/// is the bytes in the log.
#[must_use]
pub fn tag_checksum(seed: u32, sequence: u32, copy: &[u8]) -> u32 {
    crc32c(crc32c(seed, &sequence.to_be_bytes()), copy)
}

/// Computes the checksum of a descriptor or revocation block, which is in its last four bytes.
#[must_use]
pub fn tail_checksum(seed: u32, block: &[u8]) -> u32 {
    let crc = crc32c(
        seed,
        block
            .get(..block.len().saturating_sub(4))
            .unwrap_or_default(),
    );
    crc32c(crc, &[0; 4])
}

/// Writes the checksum into a descriptor or revocation block.
pub fn seal_tail(seed: u32, block: &mut [u8]) {
    let checksum = tail_checksum(seed, block);
    let offset = block.len().saturating_sub(4);
    fields::put_be(block, offset, checksum);
}

record! {
    /// The end of a transaction, big-endian.
    pub struct Commit[60, be] {
        /// [`MAGIC`].
        0x00 magic: u32,
        /// [`COMMIT`].
        0x04 block_type: u32,
        /// The transaction's sequence number.
        0x08 sequence: u32,
        /// Type of the version 1 checksum; 0 with later versions.
        0x0C checksum_type: u8,
        /// Size in bytes of the version 1 checksum; 0 with later versions.
        0x0D checksum_size: u8,
        /// The first word is the checksum.
        0x10 checksum: [u32; 8],
        /// Time of the commit in seconds.
        0x30 seconds: u64,
        /// Nanoseconds of the time.
        0x38 nanos: u32,
    }
}

/// Offset of a commit block's checksum.
pub const COMMIT_CHECKSUM_OFFSET: usize = 0x10;

/// Computes the checksum of a commit block (versions 2 and 3); `seed` is the log's.
#[must_use]
pub fn commit_checksum(seed: u32, block: &[u8]) -> u32 {
    let crc = crc32c(
        seed,
        block.get(..COMMIT_CHECKSUM_OFFSET).unwrap_or_default(),
    );
    let crc = crc32c(crc, &[0; 4]);
    crc32c(
        crc,
        block.get(COMMIT_CHECKSUM_OFFSET + 4..).unwrap_or_default(),
    )
}

record! {
    /// The start of a revocation block, big-endian; block numbers follow, of 8 bytes with
    /// [`INCOMPAT_64BIT`], otherwise of 4.
    pub struct RevokeHeader[16, be] {
        /// [`MAGIC`].
        0x00 magic: u32,
        /// [`REVOKE`].
        0x04 block_type: u32,
        /// The transaction's sequence number.
        0x08 sequence: u32,
        /// Number of bytes in use, including this header.
        0x0C bytes: u32,
    }
}
