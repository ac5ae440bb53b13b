//! Collects which blocks belong to which owner.

use alloc::vec::Vec;
use core::ops::Range;

/// Claims by the filesystem itself: superblock copies, descriptors, bitmaps, inode tables.
pub(super) const FILESYSTEM: u32 = 0;

/// A run of clusters that an inode or the filesystem claims.
#[derive(Debug, Clone, Copy)]
struct Claim {
    start: u64,
    end: u64,
    owner: u32,
}

/// All claims. Memory grows with what the image contains, not with the size that it claims.
#[derive(Debug, Default)]
pub(super) struct Claims {
    claims: Vec<Claim>,
}

/// A run that several inodes claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Conflict {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) owners: [u32; 2],
}

impl Claims {
    /// Records that clusters belong to `owner`. Adjacent runs become one claim.
    pub(super) fn add(&mut self, clusters: Range<u64>, owner: u32) {
        if clusters.start >= clusters.end {
            return;
        }
        if let Some(last) = self.claims.last_mut()
            && last.owner == owner
            && last.end == clusters.start
        {
            last.end = clusters.end;
            return;
        }
        self.claims.push(Claim {
            start: clusters.start,
            end: clusters.end,
            owner,
        });
    }

    /// Sorts all claims: returns the runs in use, ascending and disjoint, and conflicts among
    /// claims.
    pub(super) fn settle(mut self, conflicts_max: usize) -> (Vec<Range<u64>>, Vec<Conflict>) {
        self.claims
            .sort_unstable_by_key(|claim| (claim.start, claim.end, claim.owner));
        let mut used: Vec<Range<u64>> = Vec::new();
        let mut conflicts = Vec::new();
        // The claim with the highest end so far.
        let mut furthest: Option<Claim> = None;
        for claim in self.claims {
            if let Some(other) = furthest
                && claim.start < other.end
                && conflicts.len() < conflicts_max
            {
                conflicts.push(Conflict {
                    start: claim.start,
                    end: claim.end.min(other.end),
                    owners: [other.owner, claim.owner],
                });
            }
            if furthest.is_none_or(|other| claim.end > other.end) {
                furthest = Some(claim);
            }
            match used.last_mut() {
                Some(run) if claim.start <= run.end => run.end = run.end.max(claim.end),
                _ => used.push(claim.start..claim.end),
            }
        }
        (used, conflicts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_claims_join_and_overlaps_are_found() {
        let mut claims = Claims::default();
        claims.add(10..20, 12);
        claims.add(20..30, 12);
        claims.add(0..5, FILESYSTEM);
        claims.add(25..40, 13);
        claims.add(50..50, 14);
        let (used, conflicts) = claims.settle(10);
        assert_eq!(used, [0..5, 10..40]);
        let conflict = Conflict {
            start: 25,
            end: 30,
            owners: [12, 13],
        };
        assert_eq!(conflicts, [conflict]);
    }
}
