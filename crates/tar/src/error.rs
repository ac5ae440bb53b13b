//! Errors of reading a tar archive.

/// A limit that an archive exceeded while its headers were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// [`crate::Limits::header_size`].
    HeaderSize,
    /// [`crate::Limits::path_length`].
    PathLength,
    /// [`crate::Limits::sparse_segments`].
    SparseSegments,
}

/// The reason of a failure, without its place: see [`crate::Reader::offset`] and
/// [`crate::Reader::name`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Reading the input failed.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The input ends too early.
    #[error("the archive ends in the middle of {0}")]
    Truncated(&'static str),
    /// The block is not a header, or is damaged.
    #[error("the header's checksum is wrong")]
    Checksum,
    /// A block of zeros is not followed by another one or by the end of the archive.
    #[error("a block of zeros is followed by neither another one nor the archive's end")]
    LoneZeroBlock,
    /// A field of the header is invalid.
    #[error("the {0} field is not a number or out of range")]
    Number(&'static str),
    /// Unknown type flag.
    #[error("its type `{}` is unknown: it is not one that a filesystem can have", .0.escape_ascii())]
    Type(u8),
    /// A record does not have the form that POSIX defines.
    #[error("a record of the extended header is malformed")]
    Record,
    /// A record's value is invalid.
    #[error("the extended header's `{key}` is invalid")]
    RecordValue {
        /// The record.
        key: String,
    },
    /// A path contains a NUL byte, which is impossible on Linux.
    #[error("the {0} contains a NUL byte")]
    Nul(&'static str),
    /// The segments of a sparse file are invalid.
    #[error("the map of the sparse file is invalid: {0}")]
    Sparse(&'static str),
    /// The archive exceeds a limit of the caller.
    #[error("exceeds a limit")]
    Limit(Limit),
}

/// Formats a name from an archive for printing: escaped, and cut if it is long.
#[must_use]
pub fn printable(name: &[u8]) -> String {
    const MOST: usize = 512;
    let mut text = match std::str::from_utf8(name) {
        Ok(text) => text.escape_debug().to_string(),
        Err(_) => name.escape_ascii().to_string(),
    };
    if text.len() > MOST {
        let end = (0..=MOST)
            .rev()
            .find(|&end| text.is_char_boundary(end))
            .unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}
