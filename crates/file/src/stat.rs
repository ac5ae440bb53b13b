use crate::{FileKind, Timestamp};

/// The attributes of a file, as every filesystem here has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Its number in its filesystem.
    pub number: u64,
    /// What it is.
    pub kind: FileKind,
    /// Permission, set-id and sticky bits.
    pub mode: u16,
    /// Its names; of a directory also its own two, and one for each directory in it, or 1 for too many to count.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Major and minor number of a device.
    pub device: (u32, u32),
    /// Bytes; of a link those of its target.
    pub size: u64,
    /// Blocks of 512 bytes that it occupies.
    pub blocks: u64,
    /// Time of the last access that was recorded.
    pub atime: Timestamp,
    /// Time of the last change of the contents.
    pub mtime: Timestamp,
    /// Time of the last change.
    pub ctime: Timestamp,
    /// Time at which it was made; in an image, that of the last change of the contents.
    pub born: Timestamp,
}
