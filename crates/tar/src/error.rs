//! Why bytes are not a tar archive that can be read.

/// A limit that an archive met while its headers were read.
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

/// What is wrong, without where: [`crate::Reader::offset`] and [`crate::Reader::name`] tell.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The input can't be read.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The input ends too early.
    #[error("the archive ends in the middle of {0}")]
    Truncated(&'static str),
    /// Not a header, or a damaged one.
    #[error("the header's checksum is wrong")]
    Checksum,
    /// Neither a member nor the end.
    #[error("a block of zeros is followed by neither another one nor the archive's end")]
    LoneZeroBlock,
    /// A field of the header.
    #[error("the {0} field is not a number or out of range")]
    Number(&'static str),
    /// A type flag without a meaning.
    #[error("its type `{}` is unknown: it is not one that a filesystem can have", .0.escape_ascii())]
    Type(u8),
    /// Not of the form that POSIX gives.
    #[error("a record of the extended header is malformed")]
    Record,
    /// A record's value makes no sense.
    #[error("the extended header's `{key}` is invalid")]
    RecordValue {
        /// The record.
        key: String,
    },
    /// No path on Linux has one.
    #[error("the {0} contains a NUL byte")]
    Nul(&'static str),
    /// The segments of a sparse file.
    #[error("the map of the sparse file is invalid: {0}")]
    Sparse(&'static str),
    /// More than the caller allows.
    #[error("exceeds a limit")]
    Limit(Limit),
}

/// A name from an archive, made fit to be printed: escaped, and cut if it is long.
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
