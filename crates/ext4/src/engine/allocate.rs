//! Allocates blocks in long runs, and frees them when no transaction can need the old contents.

use super::bitmap::{Bits, BlockBitmap};
use super::{Ext4, Ino};
use crate::cache::Kind;
use crate::device::BlockDevice;
use crate::error::{Errno, Place, Result};
use crate::format::features::incompat;
use crate::format::group::{self, BLOCK_UNINIT};
use micabox_file::narrow::{low16, saturate32};

/// Minimum length of a run at the goal that is taken although it is shorter than requested.
const WORTHWHILE: u32 = 8;

impl<D: BlockDevice> Ext4<D> {
    /// Loads a group's block bitmap if it is not in memory.
    fn load_block_bitmap(&mut self, number: u32) -> Result<()> {
        let group = self.group(number)?;
        if group.blocks.is_some() {
            return Ok(());
        }
        let descriptor = group.descriptor.clone();
        let length = self.geometry.group_blocks(number);
        let used = if self.superblock.has_group_checksums() && descriptor.flags & BLOCK_UNINIT != 0
        {
            self.initial_block_bitmap(number)
        } else {
            let block = descriptor.block_bitmap();
            let bytes = self.blocks.read(&self.io, block, Kind::Plain)?;
            if self.geometry.has_checksums {
                let meaning = self.geometry.blocks_per_group as usize / 8;
                let checksum =
                    group::bitmap_checksum(&self.superblock, bytes.get(..meaning).unwrap_or(bytes));
                if !same_checksum(
                    checksum,
                    descriptor.block_bitmap_checksum(),
                    self.geometry.descriptor_size,
                ) {
                    return Err(
                        Place::Group(number).corrupt("the block bitmap's checksum is wrong")
                    );
                }
            }
            Bits::from_bytes(bytes, length)
        };
        let busy = used.clone();
        self.group_mut(number)?.blocks = Some(BlockBitmap { used, busy });
        Ok(())
    }

    /// Returns the bitmap of a group that has only its own metadata.
    fn initial_block_bitmap(&self, number: u32) -> Bits {
        let length = self.geometry.group_blocks(number);
        let mut bits = Bits::zeros(length);
        bits.set(0, saturate32(self.base_blocks(number).min(length.into())));
        let Ok(group) = self.group(number) else {
            return bits;
        };
        let start = self.geometry.group_start(number);
        let table = u64::from(self.geometry.inodes_per_group) * self.geometry.inode_size as u64;
        for (first, count) in [
            (group.descriptor.block_bitmap(), 1),
            (group.descriptor.inode_bitmap(), 1),
            (
                group.descriptor.inode_table(),
                self.geometry.blocks_for(table),
            ),
        ] {
            // Parts that lie in another group (flex_bg) are in that group's bitmap.
            let from = first.saturating_sub(start).min(length.into());
            let to = first
                .saturating_add(count)
                .saturating_sub(start)
                .min(length.into());
            bits.set(saturate32(from), saturate32(to.saturating_sub(from)));
        }
        bits
    }

    /// Returns the number of blocks at a group's start for the superblock and group descriptors.
    fn base_blocks(&self, number: u32) -> u64 {
        let per_block = (self.geometry.block_size / self.geometry.descriptor_size) as u64;
        let has_backup = self.superblock.has_backup(number.into());
        let first_meta = u64::from(self.superblock.first_meta_bg);
        let meta = self.superblock.has_incompat(incompat::META_BG);
        if meta && u64::from(number) >= first_meta * per_block {
            let within = u64::from(number) % per_block;
            let has_descriptors = within == 0 || within == 1 || within == per_block - 1;
            return u64::from(has_backup) + u64::from(has_descriptors);
        }
        if !has_backup {
            return 0;
        }
        let descriptors = if meta {
            first_meta
        } else {
            u64::from(self.geometry.groups).div_ceil(per_block)
        };
        1 + descriptors + u64::from(self.superblock.reserved_gdt_blocks)
    }

    /// Returns the goal for the first block of a file.
    pub(crate) fn goal_of(&self, ino: Ino) -> u64 {
        let group = self.geometry.inode_group(ino).map_or(0, |(group, _)| group);
        let cursor = self.group(group).map_or(0, |group| group.cursor);
        self.geometry.group_start(group) + u64::from(cursor)
    }

    /// Returns the number of blocks that can be allocated now and are not reserved.
    pub(crate) fn available_blocks(&self) -> u64 {
        self.free_blocks
            .saturating_sub(self.transaction.freed_blocks)
            .saturating_sub(self.reserved)
    }

    /// Allocates a run of 1 to `want` blocks, near `goal` if possible.
    pub(crate) fn allocate_blocks(&mut self, goal: u64, want: u32) -> Result<(u64, u32)> {
        let (goal_group, goal_bit) = self.geometry.group_of(goal).unwrap_or((0, 0));
        let want = want.clamp(1, self.geometry.blocks_per_group);
        // Continue where the file ends, if the run is long enough.
        if self.group(goal_group)?.descriptor.free_blocks() != 0 {
            self.load_block_bitmap(goal_group)?;
            let run = self
                .group(goal_group)?
                .blocks
                .as_ref()
                .map_or(0, |blocks| blocks.busy.run(goal_bit, want));
            if run >= want.min(WORTHWHILE) {
                return self.take_blocks(goal_group, goal_bit, run);
            }
        }
        let mut least = want;
        loop {
            for step in 0..self.geometry.groups {
                let number =
                    (u64::from(goal_group) + u64::from(step)) % u64::from(self.geometry.groups);
                let number = saturate32(number);
                let group = self.group(number)?;
                if group.descriptor.free_blocks() < least || group.longest_run < least {
                    continue;
                }
                self.load_block_bitmap(number)?;
                let from = if step == 0 { goal_bit } else { 0 };
                let group = self.group_mut(number)?;
                let Some(blocks) = &group.blocks else {
                    continue;
                };
                let (mut start, mut length) = blocks.busy.find_run(from, want);
                if length < least && from > 0 {
                    (start, length) = blocks.busy.find_run(0, want);
                }
                if length >= least {
                    return self.take_blocks(number, start, length);
                }
                group.longest_run = length;
            }
            if least == 1 {
                return Err(Errno::NoSpace.into());
            }
            least /= 4;
            least = least.max(1);
        }
    }

    fn take_blocks(&mut self, number: u32, bit: u32, count: u32) -> Result<(u64, u32)> {
        let group = self.dirty_group(number)?;
        let free = group.descriptor.free_blocks();
        let Some(left) = free.checked_sub(count) else {
            return Err(Place::Group(number).corrupt("more blocks are free than are counted"));
        };
        group.descriptor.set_free_blocks(left);
        group.descriptor.flags &= !BLOCK_UNINIT;
        group.cursor = bit + count;
        if let Some(blocks) = &mut group.blocks {
            blocks.used.set(bit, count);
            blocks.busy.set(bit, count);
        }
        self.free_blocks = self.free_blocks.saturating_sub(count.into());
        Ok((self.geometry.group_start(number) + u64::from(bit), count))
    }

    /// Frees blocks. They are not allocated again before the running transaction is committed.
    pub(crate) fn free_blocks(&mut self, first: u64, count: u64) -> Result<()> {
        let (mut first, mut count) = (first, count);
        self.directory_blocks.forget(first, count);
        while count > 0 {
            let (number, bit) = self
                .geometry
                .group_of(first)
                .ok_or(Place::Block(first).corrupt("a block to be freed is past the end"))?;
            let within = self.geometry.group_blocks(number) - bit;
            let now = saturate32(count.min(within.into()));
            self.load_block_bitmap(number)?;
            let logged = self.journal.is_some();
            let group = self.dirty_group(number)?;
            let Some(blocks) = &mut group.blocks else {
                continue;
            };
            if !blocks.used.all_set(bit, now) {
                return Err(Place::Block(first).corrupt("a block to be freed is free already"));
            }
            blocks.used.clear(bit, now);
            let free = group.descriptor.free_blocks().saturating_add(now);
            group.descriptor.set_free_blocks(free);
            if logged {
                self.transaction.freed.push((number, bit, now));
                self.transaction.freed_blocks += u64::from(now);
            } else {
                blocks.busy.clear(bit, now);
                group.longest_run = u32::MAX;
            }
            self.free_blocks += u64::from(now);
            first += u64::from(now);
            count -= u64::from(now);
        }
        Ok(())
    }

    /// Frees a block of metadata, of which the log may have copies.
    pub(crate) fn free_metadata(&mut self, block: u64) -> Result<()> {
        if self.blocks.forget(block) {
            self.transaction.revoked.insert(block);
        }
        self.free_blocks(block, 1)
    }

    /// Allows reuse of the blocks freed by the transaction that was just committed.
    pub(crate) fn release_freed(&mut self) {
        for (number, bit, count) in core::mem::take(&mut self.transaction.freed) {
            if let Ok(group) = self.group_mut(number) {
                group.longest_run = u32::MAX;
                group.cursor = group.cursor.min(bit);
                if let Some(blocks) = &mut group.blocks {
                    blocks.busy.clear(bit, count);
                }
            }
        }
        self.transaction.freed_blocks = 0;
    }

    /// Writes bitmaps and descriptors of changed groups to their blocks in the cache.
    pub(crate) fn store_groups(&mut self) -> Result<()> {
        let per_block = saturate32(self.geometry.block_size / self.geometry.descriptor_size);
        let mut numbers = core::mem::take(&mut self.dirty_groups);
        numbers.sort_unstable();
        for number in numbers {
            let descriptor_block = self.descriptor_block(number / per_block)?;
            let Some(group) = self.groups.get_mut(number as usize) else {
                continue;
            };
            group.dirty = false;
            let descriptor = &mut group.descriptor;
            if let Some(blocks) = &group.blocks
                && descriptor.flags & BLOCK_UNINIT == 0
            {
                let block = self.blocks.fresh(descriptor.block_bitmap(), Kind::Plain)?;
                blocks.used.put(block);
                if self.geometry.has_checksums {
                    let meaning = self.geometry.blocks_per_group as usize / 8;
                    let checksum = group::bitmap_checksum(
                        &self.superblock,
                        block.get(..meaning).unwrap_or(block),
                    );
                    descriptor.set_block_bitmap_checksum(checksum);
                }
            }
            if let Some(inodes) = &group.inodes
                && descriptor.flags & group::INODE_UNINIT == 0
            {
                let block = self.blocks.fresh(descriptor.inode_bitmap(), Kind::Plain)?;
                inodes.used.put(block);
                if self.geometry.has_checksums {
                    let meaning = self.geometry.inodes_per_group as usize / 8;
                    let checksum = group::bitmap_checksum(
                        &self.superblock,
                        block.get(..meaning).unwrap_or(block),
                    );
                    descriptor.set_inode_bitmap_checksum(checksum);
                }
            }
            let size = self.geometry.descriptor_size;
            let offset = (number % per_block) as usize * size;
            let block = self.blocks.write(&self.io, descriptor_block, Kind::Plain)?;
            if let Some(bytes) = block.get_mut(offset..offset + size) {
                descriptor.seal_into(&self.superblock, number, bytes);
            }
        }
        Ok(())
    }

    /// Returns the block with the `index`th block's worth of descriptors.
    pub(crate) fn descriptor_block(&self, index: u32) -> Result<u64> {
        super::open::descriptor_block(&self.geometry, &self.superblock, index)
    }
}

/// Compares a bitmap's checksums. Descriptors of 32 bytes keep only the low half.
pub(crate) fn same_checksum(computed: u32, stored: u32, descriptor_size: usize) -> bool {
    if descriptor_size < 64 {
        low16(computed) == low16(stored)
    } else {
        computed == stored
    }
}
