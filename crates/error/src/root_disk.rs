//! Why a file can't be a root disk.

/// Why a file can't be a root.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskProblem {
    /// The file can't be read, is damaged, or needs a feature that is not supported.
    #[error("{0}")]
    Unusable(String),
    /// There is no such file.
    #[error("{0}")]
    Missing(String),
    /// The file has contents of another kind.
    #[error("it is {0}")]
    Foreign(&'static str),
    /// The file, or the disk image in it, holds something that is no root here.
    #[error("{0}")]
    Contents(String),
    /// The file is a disk image of this kind, and can't be read for this reason.
    #[error("it is {0}, and {1}")]
    Image(String, String),
    /// No partition of the disk can be the root, or it is not known which.
    #[error("{0}")]
    Partitions(String),
    /// The root disk is in a disk image, and changes in place were requested.
    #[error("it is a disk image, and not a filesystem that can be written to")]
    InImage,
    /// The file holds neither an ext4 nor an EROFS filesystem.
    #[error("it holds neither an ext4 nor an EROFS filesystem")]
    Unknown,
    /// The guest's kernel can't mount it.
    #[error("the guest's kernel can't mount it: {0}")]
    NotMounted(String),
    /// The filesystem was not unmounted, and its journal can't be replayed because the root is
    /// read-only.
    #[error("it was not unmounted: its journal has changes that a read-only root would lack")]
    Dirty,
    /// The format is read-only, and changes in place were requested.
    #[error("EROFS can't be written to")]
    ReadOnlyFormat,
    /// Another sandbox writes to the file, or uses it while this one wants to write to it.
    #[error("another sandbox uses it")]
    Busy,
    /// The file has changed since the sandbox was made.
    #[error("it has changed since the sandbox was made, so the sandbox's changes no longer fit it")]
    Changed,
    /// The file is not the root disk that an imported snapshot was made with.
    #[error("it is not the root disk of the snapshot: format, size or UUID differ")]
    Another,
}
