//! The pieces of a file, and which of them are here.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Bytes of a piece.
pub const PIECE: u64 = 64 << 10;

/// Most pieces that are asked for at once, and named in an answer: 2 MiB.
pub const MOST: u32 = 32;

/// Which pieces of a file are here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pieces {
    /// A bit each, from the lowest one of each byte.
    bits: Vec<u8>,
    count: u32,
}

/// Returns how many pieces a file of this size has.
pub fn count(size: u64) -> u32 {
    u32::try_from(size.div_ceil(PIECE)).unwrap_or(u32::MAX)
}

/// Returns the pieces of the 2 MiB that have a piece.
pub fn window(piece: u32) -> Range<u32> {
    let start = piece / MOST * MOST;
    start..start.saturating_add(MOST)
}

impl Pieces {
    /// Returns those of a file of this size, of which none is here.
    pub fn none(size: u64) -> Self {
        let count = count(size);
        Self {
            bits: vec![0; count.div_ceil(8) as usize],
            count,
        }
    }

    /// Returns how many bytes it takes to name all pieces.
    pub(crate) fn bytes(&self) -> u64 {
        self.bits.len() as u64
    }

    /// Returns the byte that has a piece's bit, with its place among them.
    pub(crate) fn byte(&self, piece: u32) -> (u64, u8) {
        let place = piece / 8;
        let byte = self.bits.get(place as usize);
        (place.into(), byte.copied().unwrap_or_default())
    }

    /// Reads the bits of some pieces from a file that has them all.
    ///
    /// # Errors
    ///
    /// Those of reading it.
    pub(crate) fn look(&mut self, file: &File, pieces: &Range<u32>) -> io::Result<()> {
        let bytes = (pieces.start / 8) as usize..(pieces.end.min(self.count)).div_ceil(8) as usize;
        let at = bytes.start as u64;
        let bits = self
            .bits
            .get_mut(bytes)
            .ok_or(io::ErrorKind::InvalidInput)?;
        file.read_exact_at(bits, at)
    }

    /// Returns how many pieces the file has.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns whether a piece is here; false for one that the file does not have.
    pub fn has(&self, piece: u32) -> bool {
        let byte = self.bits.get((piece / 8) as usize);
        piece < self.count && byte.is_some_and(|byte| byte >> (piece % 8) & 1 == 1)
    }

    /// Notes that a piece is here.
    pub fn add(&mut self, piece: u32) {
        if let Some(byte) = self.bits.get_mut((piece / 8) as usize) {
            *byte |= 1 << (piece % 8);
        }
    }

    /// Returns the pieces that are here around one, as far as they have the same 2 MiB; an empty range if it is not.
    pub fn run(&self, piece: u32) -> Range<u32> {
        if !self.has(piece) {
            return piece..piece;
        }
        let (mut start, mut end) = (piece, piece + 1);
        let window = window(piece);
        while start > window.start && self.has(start - 1) {
            start -= 1;
        }
        while end < window.end && self.has(end) {
            end += 1;
        }
        start..end
    }

    /// Returns the runs of pieces that are here, of any length, in a range.
    pub fn runs(&self, within: Range<u32>) -> impl Iterator<Item = Range<u32>> {
        self.alike(within, true)
    }

    /// Returns the runs of pieces that are missing in a range.
    pub fn gaps(&self, within: Range<u32>) -> impl Iterator<Item = Range<u32>> {
        self.alike(within, false)
    }

    fn alike(&self, within: Range<u32>, is_here: bool) -> impl Iterator<Item = Range<u32>> {
        let end = within.end.min(self.count);
        let mut next = within.start;
        std::iter::from_fn(move || {
            let start = (next..end).find(|piece| self.has(*piece) == is_here)?;
            let behind = (start..end).find(|piece| self.has(*piece) != is_here);
            next = behind.unwrap_or(end);
            Some(start..next)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(pieces: &Pieces) -> Vec<(u32, u32)> {
        let runs = pieces.runs(0..u32::MAX);
        runs.map(|run| (run.start, run.end)).collect()
    }

    #[test]
    fn runs_and_gaps_are_what_was_added_and_nothing_else() {
        let mut pieces = Pieces::none(100 * PIECE + 1);
        assert_eq!(pieces.count(), 101);
        for piece in [0, 1, 30, 31, 32, 33, 100] {
            pieces.add(piece);
        }
        pieces.add(101);
        pieces.add(4000);
        assert!(!pieces.has(101) && !pieces.has(u32::MAX));
        assert_eq!(runs(&pieces), [(0, 2), (30, 34), (100, 101)]);
        let gaps: Vec<_> = pieces.gaps(1..36).collect();
        assert_eq!(gaps, [2..30, 34..36]);
        // An answer stays within 2 MiB.
        assert_eq!(pieces.run(31), 30..32);
        assert_eq!(pieces.run(32), 32..34);
        assert_eq!(pieces.run(2), 2..2);
        // What another process has written is seen where it is looked for.
        let file = tempfile::tempfile().unwrap();
        for piece in [31, 32] {
            let (at, byte) = pieces.byte(piece);
            file.write_all_at(&[byte], at).unwrap();
        }
        file.set_len(pieces.bytes()).unwrap();
        let mut others = Pieces::none(100 * PIECE + 1);
        others.look(&file, &window(32)).unwrap();
        assert_eq!(runs(&others), [(32, 34)]);
        others.look(&file, &(0..u32::MAX)).unwrap();
        assert_eq!(runs(&others), [(30, 34)]);
    }
}
