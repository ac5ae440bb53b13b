//! Changes extent trees: inserts, splits, removes and merges.

use alloc::vec::Vec;

use super::map::{check_root, entries, entry, position};
use super::{Ext4, Ino};
use crate::cache::Kind;
use crate::device::BlockDevice;
use crate::error::{Place, Result};
use crate::format::extent::{
    self, ENTRY_SIZE, Extent, HEADER_SIZE, Header, Index, MAX_LENGTH, MAX_UNWRITTEN_LENGTH,
};
use crate::format::fields;
use micabox_file::narrow::{saturate16, saturate32};

/// A node on the path from the root to a leaf.
#[derive(Debug, Clone, Copy)]
struct Step {
    /// The node's block; `None` for the root, which is in the inode.
    block: Option<u64>,
    /// Index of the entry that leads to the next node, or of the extent.
    position: usize,
    entries: usize,
    max: usize,
}

impl Step {
    fn is_full(&self) -> bool {
        self.entries >= self.max
    }
}

fn set_entries(node: &mut [u8], count: usize) {
    fields::put(node, 2, saturate16(count));
}

fn put_entry(node: &mut [u8], index: usize, bytes: &[u8; ENTRY_SIZE]) {
    let at = HEADER_SIZE + index * ENTRY_SIZE;
    if let Some(place) = node.get_mut(at..at + ENTRY_SIZE) {
        place.copy_from_slice(bytes);
    }
}

fn insert_entry(node: &mut [u8], index: usize, bytes: &[u8; ENTRY_SIZE]) {
    let count = entries(node);
    let at = HEADER_SIZE + index * ENTRY_SIZE;
    let end = HEADER_SIZE + count * ENTRY_SIZE;
    if at <= end && end + ENTRY_SIZE <= node.len() {
        node.copy_within(at..end, at + ENTRY_SIZE);
        put_entry(node, index, bytes);
        set_entries(node, count + 1);
    }
}

fn remove_entries(node: &mut [u8], index: usize, count: usize) {
    let total = entries(node);
    let at = HEADER_SIZE + index * ENTRY_SIZE;
    let from = at + count * ENTRY_SIZE;
    let end = HEADER_SIZE + total * ENTRY_SIZE;
    if from <= end && end <= node.len() {
        node.copy_within(from..end, at);
        set_entries(node, total - count);
    }
}

/// Returns the maximum length of an extent, written or unwritten.
fn longest(unwritten: bool) -> u32 {
    if unwritten {
        MAX_UNWRITTEN_LENGTH
    } else {
        MAX_LENGTH
    }
}

/// Joins two extents, if the second continues the first.
fn joined(first: &Extent, second: &Extent) -> Option<Extent> {
    let length = first.length.checked_add(second.length)?;
    (first.unwritten == second.unwritten
        && first.end() == u64::from(second.logical)
        && first.physical + u64::from(first.length) == second.physical
        && length <= longest(first.unwritten))
    .then_some(Extent { length, ..*first })
}

impl<D: BlockDevice> Ext4<D> {
    /// Returns a node's bytes.
    fn node(&mut self, ino: Ino, block: Option<u64>) -> Result<&[u8]> {
        let inode = self.inode(ino)?;
        let seed = inode.seed;
        match block {
            Some(block) => self.blocks.read(&self.io, block, Kind::Extents { seed }),
            None => Ok(&self.inode(ino)?.raw.block),
        }
    }

    /// Returns a node's bytes for changes.
    fn node_mut(&mut self, ino: Ino, block: Option<u64>) -> Result<&mut [u8]> {
        let seed = self.inode(ino)?.seed;
        match block {
            Some(block) => self.blocks.write(&self.io, block, Kind::Extents { seed }),
            None => {
                let inode = self.inode_mut(ino)?;
                inode.last_extent = None;
                Ok(&mut inode.raw.block)
            }
        }
    }

    /// Returns the path from the root to the leaf that has, or would have, `logical`.
    fn path(&mut self, ino: Ino, logical: u32) -> Result<Vec<Step>> {
        let depth = check_root(ino, &self.inode(ino)?.raw.block)?;
        let mut path = Vec::with_capacity(usize::from(depth) + 1);
        let mut block = None;
        for level in (0..=depth).rev() {
            let node = self.node(ino, block)?;
            if fields::get::<u16>(node, 6) != level {
                return Err(
                    Place::Inode(ino).corrupt("a node at the wrong depth of the extent tree")
                );
            }
            let count = entries(node);
            let max = usize::from(fields::get::<u16>(node, 4));
            let position = position(node, logical).unwrap_or(0);
            let child = Index::decode(entry(node, position)).child;
            path.push(Step {
                block,
                position,
                entries: count,
                max,
            });
            if level > 0 {
                if count == 0 {
                    return Err(Place::Inode(ino).corrupt("an empty node in the extent tree"));
                }
                block = Some(child);
            }
        }
        Ok(path)
    }

    /// Adds an extent for blocks that are not mapped yet.
    pub(crate) fn insert_extent(&mut self, ino: Ino, new: Extent) -> Result<()> {
        self.inode_mut(ino)?.last_extent = None;
        loop {
            let path = self.path(ino, new.logical)?;
            let Some(leaf) = path.last().copied() else {
                return Ok(());
            };
            if self.try_join(ino, &path, leaf, new)? {
                return Ok(());
            }
            if !leaf.is_full() {
                let node = self.node_mut(ino, leaf.block)?;
                let before = leaf.entries == 0
                    || fields::get::<u32>(entry(node, leaf.position), 0) > new.logical;
                let at = if before {
                    leaf.position
                } else {
                    leaf.position + 1
                };
                insert_entry(node, at, &new.encode());
                if at == 0 {
                    self.correct_keys(ino, &path)?;
                }
                return Ok(());
            }
            match path.iter().rposition(|step| !step.is_full()) {
                Some(parent) => self.split(ino, &path, parent, new.logical)?,
                None => self.deepen(ino)?,
            }
        }
    }

    /// Extends a neighbour in the leaf instead of adding an entry, if possible.
    fn try_join(&mut self, ino: Ino, path: &[Step], leaf: Step, new: Extent) -> Result<bool> {
        if leaf.entries == 0 {
            return Ok(false);
        }
        let node = self.node(ino, leaf.block)?;
        let at = leaf.position;
        let here = Extent::decode(entry(node, at));
        let following = (at + 1 < leaf.entries).then(|| Extent::decode(entry(node, at + 1)));
        if let Some(longer) = joined(&here, &new) {
            let all = following.and_then(|following| joined(&longer, &following));
            let node = self.node_mut(ino, leaf.block)?;
            put_entry(node, at, &all.unwrap_or(longer).encode());
            if all.is_some() {
                remove_entries(node, at + 1, 1);
                self.merge_nodes(ino, new.logical)?;
            }
            return Ok(true);
        }
        let (index, longer) = match following.and_then(|following| joined(&new, &following)) {
            Some(longer) => (at + 1, longer),
            None => match joined(&new, &here) {
                Some(longer) => (at, longer),
                None => return Ok(false),
            },
        };
        put_entry(self.node_mut(ino, leaf.block)?, index, &longer.encode());
        if index == 0 {
            self.correct_keys(ino, path)?;
        }
        Ok(true)
    }

    /// Updates the keys on the path to a leaf after the leaf's first entry changed.
    fn correct_keys(&mut self, ino: Ino, path: &[Step]) -> Result<()> {
        let Some(leaf) = path.last() else {
            return Ok(());
        };
        let node = self.node(ino, leaf.block)?;
        if entries(node) == 0 {
            return Ok(());
        }
        let first: u32 = fields::get(entry(node, 0), 0);
        for step in path.iter().rev().skip(1) {
            let node = self.node(ino, step.block)?;
            let mut index = Index::decode(entry(node, step.position));
            if index.logical == first {
                break;
            }
            index.logical = first;
            put_entry(
                self.node_mut(ino, step.block)?,
                step.position,
                &index.encode(),
            );
            if step.position != 0 {
                break;
            }
        }
        Ok(())
    }

    fn new_node(&mut self, ino: Ino, goal: u64) -> Result<u64> {
        let (block, _) = self.allocate_blocks(goal, 1)?;
        self.add_blocks(ino, 1)?;
        let seed = self.inode(ino)?.seed;
        self.blocks.fresh(block, Kind::Extents { seed })?;
        Ok(block)
    }

    /// Adds a level to a full tree: moves the root's entries to a new node below it.
    fn deepen(&mut self, ino: Ino) -> Result<()> {
        let goal = self.goal_of(ino);
        let block = self.new_node(ino, goal)?;
        let root = self.inode(ino)?.raw.block;
        let max = extent::node_capacity(self.geometry.block_size);
        let node = self.node_mut(ino, Some(block))?;
        if let Some(place) = node.get_mut(..root.len()) {
            place.copy_from_slice(&root);
        }
        fields::put(node, 4, max);
        let first = fields::get(entry(&root, 0), 0);
        let depth = fields::get::<u16>(&root, 6) + 1;
        if depth > extent::MAX_DEPTH {
            return Err(Place::Inode(ino).corrupt("the extent tree is deeper than it can be"));
        }
        let root = self.node_mut(ino, None)?;
        root.fill(0);
        let header = Header {
            magic: extent::MAGIC,
            entries: 1,
            max: extent::ROOT_ENTRIES,
            depth,
            generation: 0,
        };
        header.encode_into(root);
        put_entry(
            root,
            0,
            &Index {
                logical: first,
                child: block,
            }
            .encode(),
        );
        Ok(())
    }

    /// Splits the full node below `path[parent]`, which has room for one more entry.
    fn split(&mut self, ino: Ino, path: &[Step], parent: usize, logical: u32) -> Result<()> {
        let (Some(parent_step), Some(full)) =
            (path.get(parent).copied(), path.get(parent + 1).copied())
        else {
            return Err(Place::Inode(ino).corrupt("the extent tree has no room"));
        };
        let is_leaf = parent + 2 == path.len();
        let node = self.node(ino, full.block)?.to_vec();
        let last: u32 = fields::get(entry(&node, full.entries.saturating_sub(1)), 0);
        // The next inserts are likely appends: leave the existing node packed.
        let at = match (logical > last, is_leaf) {
            (true, true) => full.entries,
            (true, false) => full.entries - 1,
            (false, _) => full.entries / 2,
        };
        let block = self.new_node(ino, full.block.unwrap_or(0))?;
        let moved = full.entries - at;
        let first = if moved == 0 {
            logical
        } else {
            fields::get(entry(&node, at), 0)
        };
        let new = self.node_mut(ino, Some(block))?;
        let header = Header {
            magic: extent::MAGIC,
            entries: saturate16(moved),
            max: extent::node_capacity(new.len()),
            depth: fields::get(&node, 6),
            generation: 0,
        };
        header.encode_into(new);
        let from = HEADER_SIZE + at * ENTRY_SIZE;
        if let (Some(place), Some(bytes)) = (
            new.get_mut(HEADER_SIZE..HEADER_SIZE + moved * ENTRY_SIZE),
            node.get(from..from + moved * ENTRY_SIZE),
        ) {
            place.copy_from_slice(bytes);
        }
        remove_entries(self.node_mut(ino, full.block)?, at, moved);
        let index = Index {
            logical: first,
            child: block,
        };
        insert_entry(
            self.node_mut(ino, parent_step.block)?,
            parent_step.position + 1,
            &index.encode(),
        );
        Ok(())
    }

    /// Removes the blocks from `from` up to `to` (exclusive) from the tree and frees them. Stops
    /// early, and returns `false`, when the running transaction is full.
    pub(crate) fn remove_extents(&mut self, ino: Ino, from: u32, to: u64) -> Result<bool> {
        self.inode_mut(ino)?.last_extent = None;
        // From the end, so that after an early stop the file is only truncated less.
        let mut to = to.min(1 << 32);
        while to > u64::from(from) {
            if self.transaction_is_full() {
                return Ok(false);
            }
            let path = self.path(ino, saturate32(to - 1))?;
            let Some(leaf) = path.last().copied().filter(|leaf| leaf.entries > 0) else {
                break;
            };
            let extent = Extent::decode(entry(self.node(ino, leaf.block)?, leaf.position));
            if u64::from(extent.logical) >= to || extent.end() <= u64::from(from) {
                break;
            }
            let start = extent.logical.max(from);
            let end = extent.end().min(to);
            let count = end - u64::from(start);
            let tail = (end < extent.end()).then(|| Extent {
                logical: saturate32(end),
                length: saturate32(extent.end() - end),
                physical: extent.physical + (end - u64::from(extent.logical)),
                ..extent
            });
            let cuts = start > extent.logical;
            let node = self.node_mut(ino, leaf.block)?;
            if cuts {
                let head = Extent {
                    length: start - extent.logical,
                    ..extent
                };
                put_entry(node, leaf.position, &head.encode());
            } else if let Some(tail) = tail {
                put_entry(node, leaf.position, &tail.encode());
            } else {
                remove_entries(node, leaf.position, 1);
            }
            let emptied = entries(node) == 0;
            if emptied && path.len() > 1 {
                self.remove_node(ino, &path)?;
            } else if leaf.position == 0 {
                self.correct_keys(ino, &path)?;
            }
            if let (true, Some(tail)) = (cuts, tail) {
                self.insert_extent(ino, tail)?;
            }
            let physical = extent.physical + u64::from(start - extent.logical);
            self.free_blocks(physical, count)?;
            self.subtract_blocks(ino, count)?;
            to = start.into();
        }
        self.merge_nodes(ino, from)?;
        Ok(true)
    }

    /// Removes an empty leaf from the tree, and the nodes that become empty with it.
    fn remove_node(&mut self, ino: Ino, path: &[Step]) -> Result<()> {
        for level in (1..path.len()).rev() {
            let (Some(step), Some(parent)) = (path.get(level), path.get(level - 1)) else {
                break;
            };
            if let Some(block) = step.block {
                self.free_metadata(block)?;
                self.subtract_blocks(ino, 1)?;
            }
            let node = self.node_mut(ino, parent.block)?;
            remove_entries(node, parent.position, 1);
            if entries(node) > 0 {
                if parent.position == 0 {
                    self.correct_keys(ino, path.get(..level).unwrap_or_default())?;
                }
                break;
            }
            if parent.block.is_none() {
                // No leaf remains: the root becomes a leaf again.
                fields::put(node, 6, 0u16);
            }
        }
        Ok(())
    }

    /// Merges the nodes on the path to `logical` with their neighbours where both fit into one, and
    /// removes levels below a root with a single small child.
    fn merge_nodes(&mut self, ino: Ino, logical: u32) -> Result<()> {
        let depth = usize::from(check_root(ino, &self.inode(ino)?.raw.block)?);
        for level in (1..=depth).rev() {
            let path = self.path(ino, logical)?;
            let (Some(parent), Some(node)) =
                (path.get(level - 1).copied(), path.get(level).copied())
            else {
                break;
            };
            for left in [Some(parent.position), parent.position.checked_sub(1)]
                .into_iter()
                .flatten()
            {
                let children = self.node(ino, parent.block)?;
                if left + 1 >= entries(children) {
                    continue;
                }
                let first = Index::decode(entry(children, left)).child;
                let second = Index::decode(entry(children, left + 1)).child;
                if self.merge_siblings(ino, first, second, node.max)? {
                    remove_entries(self.node_mut(ino, parent.block)?, left + 1, 1);
                    self.free_metadata(second)?;
                    self.subtract_blocks(ino, 1)?;
                }
            }
        }
        self.flatten(ino)
    }

    /// Moves the entries of the second node to the first, if there is ample room.
    fn merge_siblings(&mut self, ino: Ino, first: u64, second: u64, max: usize) -> Result<bool> {
        let count = entries(self.node(ino, Some(first))?);
        let node = self.node(ino, Some(second))?;
        let more = entries(node);
        // Half full at most, so that the next change does not split it again.
        if (count + more) * 2 > max {
            return Ok(false);
        }
        let mut moved: Vec<[u8; ENTRY_SIZE]> = Vec::with_capacity(more);
        moved.extend((0..more).filter_map(|index| entry(node, index).first_chunk().copied()));
        let is_leaf = fields::get::<u16>(node, 6) == 0;
        let node = self.node_mut(ino, Some(first))?;
        let mut moved = moved.iter().peekable();
        if is_leaf
            && let (Some(last), Some(next)) = (count.checked_sub(1), moved.peek())
            && let Some(all) = joined(&Extent::decode(entry(node, last)), &Extent::decode(*next))
        {
            put_entry(node, last, &all.encode());
            moved.next();
        }
        for bytes in moved {
            let end = entries(node);
            insert_entry(node, end, bytes);
        }
        Ok(true)
    }

    /// Moves the entries of a root's only child into the root as long as they fit.
    fn flatten(&mut self, ino: Ino) -> Result<()> {
        loop {
            let root = self.inode(ino)?.raw.block;
            if fields::get::<u16>(&root, 6) == 0 || entries(&root) != 1 {
                return Ok(());
            }
            let child = Index::decode(entry(&root, 0)).child;
            let node = self.node(ino, Some(child))?;
            let count = entries(node);
            if count > usize::from(extent::ROOT_ENTRIES) {
                return Ok(());
            }
            let depth: u16 = fields::get(node, 6);
            let moved = node
                .get(HEADER_SIZE..HEADER_SIZE + count * ENTRY_SIZE)
                .unwrap_or_default()
                .to_vec();
            let root = self.node_mut(ino, None)?;
            if let Some(place) = root.get_mut(HEADER_SIZE..HEADER_SIZE + moved.len()) {
                place.copy_from_slice(&moved);
            }
            set_entries(root, count);
            fields::put(root, 6, depth);
            self.free_metadata(child)?;
            self.subtract_blocks(ino, 1)?;
        }
    }

    /// Marks a part of an unwritten extent as written.
    pub(crate) fn mark_written(&mut self, ino: Ino, from: u32, count: u32) -> Result<()> {
        let (mut at, end) = (u64::from(from), u64::from(from) + u64::from(count));
        while at < end {
            let path = self.path(ino, saturate32(at))?;
            let Some(leaf) = path.last().copied() else {
                break;
            };
            let node = self.node(ino, leaf.block)?;
            let extent = Extent::decode(entry(node, leaf.position));
            if leaf.entries == 0 || at < extent.logical.into() || at >= extent.end() {
                return Err(Place::Inode(ino).corrupt("blocks to be written have no extent"));
            }
            let stop = extent.end().min(end);
            if extent.unwritten {
                let piece = |from: u64, to: u64, unwritten| Extent {
                    logical: saturate32(from),
                    length: saturate32(to - from),
                    physical: extent.physical + (from - u64::from(extent.logical)),
                    unwritten,
                };
                let start = u64::from(extent.logical);
                let node = self.node_mut(ino, leaf.block)?;
                if start < at {
                    put_entry(node, leaf.position, &piece(start, at, true).encode());
                } else {
                    remove_entries(node, leaf.position, 1);
                    let emptied = entries(node) == 0;
                    if emptied && path.len() > 1 {
                        self.remove_node(ino, &path)?;
                    } else if leaf.position == 0 {
                        self.correct_keys(ino, &path)?;
                    }
                }
                self.insert_extent(ino, piece(at, stop, false))?;
                if stop < extent.end() {
                    self.insert_extent(ino, piece(stop, extent.end(), true))?;
                }
            }
            at = stop;
        }
        self.inode_mut(ino)?.last_extent = None;
        Ok(())
    }
}
