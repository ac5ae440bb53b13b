//! Compares quota files with what the inodes use: `fs/quota/quota_tree.c` and `quotaio_v2.h`, and
//! Documentation/filesystems/quota.rst.
//!
//! A quota file consists of blocks of 1 KiB, whatever the filesystem's block size: a header, a tree
//! of four levels indexed by the bytes of an ID, and leaves with entries.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use hashbrown::HashSet;

use super::inode::Inode;
use super::map::Run;
use super::special::quota_inodes;
use super::state::State;
use super::volume::{Volume, word};
use crate::format::features::ro_compat;
use crate::format::fields;
use crate::format::inode::flags;

/// Magic numbers of user, group and project files.
const MAGIC: [u32; 3] = [0xd9c0_1f11, 0xd9c0_1927, 0xd9c0_3f14];
const NAMES: [&str; 3] = ["user", "group", "project"];
/// Size of a quota file's block in bytes.
const BLOCK: usize = 1024;
/// Levels of pointers above the leaves.
const LEVELS: u32 = 4;
/// Words of the header: the number of blocks, the first free block, and the first block with a free
/// entry.
const BLOCKS: usize = 5;
const FREE_BLOCK: usize = 6;
const FREE_ENTRY: usize = 7;
/// The largest file, in bytes.
const SIZE_MAX: u64 = 1 << 31;
/// Size in bytes of a leaf's header, and of an entry.
const LEAF_HEADER: usize = 16;
const ENTRY: usize = 72;

/// Bytes and inodes.
type Used = (u64, u64);

/// Space and inodes used by users, groups and projects.
#[derive(Debug, Default)]
pub(super) struct Usage {
    by_id: [BTreeMap<u32, Used>; 3],
}

impl Usage {
    /// Adds an inode to the usage of its owners.
    pub(super) fn add(&mut self, volume: &Volume, inode: &Inode) {
        let superblock = &volume.superblock;
        let hidden = inode.number < superblock.first_file_inode()
            && inode.number != crate::format::superblock::ROOT_INODE;
        if !superblock.has_ro_compat(ro_compat::QUOTA)
            || hidden
            || inode.number == superblock.project_quota_inode
            || inode.number == superblock.orphan_file_inode
            || inode.has(flags::EA_INODE)
        {
            return;
        }
        let bytes = inode.sectors(volume).saturating_mul(512);
        let ids = [inode.raw.uid(), inode.raw.gid(), inode.raw.project];
        for (usage, id) in self.by_id.iter_mut().zip(ids) {
            let used = usage.entry(id).or_default();
            *used = (used.0.saturating_add(bytes), used.1 + 1);
        }
    }
}

/// Compares each quota file with the counted usage.
pub(super) fn compare(state: &mut State) {
    if !state.volume.has_ro_compat(ro_compat::QUOTA) {
        return;
    }
    let usage = core::mem::take(&mut state.usage);
    for (kind, number) in quota_inodes(&state.volume.superblock)
        .into_iter()
        .enumerate()
    {
        if number == 0 {
            continue;
        }
        let name = NAMES.get(kind).copied().unwrap_or_default();
        let Some((runs, size)) = state.quota_files.get(&number).cloned() else {
            state
                .found
                .add(format_args!("invalid {name} quota inode {number}"));
            continue;
        };
        let file = File {
            volume: state.volume,
            runs: &runs,
            size,
        };
        let Some(expected) = file.entries(MAGIC.get(kind).copied().unwrap_or(0)) else {
            state.found.add(format_args!(
                "{name} quota file (inode {number}) is corrupt"
            ));
            continue;
        };
        let counted = usage.by_id.get(kind).cloned().unwrap_or_default();
        let ids: alloc::collections::BTreeSet<u32> =
            expected.keys().chain(counted.keys()).copied().collect();
        for id in ids {
            let expected = expected.get(&id).copied().unwrap_or_default();
            let counted = counted.get(&id).copied().unwrap_or_default();
            if expected != counted {
                state.found.add(format_args!(
                    "{name} quota usage inconsistent for ID {id}: actual {counted:?} != expected \
                     {expected:?}"
                ));
            }
        }
    }
}

struct File<'f, 'd> {
    volume: &'f Volume<'d>,
    runs: &'f [Run],
    /// Size of the file in bytes.
    size: u64,
}

impl File<'_, '_> {
    /// Returns the usage of each ID according to the file. `None` if it is not a quota file.
    fn entries(&self, magic: u32) -> Option<BTreeMap<u32, Used>> {
        let head = self.block(0)?;
        if word(&head, 0) != magic || word(&head, 1) > 1 {
            return None;
        }
        let blocks = word(&head, BLOCKS);
        if self.size > SIZE_MAX
            || u64::from(blocks) > self.size.div_ceil(BLOCK as u64)
            || word(&head, FREE_BLOCK) >= blocks
            || word(&head, FREE_ENTRY) >= blocks
        {
            return None;
        }
        let mut found = BTreeMap::new();
        let mut visited = HashSet::new();
        // The root of the tree is block 1.
        self.tree((1, blocks), LEVELS, &mut visited, &mut found)?;
        Some(found)
    }

    /// Reads a block of the tree or of its leaves; block numbers must be below `end`.
    fn tree(
        &self,
        (block, end): (u32, u32),
        level: u32,
        visited: &mut HashSet<u32>,
        found: &mut BTreeMap<u32, Used>,
    ) -> Option<()> {
        // Several IDs share a leaf.
        if !visited.insert(block) {
            return (level == 0).then_some(());
        }
        let bytes = self.block(block)?;
        if level == 0 {
            let entries = bytes.get(LEAF_HEADER..)?.chunks_exact(ENTRY);
            for entry in entries.filter(|entry| entry.iter().any(|&byte| byte != 0)) {
                let used = (fields::get(entry, 48), fields::get(entry, 24));
                found.insert(fields::get(entry, 0), used);
            }
            return Some(());
        }
        for index in 0..BLOCK / 4 {
            let child = word(&bytes, index);
            if child >= end {
                return None;
            }
            if child != 0 {
                self.tree((child, end), level - 1, visited, found)?;
            }
        }
        Some(())
    }

    /// Reads one of the file's blocks; zeros for a hole.
    fn block(&self, number: u32) -> Option<Vec<u8>> {
        let mut bytes = vec![0; BLOCK];
        let offset = u64::from(number) * BLOCK as u64;
        if offset >= self.size {
            return Some(bytes);
        }
        let block_size = self.volume.block_size as u64;
        let logical = offset / block_size;
        let run = self
            .runs
            .iter()
            .find(|run| run.written && (run.logical..run.logical + run.length).contains(&logical));
        if let Some(run) = run {
            let start = (run.physical + logical - run.logical) * block_size + offset % block_size;
            self.volume.read(start, &mut bytes).ok()?;
        }
        Some(bytes)
    }
}
