//! Parts of sparse files.

/// A part of a file that is not a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Where it starts in the file, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
}

impl Segment {
    /// A file of `size` bytes without holes.
    #[must_use]
    pub fn whole(size: u64) -> Self {
        Self {
            offset: 0,
            length: size,
        }
    }

    /// The first byte after it; the largest number if there is none.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}
