//! Makes an empty filesystem.
//!
//! Writes only what is necessary: the target must read as zeros. Tables of groups without files are
//! never touched (uninit_bg), and the superblock is copied to two groups (sparse_super2), so a
//! filesystem of 8 GiB takes a dozen writes. It can grow by meta_bg.

mod emit;
mod layout;

use layout::Layout;

use crate::{BlockDevice, DeviceError};

/// Block size in bytes.
const BLOCK_SIZE: u64 = 4096;
/// Number of blocks of a group: the bits of one block of bitmap.
const BLOCKS_PER_GROUP: u64 = BLOCK_SIZE * 8;
/// Size of an inode in bytes.
const INODE_SIZE: u64 = 256;
/// Maximum number of groups: their descriptors fit into one group (256 TiB).
const GROUPS_MAX: u32 = 1 << 21;

/// Properties of a new filesystem.
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
    /// The size that mke2fs chooses: 4 MiB to 1 GiB, none below 8 MiB of filesystem.
    #[default]
    Default,
    /// This many bytes, at least 4 MiB.
    Bytes(u64),
    /// No journal.
    None,
}

/// The reason why a filesystem can't be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MkfsError {
    /// There is no room for the tables, the journal or a single file.
    #[error("{0} bytes are too small for a filesystem with these tables and this journal")]
    TooSmall(u64),
    /// The descriptors of all groups do not fit into one group.
    #[error("{0} bytes are beyond the 256 TiB that a filesystem can have here")]
    TooLarge(u64),
    /// More than 32768 inodes in a group, or more than 2^32 - 1 in total.
    #[error("{0} inodes are more than the groups have room for (one for each block)")]
    TooManyInodes(u64),
    /// A journal of a size that the format does not allow.
    #[error("a journal of {0} bytes is not between 4 MiB and 39 GiB")]
    JournalSize(u64),
    /// The device failed.
    #[error("cannot write the filesystem: {0}")]
    Device(#[from] DeviceError),
}

/// The properties of a filesystem that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Number of blocks of 4 KiB.
    pub blocks: u64,
    /// Number of free blocks.
    pub free_blocks: u64,
    /// Number of inodes.
    pub inodes: u64,
    /// Number of blocks of the journal.
    pub journal_blocks: u64,
}

/// Makes a filesystem of at most `size` bytes on a device that reads as zeros, such as a new
/// sparse file of that length. The superblock is written last. Does not flush.
///
/// # Errors
///
/// [`MkfsError`]; the device's contents are undefined after one.
pub fn mkfs(
    device: &mut dyn BlockDevice,
    size: u64,
    options: &Options,
) -> Result<Summary, MkfsError> {
    let layout = Layout::new(size, options)?;
    let free_blocks = emit::emit(&layout, options, device)?;
    Ok(Summary {
        blocks: layout.blocks,
        free_blocks,
        inodes: layout.inodes(),
        journal_blocks: layout.journal.iter().map(|run| run.end - run.start).sum(),
    })
}
