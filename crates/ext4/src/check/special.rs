//! Checks inodes with a special meaning: bad blocks, growth, journal, quotas, orphans.

use alloc::vec;
use alloc::vec::Vec;

use super::inode::{Inode, Kind};
use super::inodes::blocks;
use super::map::{Map, Run};
use super::state::State;
use super::volume::{Volume, word};
use crate::format::features::{compat, incompat, ro_compat};
use crate::format::inode::flags;
use crate::format::superblock::{JOURNAL_INODE, ROOT_INODE, Superblock};
use micabox_file::narrow::in_memory;

/// Number of the inode that lists bad blocks.
pub(super) const BAD_BLOCKS: u32 = 1;
/// Number of the inode that holds descriptor blocks for growth.
pub(super) const RESIZE: u32 = crate::format::superblock::RESIZE_INODE;
/// Index of the doubly indirect block in `i_block`.
const DOUBLY: usize = 13;
/// The usual numbers of the inodes of users' and groups' quotas.
const QUOTA_INODES: [u32; 2] = [3, 4];

/// The purpose of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A file, or anything else with a name.
    File,
    /// The journal, quotas or orphans.
    Own,
    /// The same, but of a feature that the filesystem does not use.
    Unused,
    /// Reserved for something else.
    Reserved,
}

impl Purpose {
    /// Returns the purpose of an inode by its number.
    pub(super) fn of(volume: &Volume, number: u32) -> Self {
        let superblock = &volume.superblock;
        let own = |is_own| if is_own { Self::Own } else { Self::Unused };
        let quota = reserved_for_quota(volume);
        match number {
            ROOT_INODE => Self::File,
            JOURNAL_INODE => own(superblock.journal_inode == JOURNAL_INODE),
            _ if quota.contains(&number) => own(superblock.has_ro_compat(ro_compat::QUOTA)
                && quota_inodes(superblock).contains(&number)),
            _ if number == superblock.orphan_file_inode => {
                own(superblock.has_compat(compat::ORPHAN_FILE))
            }
            _ if number < superblock.first_file_inode() => Self::Reserved,
            _ => Self::File,
        }
    }
}

/// Returns the numbers of inodes that are reserved for quotas, whether the filesystem uses quotas
/// or not.
pub(super) fn reserved_for_quota(volume: &Volume) -> [u32; 3] {
    let [user, group] = QUOTA_INODES;
    [user, group, volume.superblock.project_quota_inode]
}

/// Checks that an inode whose feature is not used is empty.
pub(super) fn unused(state: &mut State, inode: &Inode) {
    let raw = &inode.raw;
    if raw.links_count != 0 || raw.blocks_lo != 0 || word(inode.block(), 0) != 0 {
        state
            .found
            .inode(inode.number, "is not in use, but contains data");
    }
}

/// Checks the list of bad blocks: an inode without attributes.
pub(super) fn bad_blocks(state: &mut State, inode: &Inode) {
    let raw = &inode.raw;
    let owned = raw.mode != 0 || raw.uid_lo != 0 || raw.gid_lo != 0 || raw.links_count != 0;
    if owned || inode.has(flags::INLINE_DATA) || raw.file_acl_lo != 0 {
        state
            .found
            .inode(inode.number, "the bad block inode looks invalid");
    }
    if (0..15).all(|index| word(inode.block(), index) == 0) {
        return;
    }
    let map = blocks(state, inode);
    for run in &map.runs {
        for block in run.physical..run.physical + run.length {
            if state.is_fixed(block) {
                let what = format_args!("bad block {block} used as filesystem metadata");
                state.found.inode(inode.number, what);
            }
        }
    }
}

/// Records the blocks of files that are checked separately.
pub(super) fn remember(state: &mut State, inode: &Inode, map: &Map) {
    let superblock = &state.volume.superblock;
    let number = inode.number;
    let regular = inode.kind() == Some(Kind::Regular);
    if superblock.has_compat(compat::HAS_JOURNAL) && number == superblock.journal_inode {
        if !regular || inode.has(flags::ENCRYPT) {
            state
                .found
                .inode(number, "superblock has an invalid journal");
        }
        state.journal = Some((map.runs.clone(), inode.raw.size()));
    }
    if superblock.has_compat(compat::ORPHAN_FILE) && number == superblock.orphan_file_inode {
        state.orphan_file = Some((map.runs.clone(), inode.seed(state.volume)));
    }
    if superblock.has_ro_compat(ro_compat::QUOTA) && quota_inodes(superblock).contains(&number) {
        if !regular {
            state
                .found
                .inode(number, "quota inode is not a regular file");
        }
        let file = (map.runs.clone(), inode.raw.size());
        state.quota_files.insert(number, file);
    }
}

/// Returns the inode numbers of user, group and project quotas; 0 for none.
pub(super) fn quota_inodes(superblock: &Superblock) -> [u32; 3] {
    [
        superblock.user_quota_inode,
        superblock.group_quota_inode,
        superblock.project_quota_inode,
    ]
}

/// Checks the resize inode: its doubly indirect block lists the reserved descriptor blocks of the
/// first group, and each of those lists the corresponding blocks in the groups with backups.
/// Returns all of them as nodes of a map, and the last one as its end; `None` if they are not what
/// they must be, so that their number is unbounded.
pub(super) fn resize(state: &mut State, inode: &Inode) -> Option<Map> {
    let volume = state.volume;
    let superblock = &volume.superblock;
    let pointers = |index| word(inode.block(), index);
    if !superblock.has_compat(compat::RESIZE_INODE) {
        if (0..15).any(|index| pointers(index) != 0) {
            let what = "resize_inode not enabled, but the resize inode is non-zero";
            state.found.inode(inode.number, what);
        }
        return None;
    }
    if superblock.has_incompat(incompat::META_BG) {
        let what = "resize_inode and meta_bg features are enabled; they are not compatible";
        state.found.inode(inode.number, what);
    }
    let doubly = u64::from(pointers(DOUBLY));
    let sound = inode.kind() == Some(Kind::Regular)
        && inode.raw.links_count != 0
        && !inode.has(flags::EXTENTS | flags::INLINE_DATA)
        && (0..15).all(|index| index == DOUBLY || pointers(index) == 0)
        && volume.is_data_block(doubly)
        && !state.is_fixed(doubly)
        && lists_reserved_blocks(state, doubly).unwrap_or(false);
    if !sound {
        state.found.inode(inode.number, "resize inode not valid");
    }
    if !volume.is_data_block(doubly) || state.is_fixed(doubly) {
        return None;
    }
    state.visited.insert(doubly);
    let clusters = state.clusters(doubly..doubly + 1);
    state.claims.add(clusters, inode.number);
    sound.then(|| listed(volume, doubly))
}

/// Returns the blocks in the doubly indirect block and in those that it lists, all of them checked.
fn listed(volume: &Volume, doubly: u64) -> Map {
    let per_block = volume.block_size as u64 / 4;
    let first = DOUBLY as u64 - 1 + per_block;
    let mut map = Map {
        nodes: vec![doubly],
        ..Map::default()
    };
    let (mut list, mut block) = (Vec::new(), Vec::new());
    if volume.read_block(doubly, &mut list).is_err() {
        return map;
    }
    for slot in 0..per_block {
        let own = u64::from(word(&list, in_memory(slot)));
        if own == 0 || volume.read_block(own, &mut block).is_err() {
            continue;
        }
        map.nodes.push(own);
        for index in 0..per_block {
            let physical = u64::from(word(&block, in_memory(index)));
            if physical != 0 {
                map.nodes.push(physical);
                map.runs = vec![Run {
                    logical: first + slot * per_block + index,
                    physical,
                    length: 1,
                    written: true,
                }];
            }
        }
    }
    map
}

/// Whether the doubly indirect block and the reserved ones have the required contents.
fn lists_reserved_blocks(state: &State, doubly: u64) -> Option<bool> {
    let volume = state.volume;
    let superblock = &volume.superblock;
    let per_block = volume.block_size as u64 / 4;
    let reserved = u64::from(superblock.reserved_gdt_blocks);
    let base = volume.base_blocks(0);
    let first = base.end.checked_sub(reserved)?;
    let backups: Vec<u64> = (1..volume.groups.len() as u64)
        .filter(|&group| superblock.has_backup(group))
        .collect();
    let mut list = vec![0; per_block as usize];
    let mut block = Vec::new();
    for own in first..base.end {
        let mut expected = vec![0; per_block as usize];
        let namesakes = backups
            .iter()
            .map(|group| own + group * volume.blocks_per_group);
        for (slot, namesake) in expected.iter_mut().zip(namesakes) {
            *slot = namesake;
        }
        volume.read_block(own, &mut block).ok()?;
        if !holds(&block, &expected) {
            return Some(false);
        }
        // The number of a descriptor block determines its place in the list.
        let slot = own.checked_sub(base.start + 1)? % per_block;
        *list.get_mut(in_memory(slot))? = own;
    }
    volume.read_block(doubly, &mut block).ok()?;
    if !holds(&block, &list) {
        return Some(false);
    }
    Some(true)
}

/// Whether a block holds exactly these pointers.
fn holds(block: &[u8], pointers: &[u64]) -> bool {
    pointers
        .iter()
        .enumerate()
        .all(|(slot, &pointer)| u64::from(word(block, slot)) == pointer)
}
