//! Allocates buffers of one size from large pieces of memory.
//!
//! The first touch of fresh memory costs more than writing a file into it, so pieces have the size
//! of the processor's large pages, are requested as such, and are kept for the next buffers. A
//! cache with a smaller bound gets smaller pieces.
//!
//! In a virtual machine, a large page can be thirty times slower than elsewhere: hosts take back
//! free memory (free page reporting) in blocks of that size, and give it again in small pages, each
//! with a fault of its own. Small pages come from remnants that the host did not take. So after
//! the first slow large page, pieces consist of small ones.

use alloc::vec::Vec;
use micabox_file::narrow::saturate32;

#[cfg(feature = "std")]
type Piece = memmap2::MmapMut;
#[cfg(not(feature = "std"))]
type Piece = alloc::boxed::Box<[u8]>;

/// Maximum size of a piece in bytes.
const PIECE: usize = 2 << 20;

/// Time that a large page takes if the host has to find memory for it: about 5 ms, in place of
/// 0.2 ms for zeroing it.
#[cfg(all(feature = "std", target_os = "linux"))]
const SLOW: core::time::Duration = core::time::Duration::from_millis(1);

/// A source of buffers.
#[derive(Debug)]
pub(crate) struct Memory {
    pieces: Vec<Piece>,
    free: Vec<u32>,
    /// Size of a buffer in bytes; a power of two.
    size: usize,
    /// Number of buffers in a piece.
    per_piece: usize,
    /// Whether pieces are requested as large pages.
    large_pages: bool,
}

impl Memory {
    /// Creates a source of buffers of `size` bytes, a power of two, for a cache of about `bound`
    /// bytes in total.
    pub(crate) fn new(size: usize, bound: usize) -> Self {
        Self {
            pieces: Vec::new(),
            free: Vec::new(),
            size,
            per_piece: (PIECE.min(bound) / size).max(1),
            large_pages: PIECE <= bound,
        }
    }

    /// Returns a buffer with arbitrary contents; `None` if the system has no more memory.
    pub(crate) fn take(&mut self) -> Option<u32> {
        if let Some(buffer) = self.free.pop() {
            return Some(buffer);
        }
        let first = u32::try_from(self.pieces.len() * self.per_piece).ok()?;
        let piece = new_piece(self.per_piece * self.size, &mut self.large_pages)?;
        self.pieces.push(piece);
        self.free
            .extend((first + 1..first + saturate32(self.per_piece)).rev());
        Some(first)
    }

    /// Returns a buffer to the source.
    pub(crate) fn give(&mut self, buffer: u32) {
        self.free.push(buffer);
    }

    fn place(&self, buffer: u32) -> (usize, usize) {
        let per_piece = self.per_piece;
        (
            buffer as usize / per_piece,
            buffer as usize % per_piece * self.size,
        )
    }

    /// Returns a buffer's bytes.
    #[inline]
    pub(crate) fn get(&self, buffer: u32) -> &[u8] {
        let (piece, at) = self.place(buffer);
        self.pieces
            .get(piece)
            .and_then(|piece| piece.get(at..at + self.size))
            .unwrap_or_default()
    }

    /// Returns a buffer's bytes for changes.
    #[inline]
    pub(crate) fn get_mut(&mut self, buffer: u32) -> &mut [u8] {
        let (piece, at) = self.place(buffer);
        let size = self.size;
        self.pieces
            .get_mut(piece)
            .and_then(|piece| piece.get_mut(at..at + size))
            .unwrap_or_default()
    }
}

#[cfg(feature = "std")]
fn new_piece(size: usize, large_pages: &mut bool) -> Option<Piece> {
    let mut piece = memmap2::MmapMut::map_anon(size).ok()?;
    if *large_pages {
        *large_pages = take_large_page(&mut piece);
    }
    Some(piece)
}

/// Requests a piece as a large page, and touches it. Returns whether that was quick; the piece can
/// be used in any case.
#[cfg(all(feature = "std", target_os = "linux"))]
fn take_large_page(piece: &mut Piece) -> bool {
    if piece.advise(memmap2::Advice::HugePage).is_err() {
        return false;
    }
    let start = std::time::Instant::now();
    if let Some(first) = piece.first_mut() {
        *first = 0;
    }
    start.elapsed() < SLOW
}

#[cfg(all(feature = "std", not(target_os = "linux")))]
fn take_large_page(_piece: &mut Piece) -> bool {
    false
}

#[cfg(not(feature = "std"))]
fn new_piece(size: usize, _large_pages: &mut bool) -> Option<Piece> {
    Some(alloc::vec![0; size].into_boxed_slice())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_do_not_overlap_whatever_their_pages() {
        const SIZE: usize = 256 << 10;
        let mut memory = Memory::new(SIZE, 2 * PIECE);
        let mut taken = Vec::new();
        for number in 0..32u8 {
            memory.large_pages = number < 16;
            let buffer = memory.take().unwrap();
            memory.get_mut(buffer).fill(number);
            taken.push((buffer, number));
        }
        for (buffer, number) in taken {
            let bytes = memory.get(buffer);
            assert_eq!(bytes.len(), SIZE);
            assert!(bytes.iter().all(|&byte| byte == number));
            memory.give(buffer);
        }
        let pieces = memory.pieces.len();
        for _ in 0..32 {
            memory.take().unwrap();
        }
        assert_eq!(memory.pieces.len(), pieces, "given buffers are used again");
    }
}
