//! Computes the positions in a new filesystem before anything is written.

use alloc::vec::Vec;
use core::ops::Range;

use super::{BLOCK_SIZE, BLOCKS_PER_GROUP, INODE_SIZE, MkfsError, Options};
use crate::format::extent::ROOT_ENTRIES;

/// Number of groups whose bitmaps and inode tables are adjacent (flex_bg); a power of two.
pub const GROUPS_PER_FLEX: u32 = 16;
/// Size in bytes of a group descriptor (64bit).
pub const DESCRIPTOR_SIZE: u64 = 64;
/// Number of blocks of `lost+found`, allocated in advance so that e2fsck need not allocate any.
pub const LOST_FOUND_BLOCKS: u64 = 4;
/// Inodes per group are a multiple of this: whole blocks of the table, whole bytes of the bitmap.
const INODE_STEP: u64 = BLOCK_SIZE / INODE_SIZE;
/// Maximum number of inodes in a group's bitmap.
const INODES_PER_GROUP_MAX: u64 = BLOCK_SIZE * 8;
/// Minimum number of blocks beyond its metadata for which a shorter last group is kept.
const GROUP_REST_MIN: u64 = 50;
/// Minimum number of blocks of a journal that the format allows.
pub const JOURNAL_BLOCKS_MIN: u64 = 1024;
/// Maximum number of blocks of a journal, as in mke2fs.
pub const JOURNAL_BLOCKS_MAX: u64 = 10_240_000;
/// Number of blocks in the longest initialised extent.
pub const EXTENT_BLOCKS_MAX: u64 = 1 << 15;

/// The tables of a group, as block numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tables {
    pub block_bitmap: u64,
    pub inode_bitmap: u64,
    pub inode_table: u64,
}

/// A filesystem's geometry, and its blocks in use.
#[derive(Debug)]
pub struct Layout {
    /// Requested size in bytes.
    size: u64,
    /// Number of blocks of the filesystem.
    pub blocks: u64,
    /// Number of block groups.
    pub groups: u32,
    /// Number of blocks of the group descriptor table.
    pub descriptor_blocks: u64,
    /// Number of inodes of each group.
    pub inodes_per_group: u32,
    /// Number of blocks of each inode table.
    pub table_blocks: u64,
    /// Groups with a copy of superblock and descriptors (sparse_super2), 0 for none.
    pub backups: [u32; 2],
    /// One for each group.
    pub tables: Vec<Tables>,
    /// The root directory's block.
    pub root: u64,
    /// First block of `lost+found`.
    pub lost_found: u64,
    /// The journal's extents, in order; empty without a journal.
    pub journal: Vec<Range<u64>>,
    /// The block with the journal's extents, if its inode has no room for them.
    pub journal_leaf: Option<u64>,
    /// All blocks in use: ascending, disjoint.
    pub taken: Vec<Range<u64>>,
}

impl Layout {
    /// Plans a filesystem of at most `size` bytes.
    pub fn new(size: u64, options: &Options) -> Result<Self, MkfsError> {
        let mut layout = geometry(size, options)?;
        let mut cursor = layout.base(0).end;
        for flex in (0..layout.groups).step_by(GROUPS_PER_FLEX as usize) {
            let groups = flex..layout.groups.min(flex.saturating_add(GROUPS_PER_FLEX));
            cursor = cursor.max(layout.base(flex).end);
            cursor = layout.place_tables(groups, cursor)?;
            if flex == 0 {
                layout.root = layout.place(&mut cursor, 1)?;
                layout.lost_found = layout.place(&mut cursor, LOST_FOUND_BLOCKS)?;
            }
        }
        for group in [0, layout.backups[0], layout.backups[1]] {
            let base = layout.base(group);
            if !layout.taken.contains(&base) {
                layout.taken.push(base);
            }
        }
        layout.merge_taken();
        let journal = journal_blocks(layout.blocks, options)?;
        if journal > 0 {
            layout.place_journal(journal)?;
            layout.merge_taken();
        }
        Ok(layout)
    }

    /// Returns the blocks of a group's copy of superblock and descriptors; empty if it has none.
    pub fn base(&self, group: u32) -> Range<u64> {
        let start = u64::from(group) * BLOCKS_PER_GROUP;
        if group == 0 || self.backups.contains(&group) {
            start..start + 1 + self.descriptor_blocks
        } else {
            start..start
        }
    }

    /// Returns the blocks of a group.
    pub fn group(&self, group: u32) -> Range<u64> {
        let start = u64::from(group) * BLOCKS_PER_GROUP;
        start..self.blocks.min(start + BLOCKS_PER_GROUP)
    }

    /// Returns the number of inodes.
    pub fn inodes(&self) -> u64 {
        u64::from(self.groups) * u64::from(self.inodes_per_group)
    }

    /// Returns the number of blocks that are never available to files: all in use except the two
    /// directories.
    pub fn overhead(&self) -> u64 {
        let taken: u64 = self.taken.iter().map(|run| run.end - run.start).sum();
        taken - 1 - LOST_FOUND_BLOCKS
    }

    /// Returns the runs in use that overlap `blocks`, cut to it.
    pub fn taken_in(&self, blocks: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let first = self.taken.partition_point(|run| run.end <= blocks.start);
        self.taken
            .iter()
            .skip(first)
            .take_while(move |run| run.start < blocks.end)
            .map(move |run| run.start.max(blocks.start)..run.end.min(blocks.end))
    }

    /// Allocates the next `count` consecutive blocks that do not overlap a superblock copy.
    fn place(&mut self, cursor: &mut u64, count: u64) -> Result<u64, MkfsError> {
        for group in [0, self.backups[0], self.backups[1]] {
            let base = self.base(group);
            // Backups are visited in ascending order, so one comparison with each is enough.
            if *cursor < base.end && base.start < *cursor + count {
                *cursor = base.end;
            }
        }
        let start = *cursor;
        *cursor += count;
        if *cursor > self.blocks {
            return Err(MkfsError::TooSmall(self.size));
        }
        self.taken.push(start..*cursor);
        Ok(start)
    }

    /// Places the tables of the groups of a flex group: each kind is consecutive.
    fn place_tables(&mut self, groups: Range<u32>, cursor: u64) -> Result<u64, MkfsError> {
        let mut at = cursor;
        let block_bitmaps = self.place_each(&groups, &mut at, 1)?;
        let inode_bitmaps = self.place_each(&groups, &mut at, 1)?;
        let inode_tables = self.place_each(&groups, &mut at, self.table_blocks)?;
        let each = block_bitmaps.into_iter().zip(inode_bitmaps);
        for ((block_bitmap, inode_bitmap), inode_table) in each.zip(inode_tables) {
            self.tables.push(Tables {
                block_bitmap,
                inode_bitmap,
                inode_table,
            });
        }
        Ok(at)
    }

    fn place_each(
        &mut self,
        groups: &Range<u32>,
        at: &mut u64,
        count: u64,
    ) -> Result<Vec<u64>, MkfsError> {
        groups.clone().map(|_| self.place(at, count)).collect()
    }

    /// Places the journal in the first gaps after `lost+found`.
    fn place_journal(&mut self, count: u64) -> Result<(), MkfsError> {
        let mut gaps = self.gaps(self.lost_found + LOST_FOUND_BLOCKS);
        let mut runs = Vec::new();
        let mut missing = count;
        let mut leaf = None;
        while missing > 0 {
            let gap = gaps.next().ok_or(MkfsError::TooSmall(self.size))?;
            let mut start = gap.start;
            while missing > 0 && start < gap.end {
                let length = missing.min(gap.end - start).min(EXTENT_BLOCKS_MAX);
                runs.push(start..start + length);
                start += length;
                missing -= length;
            }
            if missing == 0 && runs.len() > usize::from(ROOT_ENTRIES) {
                leaf = if start < gap.end {
                    Some(start)
                } else {
                    gaps.next().map(|gap| gap.start)
                };
                if leaf.is_none() {
                    return Err(MkfsError::TooSmall(self.size));
                }
            }
        }
        drop(gaps);
        self.taken.extend(runs.iter().cloned());
        self.taken.extend(leaf.map(|leaf| leaf..leaf + 1));
        self.journal = runs;
        self.journal_leaf = leaf;
        Ok(())
    }

    /// Returns the free ranges from a block on.
    fn gaps(&self, from: u64) -> impl Iterator<Item = Range<u64>> {
        let ends = self.taken.iter().map(|run| run.end);
        let starts = self.taken.iter().map(|run| run.start).skip(1);
        ends.zip(starts.chain([self.blocks]))
            .map(move |(start, end)| start.max(from)..end)
            .filter(|gap| gap.start < gap.end)
    }

    /// Sorts the runs in use and joins adjacent ones.
    fn merge_taken(&mut self) {
        self.taken.sort_unstable_by_key(|run| run.start);
        self.taken.dedup_by(|next, run| {
            let touches = next.start == run.end;
            if touches {
                run.end = next.end;
            }
            touches
        });
    }
}

/// Computes groups, inodes and backups for a size in bytes.
fn geometry(size: u64, options: &Options) -> Result<Layout, MkfsError> {
    let mut blocks = size / BLOCK_SIZE;
    loop {
        let groups = u32::try_from(blocks.div_ceil(BLOCKS_PER_GROUP))
            .ok()
            .filter(|&groups| groups <= super::GROUPS_MAX)
            .ok_or(MkfsError::TooLarge(size))?;
        if groups == 0 {
            return Err(MkfsError::TooSmall(size));
        }
        let descriptor_blocks = (u64::from(groups) * DESCRIPTOR_SIZE).div_ceil(BLOCK_SIZE);
        let inodes_per_group = inodes_per_group(blocks, groups, options)?;
        let table_blocks = inodes_per_group * INODE_SIZE / BLOCK_SIZE;
        let layout = Layout {
            size,
            blocks,
            groups,
            descriptor_blocks,
            inodes_per_group: u32::try_from(inodes_per_group)
                .map_err(|_| MkfsError::TooLarge(size))?,
            table_blocks,
            backups: match groups {
                1 => [0, 0],
                2 => [1, 0],
                _ => [1, groups - 1],
            },
            tables: Vec::new(),
            root: 0,
            lost_found: 0,
            journal: Vec::new(),
            journal_leaf: None,
            taken: Vec::new(),
        };
        let last = layout.group(groups - 1);
        let base = layout.base(groups - 1);
        // The group's tables lie in the first group of its flex group, unless it is that group.
        let tables = if (groups - 1).is_multiple_of(GROUPS_PER_FLEX) {
            2 + table_blocks
        } else {
            0
        };
        let needed = base.end - base.start + tables + GROUP_REST_MIN;
        if last.end - last.start >= needed {
            return Ok(layout);
        }
        if groups == 1 {
            return Err(MkfsError::TooSmall(size));
        }
        blocks = last.start;
    }
}

/// Returns the number of inodes per group. By default as in mke2fs: the larger the filesystem, the
/// fewer inodes per byte.
fn inodes_per_group(blocks: u64, groups: u32, options: &Options) -> Result<u64, MkfsError> {
    const MIB: u64 = 1 << 20;
    let size = blocks * BLOCK_SIZE;
    let ratio = match size / MIB {
        0..512 => 4096,
        512..4_194_304 => 16_384,
        4_194_304..16_777_216 => 32_768,
        _ => 65_536,
    };
    let wanted = options.inodes.unwrap_or(size / ratio).max(16);
    if wanted > u64::from(u32::MAX) {
        return Err(MkfsError::TooManyInodes(wanted));
    }
    let per_group = wanted
        .div_ceil(u64::from(groups))
        .next_multiple_of(INODE_STEP);
    // Inode numbers have 32 bits, in either case.
    if per_group > INODES_PER_GROUP_MAX || per_group * u64::from(groups) > u64::from(u32::MAX) {
        return Err(MkfsError::TooManyInodes(wanted));
    }
    Ok(per_group)
}

/// Returns the journal's length in blocks: as requested, or as chosen by mke2fs.
fn journal_blocks(blocks: u64, options: &Options) -> Result<u64, MkfsError> {
    match options.journal {
        super::Journal::None => Ok(0),
        super::Journal::Bytes(bytes) => {
            let wanted = bytes / BLOCK_SIZE;
            if (JOURNAL_BLOCKS_MIN..=JOURNAL_BLOCKS_MAX).contains(&wanted) {
                Ok(wanted)
            } else {
                Err(MkfsError::JournalSize(bytes))
            }
        }
        super::Journal::Default => Ok(match blocks {
            0..2048 => 0,
            2048..32_768 => 1024,
            32_768..262_144 => 4096,
            262_144..524_288 => 8192,
            524_288..4_194_304 => 16_384,
            4_194_304..8_388_608 => 32_768,
            8_388_608..16_777_216 => 65_536,
            16_777_216..33_554_432 => 131_072,
            _ => 262_144,
        }),
    }
}
