//! Chooses positions of inodes in the inode area.
//!
//! Inline content may not cross a block boundary, so inodes with inline content often leave a gap
//! before them. Smaller inodes that follow fill the gaps.

use crate::BLOCK_SIZE;
use crate::format::INODE_SLOT;

/// Maximum number of gaps remembered: the larger recent ones suffice.
const GAPS: usize = 16;

/// The inode area while it is filled. Positions and lengths are in bytes.
pub(super) struct Places {
    end: u64,
    gaps: Vec<Gap>,
}

/// Free space within one block.
struct Gap {
    at: u64,
    length: u64,
}

impl Places {
    /// Starts an empty area. Its head stays free: 0 is not a valid inode number in Linux, and some
    /// filesystems reserve 1.
    pub(super) fn new() -> Self {
        Self {
            end: 2 * INODE_SLOT,
            gaps: Vec::new(),
        }
    }

    /// Returns the length of the area in bytes.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Places `length` bytes that may cross block boundaries after the first `inode` bytes.
    pub(super) fn place(&mut self, length: u64, inode: u64) -> u64 {
        if let Some(at) = self.fill_gap(length) {
            return at;
        }
        if self.end % BLOCK_SIZE + inode > BLOCK_SIZE {
            self.next_block();
        }
        self.append(length)
    }

    /// Places `fixed` bytes and a tail that must lie within one block. `None` if that is impossible
    /// at any position.
    pub(super) fn place_with_tail(&mut self, fixed: u64, tail: u64) -> Option<u64> {
        if fixed % BLOCK_SIZE + tail > BLOCK_SIZE {
            return None;
        }
        let length = fixed + tail;
        if let Some(at) = self.fill_gap(length) {
            return Some(at);
        }
        if self.end % BLOCK_SIZE + length > BLOCK_SIZE {
            self.next_block();
        }
        Some(self.append(length))
    }

    fn append(&mut self, length: u64) -> u64 {
        let at = self.end;
        self.end = (at + length).next_multiple_of(INODE_SLOT);
        at
    }

    fn next_block(&mut self) {
        let end = self.end.next_multiple_of(BLOCK_SIZE);
        if end > self.end {
            if self.gaps.len() == GAPS {
                let smallest = (0..GAPS).min_by_key(|&i| self.gaps[i].length);
                smallest.map(|i| self.gaps.swap_remove(i));
            }
            self.gaps.push(Gap {
                at: self.end,
                length: end - self.end,
            });
        }
        self.end = end;
    }

    fn fill_gap(&mut self, length: u64) -> Option<u64> {
        let index = self.gaps.iter().position(|gap| gap.length >= length)?;
        let gap = &mut self.gaps[index];
        let at = gap.at;
        let used = length.next_multiple_of(INODE_SLOT);
        gap.at += used;
        gap.length = gap.length.saturating_sub(used);
        if gap.length == 0 {
            self.gaps.swap_remove(index);
        }
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tails_stay_in_one_block_and_gaps_are_filled() {
        let mut places = Places::new();
        assert_eq!(places.place_with_tail(64, 3000), Some(64));
        assert_eq!(places.place_with_tail(64, 3000), Some(4096));
        // 3136 to 4096 was left: room for fifteen inodes of 64 bytes.
        for i in 0..15 {
            assert_eq!(places.place(64, 64), 3136 + 64 * i);
        }
        assert_eq!(places.place(64, 64), 4096 + 3072);
    }

    #[test]
    fn an_inode_does_not_cross_blocks_but_its_attributes_may() {
        let mut places = Places::new();
        places.place(4096 - 64 - 32, 32);
        assert_eq!(places.end(), 4096 - 32);
        assert_eq!(places.place(10_000, 64), 4096);
        assert_eq!(places.place(32, 32), 4096 - 32);
    }

    #[test]
    fn a_tail_that_fits_nowhere_is_refused() {
        let mut places = Places::new();
        assert_eq!(places.place_with_tail(64, 4033), None);
        assert_eq!(places.place_with_tail(64, 4032), Some(4096));
        // Attributes of more than a block: only where they end matters.
        assert_eq!(places.place_with_tail(8192 + 64, 4032), Some(8192));
        assert_eq!(places.place_with_tail(8192 + 65, 4032), None);
    }
}
