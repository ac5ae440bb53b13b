//! Makes an empty filesystem.
//!
//! Only what must be written is: the target must read as zeros. Tables of groups without
//! files are never touched (uninit_bg), and the superblock is copied to two groups
//! (sparse_super2), so a filesystem of 8 GiB is a dozen writes. It grows by meta_bg.

mod emit;
mod layout;

use layout::Layout;

use crate::{BlockDevice, DeviceError};

/// Bytes of a block.
const BLOCK_SIZE: u64 = 4096;
/// Blocks of a group: what one block of bitmap tells.
const BLOCKS_PER_GROUP: u64 = BLOCK_SIZE * 8;
/// Bytes of an inode.
const INODE_SIZE: u64 = 256;
/// Most groups whose descriptors fit into one group (256 TiB).
const GROUPS_MAX: u32 = 1 << 21;

/// What a new filesystem shall be like.
#[derive(Debug, Clone)]
pub struct Options {
    /// UUID; also the seed of all checksums and of the directory hash.
    pub uuid: [u8; 16],
    /// Label, padded with zeros.
    pub label: [u8; 16],
    /// Time of creation, in seconds of the Unix epoch.
    pub time: i64,
    /// Number of inodes, rounded up to whole blocks of each group; by default one for every
    /// 4 KiB (below 512 MiB), 16 KiB (below 4 TiB), 32 KiB or 64 KiB.
    pub inodes: Option<u64>,
    /// The journal.
    pub journal: Journal,
    /// Blocks that only root may use, in hundredths of a percent of all.
    pub reserved: u16,
}

/// A journal's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Journal {
    /// As mke2fs has it: 4 MiB to 1 GiB, none below 8 MiB of filesystem.
    #[default]
    Default,
    /// This many bytes, at least 4 MiB.
    Bytes(u64),
    /// No journal.
    None,
}

/// Why a filesystem can't be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MakeError {
    /// There is no room for the tables, the journal or a single file.
    #[error("{0} bytes are too small for a filesystem with these tables and this journal")]
    TooSmall(u64),
    /// Beyond what one group can hold descriptors of.
    #[error("{0} bytes are beyond the 256 TiB that a filesystem can have here")]
    TooLarge(u64),
    /// More than 32768 inodes in a group, or than 2^32 - 1 in all.
    #[error("{0} inodes are more than the groups have room for (one for each block)")]
    TooManyInodes(u64),
    /// A journal of a size that the format does not allow.
    #[error("a journal of {0} bytes is not between 4 MiB and 39 GiB")]
    JournalSize(u64),
    /// The device failed.
    #[error("cannot write the filesystem: {0}")]
    Device(#[from] DeviceError),
}

/// What was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Blocks of 4 KiB.
    pub blocks: u64,
    /// Of these, free ones.
    pub free_blocks: u64,
    /// Inodes.
    pub inodes: u64,
    /// Blocks of the journal.
    pub journal_blocks: u64,
}

/// Makes a filesystem of at most `size` bytes on a device that reads as zeros, such as a new
/// sparse file of that length. The superblock is written last. Does not flush.
///
/// # Errors
///
/// [`MakeError`]; the device's contents are undefined after one.
pub fn make(
    device: &mut dyn BlockDevice,
    size: u64,
    options: &Options,
) -> Result<Summary, MakeError> {
    let layout = Layout::new(size, options)?;
    let free_blocks = emit::emit(&layout, options, device)?;
    Ok(Summary {
        blocks: layout.blocks,
        free_blocks,
        inodes: layout.inodes(),
        journal_blocks: layout.journal.iter().map(|run| run.end - run.start).sum(),
    })
}
