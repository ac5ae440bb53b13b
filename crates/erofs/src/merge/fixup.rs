//! Builds the image that corrects what a stack of layers shows.

use std::collections::HashSet;

use crate::tree::{InodeId, Kind, Tree};

/// Returns the part of a merged tree that overlayfs would show differently, with the directories
/// above it. `None` if there is nothing to correct.
///
/// The fixup goes on top of the whole stack: only what is still visible matters there, its files
/// hide those below, and its directories join the lower ones and provide their attributes.
pub(super) fn fixup(merged: &Tree, corrected: &HashSet<InodeId>) -> Option<Tree> {
    if corrected.is_empty() {
        return None;
    }
    let mut wanted = HashSet::new();
    mark(merged, corrected, &mut wanted);
    if wanted.is_empty() {
        return None;
    }

    let mut fixup = Tree::new(merged.inode(merged.root()).meta.clone());
    let mut copies = std::collections::HashMap::new();
    let mut nlinks = vec![0];
    let mut pending = vec![(merged.root(), fixup.root())];
    while let Some((from, to)) = pending.pop() {
        let mut entries = Vec::new();
        for (name, id) in merged.entries(from).filter(|(_, id)| wanted.contains(id)) {
            let inode = merged.inode(id);
            let copy = *copies.entry(id).or_insert_with(|| {
                nlinks.push(inode.nlink);
                let kind = match &inode.kind {
                    Kind::Directory(_) => Kind::directory(),
                    kind => kind.clone(),
                };
                fixup.add(inode.meta.clone(), kind)
            });
            if inode.is_directory() {
                pending.push((id, copy));
            }
            entries.push((name.into(), copy));
        }
        fixup.fill(to, entries);
    }
    fixup.set_link_counts(&nlinks);
    Some(fixup)
}

/// Collects the reachable corrected inodes, and all directories above them.
fn mark(merged: &Tree, corrected: &HashSet<InodeId>, wanted: &mut HashSet<InodeId>) {
    let mut pending = vec![merged.root()];
    while let Some(directory) = pending.pop() {
        let here = corrected.contains(&directory);
        let mut any = here;
        for (_, id) in merged.entries(directory) {
            if merged.inode(id).is_directory() {
                pending.push(id);
            } else if corrected.contains(&id) {
                wanted.insert(id);
                any = true;
            }
        }
        let mut above = any.then_some(directory);
        while let Some(id) = above.filter(|&id| wanted.insert(id)) {
            above = merged.parent(id);
        }
    }
}
