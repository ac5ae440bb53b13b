//! Computes the positions of copies of the superblock and of group descriptors.

use core::ops::Range;

use crate::format::features::incompat;
use crate::format::superblock::Superblock;

/// Descriptors lie after each copy of the superblock or, from `s_first_meta_bg` on (meta_bg), in
/// the first, second and last group of those whose descriptors fill a block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placement<'s> {
    superblock: &'s Superblock,
    block_size: u64,
    /// Number of descriptors in a block.
    per_block: u64,
    /// Number of blocks of descriptors after each copy of the superblock.
    classic: u64,
}

impl<'s> Placement<'s> {
    /// Computes the placement for a superblock. `block_size` and `descriptor_size` are the
    /// superblock's, checked: the block size is a multiple of the descriptor size.
    pub(crate) fn new(
        superblock: &'s Superblock,
        block_size: usize,
        descriptor_size: usize,
    ) -> Self {
        let per_block = (block_size / descriptor_size.max(1)).max(1) as u64;
        let all = superblock.groups().div_ceil(per_block);
        let classic = if superblock.has_incompat(incompat::META_BG) {
            u64::from(superblock.first_meta_bg).min(all)
        } else {
            all
        };
        Self {
            superblock,
            block_size: block_size as u64,
            per_block,
            classic,
        }
    }

    /// Returns the blocks at a group's start that hold superblock and descriptors, or room for
    /// them.
    pub(crate) fn base(&self, group: u64) -> Range<u64> {
        let own = u64::from(self.superblock.has_backup(group));
        let count = if self.is_classic(group) {
            let reserved = u64::from(self.superblock.reserved_gdt_blocks);
            own * (1 + self.classic + reserved)
        } else {
            let within = group % self.per_block;
            own + u64::from(within < 2 || within + 1 == self.per_block)
        };
        let start = self.group_start(group);
        start..start.saturating_add(count)
    }

    /// Returns the position of the first copy of the `index`th block of descriptors.
    pub(crate) fn descriptor_block(&self, index: u64) -> u64 {
        if index < self.classic {
            return self.group_start(0) + 1 + index;
        }
        let group = index.saturating_mul(self.per_block);
        self.group_start(group)
            .saturating_add(u64::from(self.superblock.has_backup(group)))
    }

    /// Returns the positions of all copies of the `index`th block of descriptors, the first copy
    /// first.
    pub(crate) fn descriptor_copies(&self, index: u64) -> impl Iterator<Item = u64> {
        let this = *self;
        let groups = this.superblock.groups();
        let classic = index < this.classic;
        let first = if classic {
            0
        } else {
            index.saturating_mul(this.per_block)
        };
        let last = if classic {
            groups
        } else {
            groups.min(first + this.per_block)
        };
        (first..last)
            .filter(move |&group| {
                if classic {
                    this.superblock.has_backup(group) && this.is_classic(group)
                } else {
                    group < first + 2 || group + 1 == first + this.per_block
                }
            })
            .map(move |group| {
                if classic {
                    this.group_start(group) + 1 + index
                } else {
                    this.group_start(group) + u64::from(this.superblock.has_backup(group))
                }
            })
    }

    /// Whether a group's descriptor is after the copies of the superblock.
    fn is_classic(&self, group: u64) -> bool {
        !self.superblock.has_incompat(incompat::META_BG)
            || group < self.classic.saturating_mul(self.per_block)
    }

    /// Returns the first block of a group that the format may use: with blocks of 1 KiB, block 0 is
    /// the boot block.
    fn group_start(&self, group: u64) -> u64 {
        if group == 0 {
            return u64::from(self.block_size == 1024);
        }
        group
            .saturating_mul(self.superblock.blocks_per_group.into())
            .saturating_add(self.superblock.first_data_block.into())
    }
}
