//! Why a disk can't be read.

use std::io;

/// Why a disk can't be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file can't be read.
    #[error("reading it: {0}")]
    Read(io::Error),
    /// The copy can't be written.
    #[error("writing its contents: {0}")]
    Write(io::Error),
    /// The file contradicts itself.
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
    /// The file needs something that is not read.
    #[error("it has {0}")]
    Unsupported(String),
    /// Its contents are far larger than the file.
    #[error("its contents are more than {0} bytes, out of proportion to the file")]
    Bomb(u64),
    /// There is no such partition.
    #[error("none of its partitions has the number {0}")]
    NoPartition(u32),
    /// None of its partitions holds a filesystem that is read.
    #[error("none of its partitions holds an ext4 or EROFS filesystem{0}")]
    NoFilesystem(String),
    /// More than one of its partitions may be meant.
    #[error("more than one of its partitions may be the root: {0}")]
    Ambiguous(String),
}

impl Error {
    pub(crate) fn unsupported(what: impl Into<String>) -> Self {
        Self::Unsupported(what.into())
    }
}
