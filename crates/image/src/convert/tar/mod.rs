//! Reads tar archives the way OCI layers need it: one pass, bounded memory, every dialect
//! that occurs in layers.
//!
//! The `tar` crate is not used because it reads extension headers of any length into
//! memory, knows no PAX sparse files, no fractional or negative times, and takes the size
//! field of links and directories at face value where Go's `archive/tar`, and so Docker,
//! containerd and Podman, ignores it.
//!
//! Sources of the rules: POSIX.1-2017 `pax`; the GNU tar manual, "Tar Internals"; Go's
//! `archive/tar` where the two leave something open. `docs/oci.md` lists the decisions.

mod error;
mod header;
mod pax;
mod reader;
mod sparse;

pub(crate) use error::{Error, Limit};
pub(crate) use pax::Records;
pub(crate) use reader::Reader;
pub(crate) use sparse::SparseMap;

use micabox_erofs::Timestamp;

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// A regular file, whose contents follow.
    File,
    /// Another name for an earlier entry.
    HardLink,
    /// A symbolic link.
    Symlink,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// A directory.
    Directory,
    /// A FIFO.
    Fifo,
}

/// One member of an archive, extensions applied. Its contents follow in the [`Reader`].
#[derive(Debug)]
pub(crate) struct Entry {
    /// The name as it stands in the archive: any bytes but NUL, possibly with `..` or a
    /// leading slash.
    pub path: Vec<u8>,
    pub kind: Type,
    /// Target of a hard or symbolic link.
    pub target: Vec<u8>,
    /// Permission bits, 07777.
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    pub mtime: Timestamp,
    /// Major and minor number of a device.
    pub device: (u32, u32),
    /// Length of a regular file in bytes, holes included.
    pub size: u64,
    /// The holes of a sparse file.
    pub sparse: Option<SparseMap>,
    /// The PAX records of this entry alone.
    pub records: Records,
}
