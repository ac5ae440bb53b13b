//! Pass 5: compares bitmaps and counts with what is in use.

use alloc::vec;
use alloc::vec::Vec;
use core::mem;
use core::ops::Range;

use super::claims::FILESYSTEM;
use super::finding::FINDINGS_MAX;
use super::inode::Kind;
use super::state::State;
use crate::format::features::ro_compat;
use crate::format::group::{BLOCK_UNINIT, GroupDescriptor, INODE_UNINIT, bitmap_checksum};
use micabox_file::narrow::{in_memory, low16, saturate32};

/// Reports blocks with several owners, and compares all counts.
pub(super) fn compare(state: &mut State) {
    let claims = mem::take(&mut state.claims);
    let (used, conflicts) = claims.settle(FINDINGS_MAX);
    let shared = state.volume.has_ro_compat(ro_compat::SHARED_BLOCKS);
    for conflict in conflicts {
        let [one, other] = conflict.owners;
        // Files may share data then, but not with the filesystem itself.
        if shared && one != FILESYSTEM && other != FILESYSTEM {
            continue;
        }
        let owner = |number| match number {
            FILESYSTEM => alloc::string::String::from("filesystem metadata"),
            _ => alloc::format!("inode {number}"),
        };
        state.found.add(format_args!(
            "multiply-claimed block(s) {}..{} in {}, shared with {}",
            conflict.start,
            conflict.end,
            owner(other),
            owner(one)
        ));
    }
    let mut free_clusters = 0;
    let mut free_inodes = 0;
    for number in 0..state.volume.groups.len() {
        free_clusters += blocks(state, number, &used);
        free_inodes += inodes(state, number);
        if state.found.is_full() {
            return;
        }
    }
    let superblock = &state.volume.superblock;
    let free_blocks = free_clusters.saturating_mul(state.volume.cluster_ratio);
    if superblock.free_blocks() != free_blocks {
        state.found.add(format_args!(
            "free blocks count wrong ({}, counted={free_blocks})",
            superblock.free_blocks()
        ));
    }
    if u64::from(superblock.free_inodes) != free_inodes {
        state.found.add(format_args!(
            "free inodes count wrong ({}, counted={free_inodes})",
            superblock.free_inodes
        ));
    }
}

/// Compares one group's blocks. Returns the number of free clusters.
fn blocks(state: &mut State, number: usize, used: &[Range<u64>]) -> u64 {
    let volume = state.volume;
    let Some(group) = volume.groups.get(number) else {
        return 0;
    };
    let ratio = volume.cluster_ratio;
    let own = volume.group_blocks(number);
    // The bitmap counts clusters from the group's first block.
    let first = own.start / ratio;
    let clusters = first..own.end.div_ceil(ratio);
    let count = clusters.end - clusters.start;
    let start = used.partition_point(|run| run.end <= clusters.start);
    let runs = used
        .iter()
        .skip(start)
        .take_while(|run| run.start < clusters.end)
        .map(|run| run.start.max(clusters.start) - first..run.end.min(clusters.end) - first);
    let mut bitmap = vec![0; volume.block_size];
    let mut taken = 0;
    for run in runs {
        taken += run.end - run.start;
        set(&mut bitmap, run);
    }
    let free = count - taken;
    if u64::from(group.free_blocks()) != free {
        state.found.add(format_args!(
            "free blocks count wrong for group #{number} ({}, counted={free})",
            group.free_blocks()
        ));
    }
    if volume.superblock.has_group_checksums() && group.flags & BLOCK_UNINIT != 0 {
        // A bitmap that was never written stands for the group's own metadata.
        let mut own_metadata = vec![0; volume.block_size];
        let table = group.inode_table()..group.inode_table() + volume.table_blocks();
        let one = |block: u64| block..block + 1;
        let base = own.start..volume.base_blocks(number as u64).end;
        for blocks in [
            base,
            one(group.block_bitmap()),
            one(group.inode_bitmap()),
            table,
        ] {
            let blocks = blocks.start.max(own.start)..blocks.end.min(own.end);
            if blocks.start < blocks.end {
                set(
                    &mut own_metadata,
                    blocks.start / ratio - first..blocks.end.div_ceil(ratio) - first,
                );
            }
        }
        if own_metadata != bitmap {
            state.found.add(format_args!(
                "group {number} block(s) in use but group is marked BLOCK_UNINIT"
            ));
        }
        return free;
    }
    let mut actual = Vec::new();
    if let Err(problem) = volume.read_block(group.block_bitmap(), &mut actual) {
        state
            .found
            .add(format_args!("block bitmap of group {number}: {problem}"));
        return free;
    }
    let meant = volume.superblock.clusters_per_group as usize / 8;
    let checksum = (
        group.block_bitmap_checksum(),
        group.block_bitmap_checksum_lo,
    );
    checksum_fits(state, number, "block", &actual, meant, checksum);
    differences(state, "block", number, first, &bitmap, &actual, count);
    free
}

/// Compares one group's inodes. Returns the number of free ones.
fn inodes(state: &mut State, number: usize) -> u64 {
    let volume = state.volume;
    let Some(group) = volume.groups.get(number) else {
        return 0;
    };
    let per_group = volume.inodes_per_group();
    let first = saturate32(number) * per_group + 1;
    let mut bitmap = vec![0; volume.block_size];
    let mut taken = 0;
    let mut directories = 0;
    let reserved = volume.superblock.first_file_inode();
    let mut mark = |inode: u32| {
        let bit = u64::from(inode - first);
        taken += 1;
        set(&mut bitmap, bit..bit + 1);
    };
    for inode in first..first.saturating_add(per_group).min(reserved) {
        mark(inode);
    }
    let last = first + (per_group - 1);
    for (&inode, seen) in state.seen.range(first..=last) {
        directories += u32::from(seen.kind == Some(Kind::Directory));
        if inode >= reserved {
            mark(inode);
        }
    }
    let free = per_group - taken;
    if group.free_inodes() != free {
        state.found.add(format_args!(
            "free inodes count wrong for group #{number} ({}, counted={free})",
            group.free_inodes()
        ));
    }
    if group.directories() != directories {
        state.found.add(format_args!(
            "directories count wrong for group #{number} ({}, counted={directories})",
            group.directories()
        ));
    }
    if volume.superblock.has_group_checksums() && group.flags & INODE_UNINIT != 0 {
        if taken > 0 {
            state.found.add(format_args!(
                "group {number} inode(s) in use but group is marked INODE_UNINIT"
            ));
        }
        return free.into();
    }
    let mut actual = Vec::new();
    if let Err(problem) = volume.read_block(group.inode_bitmap(), &mut actual) {
        state
            .found
            .add(format_args!("inode bitmap of group {number}: {problem}"));
        return free.into();
    }
    let meant = per_group as usize / 8;
    let checksum = (
        group.inode_bitmap_checksum(),
        group.inode_bitmap_checksum_lo,
    );
    checksum_fits(state, number, "inode", &actual, meant, checksum);
    let names_from = u64::from(first);
    differences(
        state,
        "inode",
        number,
        names_from,
        &bitmap,
        &actual,
        per_group.into(),
    );
    free.into()
}

fn checksum_fits(
    state: &mut State,
    number: usize,
    what: &str,
    bitmap: &[u8],
    meant: usize,
    (whole, low): (u32, u16),
) {
    let volume = state.volume;
    if !volume.has_checksums() {
        return;
    }
    let right = bitmap_checksum(&volume.superblock, bitmap.get(..meant).unwrap_or(bitmap));
    // Short descriptors have room for half of the checksum.
    let fits = if usize::from(volume.superblock.descriptor_bytes()) >= GroupDescriptor::SIZE {
        right == whole
    } else {
        low16(right) == low
    };
    if !fits {
        state.found.add(format_args!(
            "group {number} {what} bitmap does not match checksum"
        ));
    }
}

/// Compares `count` bits, and checks that all bits after them are set.
fn differences(
    state: &mut State,
    what: &str,
    number: usize,
    first: u64,
    expected: &[u8],
    actual: &[u8],
    count: u64,
) {
    let bit = |bitmap: &[u8], index: u64| {
        let byte = bitmap.get((index / 8) as usize).copied().unwrap_or(0);
        byte >> (index % 8) & 1 == 1
    };
    let whole = (count / 8) as usize;
    let same = expected.get(..whole) == actual.get(..whole)
        && (whole as u64 * 8..count).all(|index| bit(expected, index) == bit(actual, index));
    if !same {
        let mut wrong = (0..count).filter(|&index| bit(expected, index) != bit(actual, index));
        let first_wrong = wrong.next().unwrap_or(0);
        let sign = if bit(expected, first_wrong) { '+' } else { '-' };
        state.found.add(format_args!(
            "{what} bitmap differences: {sign}{} and {} more in group {number}",
            first + first_wrong,
            wrong.count()
        ));
    }
    let begun = (count..count.next_multiple_of(8)).all(|index| bit(actual, index));
    let behind = actual.get(in_memory(count.div_ceil(8))..);
    let full = |bytes: &[u8]| bytes.iter().fold(0xff, |all, byte| all & byte) == 0xff;
    let padded = begun && behind.is_none_or(full);
    if !padded {
        state.found.add(format_args!(
            "padding at end of {what} bitmap of group {number} is not set"
        ));
    }
}

fn set(bitmap: &mut [u8], bits: Range<u64>) {
    let whole = bits.start.div_ceil(8)..bits.end / 8;
    let end = bitmap.len().min(in_memory(whole.end));
    if let Some(bytes) = bitmap.get_mut(in_memory(whole.start)..end) {
        bytes.fill(0xff);
    }
    let head = bits.start..bits.end.min(whole.start * 8);
    let tail = bits.start.max(whole.end * 8)..bits.end;
    for index in head.chain(tail) {
        if let Some(byte) = bitmap.get_mut((index / 8) as usize) {
            *byte |= 1 << (index % 8);
        }
    }
}
