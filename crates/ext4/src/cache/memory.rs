//! Buffers of one size, cut from large pieces of memory.
//!
//! The first touch of fresh memory is dearer than writing a file into it, so pieces are as large
//! as the processor's large pages, asked for as such, and kept for the next buffers. Who wants
//! less in all gets smaller ones.

use crate::narrow::saturate32;
use alloc::vec::Vec;

#[cfg(feature = "std")]
type Piece = memmap2::MmapMut;
#[cfg(not(feature = "std"))]
type Piece = alloc::boxed::Box<[u8]>;

/// Most bytes of a piece.
const PIECE: usize = 2 << 20;

/// A source of buffers.
#[derive(Debug)]
pub(crate) struct Memory {
    pieces: Vec<Piece>,
    free: Vec<u32>,
    /// Bytes of a buffer; a power of two.
    size: usize,
    /// Buffers in a piece.
    per_piece: usize,
}

impl Memory {
    /// Buffers of `size` bytes, a power of two, which are to take some `bound` bytes in all.
    pub(crate) fn new(size: usize, bound: usize) -> Self {
        Self {
            pieces: Vec::new(),
            free: Vec::new(),
            size,
            per_piece: (PIECE.min(bound) / size).max(1),
        }
    }

    /// A buffer, whose bytes are anything; `None` if the system has no more memory.
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

    /// Gives a buffer back.
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

    /// A buffer's bytes.
    #[inline]
    pub(crate) fn get(&self, buffer: u32) -> &[u8] {
        let (piece, at) = self.place(buffer);
        self.pieces
            .get(piece)
            .and_then(|piece| piece.get(at..at + self.size))
            .unwrap_or_default()
    }

    /// A buffer's bytes.
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
    // Small pages do as well, only slower.
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
