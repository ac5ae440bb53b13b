//! The memory map that the kernel gets.

use crate::kvm::memory::layout;

/// An entry of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) start: u64,
    pub(super) size: u64,
    /// `E820_TYPE_RAM` or `E820_TYPE_RESERVED`.
    pub(super) kind: u32,
}

const RAM: u32 = 1;
const RESERVED: u32 = 2;

/// Returns the map of `ram_size` bytes of RAM. It does not contain pmem, which its devices
/// announce.
pub(super) fn pieces(ram_size: u64) -> Vec<Piece> {
    let piece = |range: std::ops::Range<u64>, kind| Piece {
        start: range.start,
        size: range.end.saturating_sub(range.start),
        kind,
    };
    let mut pieces = vec![
        piece(0..layout::LOW_RAM_END, RAM),
        piece(layout::ACPI, RESERVED),
    ];
    for range in layout::ram(ram_size) {
        pieces.push(piece(range.start.max(layout::HIGH_RAM)..range.end, RAM));
    }
    pieces
}
