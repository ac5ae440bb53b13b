//! Divides a sparse file into chunks.

use micabox_file::Segment;

use crate::{BLOCK_SIZE, Error, Result};

/// The format stores the chunk size in five bits.
pub(crate) const CHUNK_BITS_MAX: u8 = 31;

/// Size in bytes of a chunk's entry in the inode.
const CHUNK_ENTRY: u64 = 4;

/// Chunks that any file may have; each of its segments allows [`CHUNKS_PER_SEGMENT`] more. Without
/// a limit, a small archive could claim a few bytes in a file of exabytes, and the list of chunks
/// would take all memory.
const CHUNKS_FREE: u64 = 16384;
const CHUNKS_PER_SEGMENT: u64 = 64;

/// The largest file, in bytes: covered by the free chunks at their largest size.
pub(crate) const FILE_SIZE_MAX: u64 = CHUNKS_FREE * (BLOCK_SIZE << CHUNK_BITS_MAX);

/// Returns the size in bytes of a chunk of 2^`bits` blocks.
pub(crate) fn chunk_size(bits: u8) -> u64 {
    BLOCK_SIZE << bits
}

/// Checks that the segments are in order, disjoint and inside the file.
pub(crate) fn check_segments(size: u64, segments: &[Segment]) -> Result<()> {
    let mut end = 0;
    for segment in segments {
        let next = segment.offset.checked_add(segment.length);
        match next {
            Some(next) if segment.offset >= end && next <= size => end = next,
            _ => {
                return Err(Error::Segment {
                    offset: segment.offset,
                    length: segment.length,
                    size,
                });
            }
        }
    }
    Ok(())
}

/// Returns the chunk size for a file, as a power of two of blocks: the one that makes the image
/// smallest. Small chunks take many entries; large ones include parts of holes, which cost address
/// space but no disk space. The larger one wins a tie.
pub(crate) fn choose_chunk_bits(size: u64, segments: &[Segment]) -> u8 {
    let most = CHUNKS_FREE + CHUNKS_PER_SEGMENT.saturating_mul(segments.len() as u64);
    let mut best = (u64::MAX, CHUNK_BITS_MAX);
    for bits in 0..=CHUNK_BITS_MAX {
        let chunks = size.div_ceil(chunk_size(bits));
        if chunks > most {
            continue;
        }
        let cost = chunks
            .saturating_mul(CHUNK_ENTRY)
            .saturating_add(allocated(size, segments, bits));
        if cost <= best.0 {
            best = (cost, bits);
        }
        if chunk_size(bits) >= size {
            break;
        }
    }
    best.1
}

/// Returns the size in bytes of all chunks that hold some data.
fn allocated(size: u64, segments: &[Segment], bits: u8) -> u64 {
    let chunk = chunk_size(bits);
    let mut end = 0u64;
    let mut total = 0u64;
    for segment in segments.iter().filter(|s| s.length > 0) {
        let first = (segment.offset / chunk * chunk).max(end);
        end = segment
            .end()
            .div_ceil(chunk)
            .saturating_mul(chunk)
            .min(size.next_multiple_of(BLOCK_SIZE));
        total = total.saturating_add(end.saturating_sub(first));
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn segment(offset: u64, length: u64) -> Segment {
        Segment { offset, length }
    }

    #[test]
    fn segments_must_ascend_and_fit() {
        assert!(check_segments(10, &[segment(0, 5), segment(5, 5), segment(10, 0)]).is_ok());
        assert!(check_segments(10, &[segment(5, 5), segment(0, 5)]).is_err());
        assert!(check_segments(10, &[segment(0, 6), segment(5, 1)]).is_err());
        assert!(check_segments(10, &[segment(0, 11)]).is_err());
        assert!(check_segments(10, &[segment(1, u64::MAX)]).is_err());
    }

    #[test]
    fn a_hole_alone_is_one_chunk() {
        assert_eq!(choose_chunk_bits(1 << 40, &[]), 28);
        assert_eq!(choose_chunk_bits(1, &[]), 0);
        assert_eq!(choose_chunk_bits(FILE_SIZE_MAX, &[]), CHUNK_BITS_MAX);
    }

    #[test]
    fn aligned_pieces_are_not_padded() {
        let mib = 1 << 20;
        assert_eq!(
            choose_chunk_bits(64 * mib, &[segment(8 * mib, 8 * mib)]),
            11
        );
    }

    #[test]
    fn a_huge_file_with_crumbs_balances_index_and_padding() {
        let size = 292 << 30;
        let crumbs = [segment(0, 4096), segment(size - 4096, 4096)];
        let bits = choose_chunk_bits(size, &crumbs);
        assert!(size.div_ceil(chunk_size(bits)) <= CHUNKS_FREE + 2 * CHUNKS_PER_SEGMENT);
        assert!(allocated(size, &crumbs, bits) <= 64 << 20);
    }

    #[test]
    fn chunks_shared_by_segments_count_once() {
        let segments = [segment(0, 1), segment(5000, 1), segment(9000, 1)];
        assert_eq!(allocated(10000, &segments, 0), 3 * 4096);
        assert_eq!(allocated(10000, &segments, 1), 3 * 4096);
        assert_eq!(allocated(100_000, &segments, 1), 4 * 4096);
    }
}
