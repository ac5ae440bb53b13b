//! Passes 3 and 4: checks that every directory can be reached from the root, and that every inode
//! has as many names as its link count.

use hashbrown::HashSet;

use super::inode::Kind;
use super::state::State;
use crate::format::directory::MAX_LINKS;
use crate::format::features::{incompat, ro_compat};
use crate::format::inode::flags;
use crate::format::superblock::ROOT_INODE;

/// Pass 3: checks that every directory can be reached from the root.
pub(super) fn connectivity(state: &mut State) {
    let mut connected = HashSet::new();
    connected.insert(ROOT_INODE);
    for directory in &state.directories {
        let number = directory.number;
        let mut path = HashSet::new();
        let mut at = number;
        while !connected.contains(&at) && path.insert(at) {
            match state.parents.get(&at) {
                Some(&parent) => at = parent,
                None => break,
            }
        }
        if connected.contains(&at) {
            connected.extend(path);
        } else {
            state.found.inode(number, "unconnected directory inode");
        }
        let parent = match number {
            ROOT_INODE => ROOT_INODE,
            _ => state.parents.get(&number).copied().unwrap_or(0),
        };
        let dotdot = state.dotdots.get(&number).copied().unwrap_or(parent);
        if parent != 0 && dotdot != parent {
            let what = format_args!("'..' is {dotdot}, should be {parent}");
            state.found.inode(number, what);
        }
    }
}

/// Pass 4: checks link counts.
pub(super) fn counts(state: &mut State) {
    let superblock = &state.volume.superblock;
    let first = superblock.first_file_inode();
    let many = superblock.has_ro_compat(ro_compat::DIR_NLINK);
    for (&number, seen) in &state.seen {
        let internal = number < first && number != ROOT_INODE;
        let own_use = [superblock.project_quota_inode, superblock.orphan_file_inode];
        if internal || own_use.contains(&number) || number == superblock.journal_inode {
            continue;
        }
        if seen.flags & flags::EA_INODE != 0 && superblock.has_incompat(incompat::EA_INODE) {
            let counted = state.value_inodes.get(&number).copied().unwrap_or(0);
            if counted == 0 {
                state.found.inode(number, "unattached inode");
            } else if seen.references != counted {
                let what = format_args!(
                    "extended attribute inode ref count is {}, should be {counted}",
                    seen.references
                );
                state.found.inode(number, what);
            }
            continue;
        }
        let directory = seen.kind == Some(Kind::Directory);
        if seen.counted == 0 && !directory {
            state.found.inode(number, "unattached inode");
            continue;
        }
        // A directory that once had too many subdirectories does not count them any more, however
        // few are left.
        let indexed = seen.flags & flags::INDEX != 0 && seen.counted > 1;
        let uncounted =
            directory && seen.links == 1 && (indexed || many && seen.counted > MAX_LINKS);
        if u32::from(seen.links) != seen.counted && !uncounted {
            let what = format_args!("ref count is {}, should be {}", seen.links, seen.counted);
            state.found.inode(number, what);
        }
    }
    for &value in state.value_inodes.keys() {
        let sound = state
            .seen
            .get(&value)
            .is_some_and(|seen| seen.flags & flags::EA_INODE != 0);
        if !sound {
            let what = format_args!("illegal extended attribute value inode {value}");
            state.found.add(what);
        }
    }
    for (block, shared) in &state.attribute_blocks {
        if let Some(claimed) = shared.claimed.filter(|claimed| *claimed != shared.counted) {
            state.found.add(format_args!(
                "extended attribute block {block} has reference count {claimed}, should be {}",
                shared.counted
            ));
        }
    }
}
