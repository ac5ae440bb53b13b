//! Where a part of an image is cut into chunks.

use std::io::{self, Read};

use fastcdc::v2020::FastCDC;

/// Bytes of the largest chunk. A file that is not larger is one chunk, so that it is found again in any other image.
pub const LARGEST: usize = 256 << 10;
/// Bytes of the smallest chunk of a larger file, but for its last one, and of an average one.
const SMALLEST: usize = 64 << 10;
const AVERAGE: usize = 128 << 10;

/// Bytes that are read ahead.
const BUFFER: usize = 16 * LARGEST;

/// Cuts a part of an image, a file's contents or what is between files, into chunks: it is one if it is not larger
/// than [`LARGEST`]; otherwise its content says where (FastCDC), so that equal parts of files that differ have equal
/// chunks.
#[derive(Debug)]
pub struct Cut<R> {
    part: R,
    buffer: Vec<u8>,
    /// Bytes of the buffer that were returned.
    used: usize,
    /// Whether all of the part fits into the buffer.
    is_whole: bool,
    is_begun: bool,
}

impl<R: Read> Cut<R> {
    /// Begins to cut what `part` has until its end.
    pub fn new(part: R) -> Self {
        Self {
            part,
            buffer: Vec::new(),
            used: 0,
            is_whole: false,
            is_begun: false,
        }
    }

    /// Returns the next chunk; `None` at the end.
    ///
    /// # Errors
    ///
    /// The part's.
    pub fn next_chunk(&mut self) -> io::Result<Option<&[u8]>> {
        if !self.is_whole && self.buffer.len() - self.used <= LARGEST {
            self.buffer.drain(..self.used);
            self.used = 0;
            let most = (BUFFER - self.buffer.len()) as u64;
            let read = self
                .part
                .by_ref()
                .take(most)
                .read_to_end(&mut self.buffer)?;
            self.is_whole = (read as u64) < most;
        }
        let rest = self.buffer.get(self.used..).unwrap_or_default();
        let is_small = !self.is_begun && self.is_whole && rest.len() <= LARGEST;
        self.is_begun = true;
        let length = if is_small {
            rest.len()
        } else {
            let (small, average, large) = (SMALLEST as u32, AVERAGE as u32, LARGEST as u32);
            let mut chunks = FastCDC::new(rest, small, average, large);
            chunks.next().map_or(0, |chunk| chunk.length)
        };
        let from = self.used;
        self.used += length;
        Ok(self
            .buffer
            .get(from..self.used)
            .filter(|chunk| !chunk.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cut(mut part: &[u8]) -> Vec<Vec<u8>> {
        let mut cut = Cut::new(&mut part);
        let mut chunks = Vec::new();
        while let Some(chunk) = cut.next_chunk().unwrap() {
            chunks.push(chunk.to_vec());
        }
        chunks
    }

    /// Bytes that do not repeat.
    fn noise(seed: u64, length: usize) -> Vec<u8> {
        let mut state = seed | 1;
        let step = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        std::iter::repeat_with(step).take(length).collect()
    }

    #[test]
    fn a_file_that_is_not_large_is_one_chunk() {
        assert!(cut(b"").is_empty());
        for length in [1, 4096, LARGEST] {
            assert_eq!(cut(&noise(1, length)), [noise(1, length)]);
        }
        assert!(cut(&noise(1, LARGEST + 1)).len() > 1);
    }

    #[test]
    fn what_is_inserted_changes_few_chunks() {
        let before = noise(7, 6 << 20);
        let mut after = before.clone();
        after.splice(1_000_000..1_000_000, *b"inserted");
        let known = cut(&before);
        let new = cut(&after);
        let new = new.iter().filter(|chunk| !known.contains(chunk)).count();
        assert!(new <= 3, "{new} of {}", known.len());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn chunks_are_the_whole_part_within_their_sizes(length in 0..9_000_000usize, seed: u64) {
            let part = noise(seed, length);
            let chunks = cut(&part);
            prop_assert_eq!(chunks.concat(), part);
            for (number, chunk) in chunks.iter().enumerate() {
                let is_last = number + 1 == chunks.len();
                prop_assert!(chunk.len() <= LARGEST && (chunk.len() >= SMALLEST || is_last));
            }
        }
    }
}
