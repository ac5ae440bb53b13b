//! Allocates buffers of one size from large pieces of memory.
//!
//! The first touch of fresh memory costs more than writing a file into it, so pieces have the size
//! of the processor's large pages, are requested as such, and are kept for the next buffers. A
//! cache with a smaller bound gets smaller pieces.

use alloc::vec::Vec;
use micabox_file::narrow::saturate32;

#[cfg(feature = "std")]
type Piece = memmap2::MmapMut;
#[cfg(not(feature = "std"))]
type Piece = alloc::boxed::Box<[u8]>;

/// Maximum size of a piece in bytes.
const PIECE: usize = 2 << 20;

/// A source of buffers.
#[derive(Debug)]
pub(crate) struct Memory {
    pieces: Vec<Piece>,
    free: Vec<u32>,
    /// Size of a buffer in bytes; a power of two.
    size: usize,
    /// Number of buffers in a piece.
    per_piece: usize,
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
        }
    }

    /// Returns a buffer with arbitrary contents; `None` if the system has no more memory.
    pub(crate) fn take(&mut self) -> Option<u32> {
        if let Some(buffer) = self.free.pop() {
            return Some(buffer);
        }
        let first = u32::try_from(self.pieces.len() * self.per_piece).ok()?;
        self.pieces.push(new_piece(self.per_piece * self.size)?);
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
fn new_piece(size: usize) -> Option<Piece> {
    let piece = memmap2::MmapMut::map_anon(size).ok()?;
    // Small pages also work, only slower.
    #[cfg(target_os = "linux")]
    if size >= PIECE {
        let _ = piece.advise(memmap2::Advice::HugePage);
    }
    Some(piece)
}

#[cfg(not(feature = "std"))]
fn new_piece(size: usize) -> Option<Piece> {
    Some(alloc::vec![0; size].into_boxed_slice())
}
