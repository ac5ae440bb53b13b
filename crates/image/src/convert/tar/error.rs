//! Why bytes are not a tar archive that can be read.

/// A limit that an archive met while its headers were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    HeaderSize,
    PathLength,
    SparseSegments,
}

/// What is wrong, without where: the caller knows the position and the last name read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("the archive ends in the middle of {0}")]
    Truncated(&'static str),
    #[error("the header's checksum is wrong")]
    Checksum,
    #[error("a block of zeros is followed by neither another one nor the archive's end")]
    LoneZeroBlock,
    #[error("the {0} field is not a number or out of range")]
    Number(&'static str),
    #[error("its type `{}` is unknown: it is not one that a filesystem can have", .0.escape_ascii())]
    Type(u8),
    #[error("a record of the extended header is malformed")]
    Record,
    #[error("the extended header's `{key}` is invalid")]
    RecordValue { key: String },
    #[error("the {0} contains a NUL byte")]
    Nul(&'static str),
    #[error("the map of the sparse file is invalid: {0}")]
    Sparse(&'static str),
    #[error("exceeds a limit")]
    Limit(Limit),
}
