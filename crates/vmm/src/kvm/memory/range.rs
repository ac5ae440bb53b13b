//! Lists of pages, counted through the RAM without the hole below 4 GiB.
//!
//! ```text
//! range...    first page and number of pages, u32 each, little endian; ascending
//! ```

use vm_memory::{GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap};

use super::copy::PAGE;

/// Bytes of an encoded range.
pub(super) const LENGTH: usize = 8;

/// Consecutive pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(super) first: u64,
    pub(super) count: u64,
}

impl Range {
    pub(super) fn end(self) -> u64 {
        self.first.saturating_add(self.count)
    }

    /// Adds a range that does not begin before this one; false if more than `gap` pages are between
    /// them.
    fn extend(&mut self, next: Self, gap: u64) -> bool {
        let is_near = next.first <= self.end().saturating_add(gap);
        if is_near {
            self.count = self.end().max(next.end()) - self.first;
        }
        is_near
    }

    pub(super) fn encode(self) -> Option<[u8; LENGTH]> {
        let [a, b, c, d] = u32::try_from(self.first).ok()?.to_le_bytes();
        let [e, f, g, h] = u32::try_from(self.count).ok()?.to_le_bytes();
        Some([a, b, c, d, e, f, g, h])
    }

    pub(super) fn decode([a, b, c, d, e, f, g, h]: [u8; LENGTH]) -> Self {
        Self {
            first: u32::from_le_bytes([a, b, c, d]).into(),
            count: u32::from_le_bytes([e, f, g, h]).into(),
        }
    }

    /// Returns the part of the range in a region that begins at byte `start` of the RAM, in bytes
    /// from there.
    pub(super) fn bytes_within(self, start: u64, length: u64) -> Option<std::ops::Range<u64>> {
        let at = |page: u64| {
            let byte = page.saturating_mul(PAGE as u64);
            byte.saturating_sub(start).min(length)
        };
        let part = at(self.first)..at(self.end());
        (!part.is_empty()).then_some(part)
    }

    /// Returns the part of the range in each region of the RAM: the region, its first page in the
    /// RAM, and the part's pages in the region.
    pub(super) fn parts(
        self,
        ram: &GuestMemoryMmap,
    ) -> impl Iterator<Item = (&GuestRegionMmap, u64, std::ops::Range<u64>)> {
        let mut start = 0;
        ram.iter().filter_map(move |region| {
            let (first, pages) = (start, region.len() / PAGE as u64);
            start += pages;
            let from = self.first.saturating_sub(first);
            let to = self.end().saturating_sub(first).min(pages);
            (from < to).then_some((region, first, from..to))
        })
    }
}

/// Makes a list of ascending ranges, in which those that are near each other are one. Its length is
/// limited, whatever there is to list.
pub(super) struct Ranges {
    list: Vec<Range>,
    gap: u64,
    most: usize,
}

impl Ranges {
    /// Takes up to `gap` pages between two ranges along; more, if there are more than `most`
    /// ranges.
    pub(super) fn new(gap: u64, most: usize) -> Self {
        let list = Vec::new();
        Self { list, gap, most }
    }

    /// Adds pages, none of which is before the first page that was added last.
    pub(super) fn add(&mut self, range: Range) {
        self.append(range);
        while self.list.len() > self.most {
            self.gap = self.gap.saturating_mul(2).max(1);
            for range in std::mem::take(&mut self.list) {
                self.append(range);
            }
        }
    }

    fn append(&mut self, range: Range) {
        let last = self.list.last_mut();
        if !last.is_some_and(|last| last.extend(range, self.gap)) {
            self.list.push(range);
        }
    }

    pub(super) fn list(self) -> Vec<Range> {
        self.list
    }
}

/// Returns the number of pages in the ranges.
pub(super) fn pages_of(ranges: &[Range]) -> u64 {
    let counts = ranges.iter().map(|range| range.count);
    counts.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(gap: u64, most: usize, ranges: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let mut found = Ranges::new(gap, most);
        for &(first, count) in ranges {
            found.add(Range { first, count });
        }
        let found = found.list().into_iter();
        found.map(|range| (range.first, range.count)).collect()
    }

    #[test]
    fn ranges_near_each_other_are_one() {
        let ranges = [(0, 1), (1, 1), (4, 2), (5, 1), (9, 1)];
        assert_eq!(list(2, 9, &ranges), [(0, 6), (9, 1)]);
        assert_eq!(list(0, 9, &[(3, 5), (4, 1), (8, 1)]), [(3, 6)]);
    }

    #[test]
    fn a_list_is_no_longer_than_it_may_be() {
        let scattered: Vec<_> = (0..1000).map(|index| (index * 10, 1)).collect();
        for most in [1, 7, 100, 999, 1000] {
            let found = list(0, most, &scattered);
            assert!(found.len() <= most, "{most}");
            assert_eq!(found.first().unwrap().0, 0);
            let &(first, count) = found.last().unwrap();
            assert_eq!(first + count, 9991);
        }
        // The near ones are taken together first.
        assert_eq!(list(0, 2, &[(0, 1), (2, 1), (90, 1)]), [(0, 3), (90, 1)]);
    }
}
