//! Blocks of the filesystem itself: superblock copies, descriptors, bitmaps, inode tables.

use alloc::vec::Vec;
use core::ops::Range;

use super::claims::FILESYSTEM;
use super::state::State;
use crate::format::features::incompat;

/// Claims all of these blocks, and reports overlaps among them.
pub(super) fn claim(state: &mut State) {
    let volume = state.volume;
    let mut all: Vec<(Range<u64>, &str, usize)> = Vec::new();
    for (number, group) in volume.groups.iter().enumerate() {
        let base = volume.base_blocks(number as u64);
        let table = group.inode_table()..group.inode_table() + volume.table_blocks();
        let one = |block: u64| block..block + 1;
        all.push((base, "superblock or descriptors", number));
        all.push((one(group.block_bitmap()), "block bitmap", number));
        all.push((one(group.inode_bitmap()), "inode bitmap", number));
        all.push((table, "inode table", number));
    }
    // Blocks before the first superblock do not belong to files, either.
    let before = volume.first_data_block..volume.base_blocks(0).start;
    all.push((before, "boot block", 0));
    if volume.has_incompat(incompat::MMP) && volume.is_data_block(volume.superblock.mmp_block) {
        let block = volume.superblock.mmp_block;
        all.push((block..block + 1, "MMP block", 0));
    }
    all.retain(|(blocks, ..)| blocks.start < blocks.end);
    all.sort_by_key(|(blocks, ..)| (blocks.start, blocks.end));
    let mut runs: Vec<Range<u64>> = Vec::new();
    for (blocks, what, group) in all {
        match runs.last_mut() {
            Some(last) if blocks.start < last.end => {
                let start = blocks.start;
                state.found.add(format_args!(
                    "Group {group}'s {what} at {start} conflicts with some other fs block."
                ));
                last.end = last.end.max(blocks.end);
            }
            Some(last) if blocks.start == last.end => last.end = blocks.end,
            _ => runs.push(blocks),
        }
    }
    let mut end = 0;
    for run in &runs {
        // With bigalloc two runs may share a cluster.
        let clusters = state.clusters(run.clone());
        state
            .claims
            .add(clusters.start.max(end)..clusters.end, FILESYSTEM);
        end = clusters.end;
    }
    state.fixed = runs;
}
