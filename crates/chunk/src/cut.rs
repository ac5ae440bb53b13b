//! Where a filesystem image is cut into chunks.

use std::iter::FusedIterator;
use std::ops::Range;

/// Bytes of the smallest chunk, but for the last one of an image.
pub const SMALLEST: u64 = 64 << 10;
/// Bytes of the largest chunk.
pub const LARGEST: u64 = 256 << 10;

/// Cuts an image into ranges of [`SMALLEST`] to [`LARGEST`] bytes, at the first start of a file's contents in that
/// distance, or else after [`LARGEST`] bytes. The same image always has the same cuts.
///
/// A program's start reads whole files: cut at their starts, few chunks have bytes that it doesn't read.
#[derive(Debug, Clone)]
pub struct Cuts<S> {
    starts: S,
    /// The first start that isn't passed yet.
    start: Option<u64>,
    at: u64,
    size: u64,
}

impl<S: Iterator<Item = u64>> Cuts<S> {
    /// Cuts an image of `size` bytes. `starts` are byte offsets of files' contents, in ascending order; those that
    /// don't ascend are passed over.
    pub fn new(starts: impl IntoIterator<IntoIter = S>, size: u64) -> Self {
        Self {
            starts: starts.into_iter(),
            start: Some(0),
            at: 0,
            size,
        }
    }
}

impl<S: Iterator<Item = u64>> Iterator for Cuts<S> {
    type Item = Range<u64>;

    fn next(&mut self) -> Option<Range<u64>> {
        let left = self.size - self.at;
        if left == 0 {
            return None;
        }
        let from = self.at;
        while self.start.is_some_and(|start| start < from + SMALLEST) {
            self.start = self.starts.next();
        }
        let largest = from + LARGEST.min(left);
        self.at = match self.start {
            Some(start) if start < largest => start,
            _ => largest,
        };
        Some(from..self.at)
    }
}

impl<S: Iterator<Item = u64>> FusedIterator for Cuts<S> {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cuts(starts: &[u64], size: u64) -> Vec<Range<u64>> {
        Cuts::new(starts.iter().copied(), size).collect()
    }

    #[test]
    fn chunks_begin_where_files_do() {
        assert_eq!(cuts(&[], 0), []);
        assert_eq!(cuts(&[0], 1).first(), Some(&(0..1)));
        let k = 1 << 10;
        assert_eq!(
            cuts(&[4 * k, 60 * k, 72 * k, 80 * k, 600 * k], 1000 * k),
            [
                0..72 * k,
                72 * k..328 * k,
                328 * k..584 * k,
                584 * k..840 * k,
                840 * k..1000 * k,
            ]
        );
        assert_eq!(
            cuts(&[64 * k, 320 * k], 330 * k),
            [0..64 * k, 64 * k..320 * k, 320 * k..330 * k]
        );
    }

    proptest! {
        #[test]
        fn chunks_are_the_whole_image_within_their_sizes(
            starts in prop::collection::vec(0..3_000_000u64, 0..60),
            size in 0..3_000_000u64,
        ) {
            let cuts = cuts(&starts, size);
            let mut at = 0;
            for (number, cut) in cuts.iter().enumerate() {
                prop_assert_eq!(cut.start, at);
                let length = cut.end - cut.start;
                prop_assert!(length <= LARGEST && (length >= SMALLEST || number + 1 == cuts.len()));
                at = cut.end;
            }
            prop_assert_eq!(at, size);
        }
    }
}
