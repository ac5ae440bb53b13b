//! Bitmaps of groups, processed by words.

use alloc::vec;
use alloc::vec::Vec;
use micabox_file::narrow::saturate32;

/// A sequence of bits; those past its length count as set.
#[derive(Debug, Clone)]
pub(crate) struct Bits {
    words: Vec<u64>,
    length: u32,
}

impl Bits {
    /// Creates a bitmap of `length` zeros.
    pub(crate) fn zeros(length: u32) -> Self {
        Self {
            words: vec![0; length.div_ceil(64) as usize],
            length,
        }
    }

    /// Creates a bitmap from the first bits of a bitmap block.
    pub(crate) fn from_bytes(bytes: &[u8], length: u32) -> Self {
        let mut bits = Self::zeros(length);
        for (word, bytes) in bits.words.iter_mut().zip(bytes.chunks(8)) {
            let mut all = [0; 8];
            for (to, from) in all.iter_mut().zip(bytes) {
                *to = *from;
            }
            *word = u64::from_le_bytes(all);
        }
        bits
    }

    /// Writes the bits to a bitmap block, and sets all bits after them.
    pub(crate) fn put(&self, bytes: &mut [u8]) {
        bytes.fill(0xFF);
        let mut words = self.words.clone();
        let used = self.length % 64;
        if used != 0
            && let Some(last) = words.last_mut()
        {
            *last |= u64::MAX << used;
        }
        for (bytes, word) in bytes.chunks_mut(8).zip(words) {
            for (to, from) in bytes.iter_mut().zip(word.to_le_bytes()) {
                *to = from;
            }
        }
    }

    pub(crate) fn get(&self, bit: u32) -> bool {
        bit >= self.length
            || self
                .words
                .get(bit as usize / 64)
                .is_some_and(|word| word >> (bit % 64) & 1 != 0)
    }

    /// Applies `change` to each word that has bits of the range, with those bits as a mask.
    fn change(&mut self, from: u32, count: u32, mut change: impl FnMut(&mut u64, u64)) {
        let end = from.saturating_add(count).min(self.length);
        let mut at = from;
        while at < end {
            let low = at % 64;
            let bits = (64 - low).min(end - at);
            let mask = (u64::MAX >> (64 - bits)) << low;
            if let Some(word) = self.words.get_mut(at as usize / 64) {
                change(word, mask);
            }
            at += bits;
        }
    }

    pub(crate) fn set(&mut self, from: u32, count: u32) {
        self.change(from, count, |word, mask| *word |= mask);
    }

    pub(crate) fn clear(&mut self, from: u32, count: u32) {
        self.change(from, count, |word, mask| *word &= !mask);
    }

    /// Whether all bits of the range are set.
    pub(crate) fn all_set(&mut self, from: u32, count: u32) -> bool {
        let mut all = true;
        self.change(from, count, |word, mask| all &= *word & mask == mask);
        all
    }

    /// Returns the first bit from `from` on that is set (`set`) or clear.
    fn next(&self, from: u32, set: bool) -> Option<u32> {
        let mut index = from as usize / 64;
        let flip = if set { 0 } else { u64::MAX };
        let mut word = (self.words.get(index)? ^ flip) & (u64::MAX << (from % 64));
        while word == 0 {
            index += 1;
            word = self.words.get(index)? ^ flip;
        }
        let bit = saturate32(index) * 64 + word.trailing_zeros();
        (bit < self.length).then_some(bit)
    }

    pub(crate) fn next_zero(&self, from: u32) -> Option<u32> {
        self.next(from, false)
    }

    /// Returns the number of consecutive zeros from `from` on, at most `most`.
    pub(crate) fn run(&self, from: u32, most: u32) -> u32 {
        if self.get(from) {
            return 0;
        }
        let end = self.next(from, true).unwrap_or(self.length);
        (end - from).min(most)
    }

    /// Finds the first run of `want` zeros from `from` on; if none exists, the longest run, which
    /// may be empty.
    pub(crate) fn find_run(&self, from: u32, want: u32) -> (u32, u32) {
        let (mut best, mut longest) = (0, 0);
        let mut at = from;
        while let Some(start) = self.next_zero(at) {
            let end = self.next(start, true).unwrap_or(self.length);
            if end - start > longest {
                (best, longest) = (start, end - start);
                if longest >= want {
                    return (best, want);
                }
            }
            at = end;
        }
        (best, longest)
    }

    #[cfg(test)]
    fn count_zeros(&self) -> usize {
        (0..self.length).filter(|&bit| !self.get(bit)).count()
    }
}

/// The block bitmap of a group.
#[derive(Debug)]
pub(crate) struct BlockBitmap {
    /// The blocks in use after the running transaction.
    pub(crate) used: Bits,
    /// The blocks that must not be allocated: `used`, and those that the running transaction freed,
    /// because after a crash the old owner may still have them.
    pub(crate) busy: Bits,
}

/// The inode bitmap of a group.
#[derive(Debug)]
pub(crate) struct InodeBitmap {
    pub(crate) used: Bits,
    /// No lower inode is free.
    pub(crate) hint: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_clear_bits_are_found() {
        let mut bits = Bits::zeros(200);
        bits.set(0, 10);
        bits.set(70, 60);
        assert_eq!(bits.find_run(0, 20), (10, 20));
        assert_eq!(bits.find_run(0, 65), (130, 65));
        assert_eq!(bits.find_run(0, 100), (130, 70));
        assert_eq!(bits.run(12, 1000), 58);
        assert_eq!(bits.run(199, 5), 1);
        assert!(bits.get(200));
        assert_eq!(bits.count_zeros(), 130);
        let mut bytes = [0; 32];
        bits.put(&mut bytes);
        assert_eq!(bytes[25..], [0xFF; 7]);
        assert_eq!(bytes[8], 0b1100_0000);
        assert_eq!(Bits::from_bytes(&bytes, 200).count_zeros(), 130);
    }
}
