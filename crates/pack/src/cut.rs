//! Where a part of an image is cut into chunks.

use std::io::{self, Read};

use fastcdc::v2020::FastCDC;

/// Bytes of the largest chunk. A segment that is not larger is one chunk, so that it is found again in any other image.
pub const LARGEST: usize = 256 << 10;
/// Bytes of the smallest chunk of a larger segment, but for its last one, and of an average one.
const SMALLEST: usize = 64 << 10;
const AVERAGE: usize = 128 << 10;

/// Bytes of a filesystem's block.
const BLOCK: usize = 4096;

/// Zeros at the end of a block that end a segment: nearly every file ends in such a block, in an image of a layer and on a
/// disk, and few blocks within a file are like that.
const TAIL: usize = 64;

/// Bytes that are read ahead.
const BUFFER: usize = 16 * LARGEST;

/// Cuts a part of an image into chunks. Of whole blocks of zeros no chunks are made. The rest is cut where a block ends
/// with zeros, as the last one of a file does, without knowing the filesystem: so a file has the same chunks wherever its
/// blocks follow each other. Such a segment is one chunk if it is not larger than [`LARGEST`]; otherwise its content says
/// where it is cut (FastCDC), so that equal parts of files that differ have equal chunks.
#[derive(Debug)]
pub struct Cut<R> {
    part: R,
    buffer: Vec<u8>,
    /// Bytes of the buffer that were returned.
    used: usize,
    /// Whether all of the part fits into the buffer.
    is_whole: bool,
    /// Bytes of the current block that were returned.
    within: usize,
    /// Whether the next byte is the first one of a segment.
    at_start: bool,
}

/// A piece of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Bytes.
    Chunk(&'a [u8]),
    /// So many zeros.
    Zeros(usize),
}

impl<R: Read> Cut<R> {
    /// Begins to cut what `part` has until its end. Its first byte is that of a block.
    pub fn new(part: R) -> Self {
        Self {
            part,
            buffer: Vec::new(),
            used: 0,
            is_whole: false,
            within: 0,
            at_start: true,
        }
    }

    /// Returns the next piece; `None` at the end.
    ///
    /// # Errors
    ///
    /// The part's.
    pub fn next_piece(&mut self) -> io::Result<Option<Piece<'_>>> {
        self.fill()?;
        let rest = self.buffer.get(self.used..).unwrap_or_default();
        if rest.is_empty() {
            return Ok(None);
        }
        let zeros = if self.at_start { zero_blocks(rest) } else { 0 };
        let from = self.used;
        if zeros > 0 {
            self.used += zeros;
            return Ok(Some(Piece::Zeros(zeros)));
        }
        let tail = segment_end(rest, self.within);
        let end = tail.or_else(|| (self.is_whole && rest.len() <= LARGEST).then_some(rest.len()));
        let length = match end {
            Some(end) if self.at_start => end,
            end => {
                let (small, average, large) = (SMALLEST as u32, AVERAGE as u32, LARGEST as u32);
                let segment = rest.get(..end.unwrap_or(rest.len())).unwrap_or_default();
                let mut chunks = FastCDC::new(segment, small, average, large);
                chunks.next().map_or(segment.len(), |chunk| chunk.length)
            }
        };
        self.used += length;
        self.within = (self.within + length) % BLOCK;
        self.at_start = tail == Some(length);
        Ok(self.buffer.get(from..self.used).map(Piece::Chunk))
    }

    /// Reads until the buffer has more than a chunk, or all that is left.
    fn fill(&mut self) -> io::Result<()> {
        if self.is_whole || self.buffer.len() - self.used > LARGEST {
            return Ok(());
        }
        self.buffer.drain(..self.used);
        self.used = 0;
        let most = (BUFFER - self.buffer.len()) as u64;
        let read = self
            .part
            .by_ref()
            .take(most)
            .read_to_end(&mut self.buffer)?;
        self.is_whole = (read as u64) < most;
        Ok(())
    }
}

/// Returns how many bytes the whole blocks of zeros take that `bytes`, of which the first is a block's, begins with.
fn zero_blocks(bytes: &[u8]) -> usize {
    let blocks = bytes.chunks_exact(BLOCK);
    // Few other blocks begin with a zero.
    let is_zero = |block: &&[u8]| block.first() == Some(&0) && block.iter().all(|byte| *byte == 0);
    blocks.take_while(is_zero).count() * BLOCK
}

/// Returns the end of the first block that ends with zeros, if it is in the first [`LARGEST`] of `bytes`, which begin
/// after `within` bytes of a block.
fn segment_end(bytes: &[u8], within: usize) -> Option<usize> {
    let most = bytes.len().min(LARGEST);
    let ends = (BLOCK - within..=most).step_by(BLOCK);
    let mut ends = ends.filter(|end| {
        let block = bytes.get(..*end).unwrap_or_default();
        block.ends_with(&[0; TAIL])
    });
    ends.next()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns a part's pieces, those of zeros as zeros.
    fn pieces(mut part: &[u8]) -> Vec<Vec<u8>> {
        let mut cut = Cut::new(&mut part);
        let mut pieces = Vec::new();
        while let Some(piece) = cut.next_piece().unwrap() {
            pieces.push(match piece {
                Piece::Chunk(bytes) => bytes.to_vec(),
                Piece::Zeros(length) => vec![0; length],
            });
        }
        pieces
    }

    /// Returns a part's chunks.
    fn cut(part: &[u8]) -> Vec<Vec<u8>> {
        let mut pieces = pieces(part);
        pieces.retain(|piece| piece.iter().any(|byte| *byte != 0));
        pieces
    }

    /// Returns a file as a filesystem has it: in whole blocks.
    fn file(seed: u64, length: usize) -> Vec<u8> {
        let mut bytes = noise(seed, length);
        bytes.resize(length.next_multiple_of(BLOCK), 0);
        bytes
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

    #[test]
    fn files_have_the_same_chunks_in_any_order_and_beside_any_others() {
        let files = [300, 5000, 70_000, 1_000_000, 9000].map(|length| file(length as u64, length));
        let chunks: Vec<_> = files.iter().flat_map(|file| cut(file)).collect();
        assert!(chunks.len() > files.len() && chunks.len() < 20);
        for order in [[3, 1, 4, 0, 2], [2, 0, 3, 4, 1]] {
            let mut disk = noise(77, 3 * BLOCK - TAIL);
            disk.resize(3 * BLOCK, 0);
            disk.extend([0; 5 * BLOCK]);
            disk.extend(order.iter().flat_map(|number| files[*number].clone()));
            let found = cut(&disk);
            assert!(chunks.iter().all(|chunk| found.contains(chunk)));
            assert_eq!(found.len(), chunks.len() + 1);
        }
    }

    #[test]
    fn blocks_of_zeros_are_in_no_chunk_and_a_part_of_one_is() {
        let mut part = vec![0; 3 * BLOCK];
        part.extend(file(1, 100));
        part.extend(vec![0; 2 * BUFFER]);
        part.extend([0; 10]);
        let chunks = pieces(&part);
        assert_eq!(chunks.concat(), part);
        assert_eq!(chunks[..2], [vec![0; 3 * BLOCK], file(1, 100)]);
        assert_eq!(chunks.last().unwrap(), &[0; 10]);
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

        #[test]
        fn whatever_is_zero_the_pieces_are_the_whole_part(
            runs in prop::collection::vec((any::<bool>(), 0..300_000usize), 0..20),
            seed: u64,
        ) {
            let runs = runs.into_iter();
            let runs = runs.map(|(is_zero, length)| if is_zero { vec![0; length] } else { noise(seed, length) });
            let part: Vec<u8> = runs.flatten().collect();
            let pieces = pieces(&part);
            prop_assert!(pieces.iter().all(|piece| !piece.is_empty()));
            let is_chunk = |piece: &&Vec<u8>| piece.iter().any(|byte| *byte != 0);
            prop_assert!(pieces.iter().filter(is_chunk).all(|chunk| chunk.len() <= LARGEST));
            prop_assert_eq!(pieces.concat(), part);
        }
    }
}
