//! Parts of sparse files.

/// A part of a file that is not a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Start in the file, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
}

impl Segment {
    /// Returns the segment of a file of `size` bytes without holes.
    #[must_use]
    pub fn whole(size: u64) -> Self {
        Self {
            offset: 0,
            length: size,
        }
    }

    /// Returns the first byte after the segment; the largest number if that overflows.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}
