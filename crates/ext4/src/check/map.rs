//! Finds a file's blocks: walks extent trees and indirect blocks without trusting them.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use hashbrown::HashSet;

use super::finding::Findings;
use super::inode::Inode;
use super::state::contains;
use super::volume::{Volume, word};
use crate::format::extent::{self, ENTRY_SIZE, Extent, HEADER_SIZE, Header, Index, MAX_DEPTH};
use crate::format::fields;
use crate::format::inode::flags;
use micabox_file::narrow::in_memory;

/// Number of direct pointers in `i_block`.
const DIRECT: usize = 12;
/// A file's blocks have 32-bit numbers.
const LOGICAL_END: u64 = 1 << 32;
/// Maximum number of bad blocks reported per file.
const TOLD_MAX: u32 = 8;

/// Consecutive blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) logical: u64,
    pub(super) physical: u64,
    pub(super) length: u64,
    /// Whether the blocks hold data; otherwise they are only allocated.
    pub(super) written: bool,
}

/// A file's blocks.
#[derive(Debug, Default)]
pub(super) struct Map {
    /// Ascending by logical number.
    pub(super) runs: Vec<Run>,
    /// Blocks of the tree itself.
    pub(super) nodes: Vec<u64>,
    /// Whether inconsistent parts were left out.
    pub(super) broken: bool,
}

impl Map {
    /// Appends blocks, or joins them to the last run.
    fn push(&mut self, run: Run) {
        if let Some(last) = self.runs.last_mut()
            && last.logical + last.length == run.logical
            && last.physical + last.length == run.physical
            && last.written == run.written
        {
            last.length += run.length;
            return;
        }
        self.runs.push(run);
    }

    /// Returns the first logical block after all runs.
    pub(super) fn end(&self) -> u64 {
        self.runs.last().map_or(0, |run| run.logical + run.length)
    }

    /// Returns the first logical block after all runs that hold data.
    pub(super) fn written_end(&self) -> u64 {
        let written = self.runs.iter().rev().find(|run| run.written);
        written.map_or(0, |run| run.logical + run.length)
    }
}

/// The context that a walk needs at every node.
pub(super) struct Walk<'v, 'd> {
    pub(super) volume: &'v Volume<'d>,
    pub(super) found: &'v mut Findings,
    /// Blocks of trees walked so far, of all files: a node has one parent.
    pub(super) visited: &'v mut HashSet<u64>,
    /// Blocks that belong to the filesystem itself.
    pub(super) fixed: &'v [Range<u64>],
}

impl Walk<'_, '_> {
    /// Returns the blocks of an inode that has blocks.
    pub(super) fn map(&mut self, inode: &Inode) -> Map {
        let mut map = Map::default();
        if inode.has(flags::EXTENTS) {
            self.extents(inode, &mut map);
        } else {
            self.indirect(inode, &mut map);
        }
        map
    }

    fn extents(&mut self, inode: &Inode, map: &mut Map) {
        let root = inode.block();
        let depth = Header::decode(root).depth;
        if let Err(problem) = header(root, root.len()) {
            self.broken(
                inode,
                map,
                format_args!("the extent header is invalid: {problem}"),
            );
            return;
        }
        if depth > MAX_DEPTH {
            self.broken(
                inode,
                map,
                format_args!("the extent tree is {depth} levels deep"),
            );
            return;
        }
        self.node(inode, root, depth, (0, LOGICAL_END), map);
    }

    /// Walks one node of an extent tree that must map `within`.
    fn node(&mut self, inode: &Inode, node: &[u8], depth: u16, within: (u64, u64), map: &mut Map) {
        let count = usize::from(Header::decode(node).entries);
        let bytes = node.get(HEADER_SIZE..).unwrap_or_default();
        let mut entries = bytes.chunks_exact(ENTRY_SIZE).take(count).peekable();
        let mut next = within.0;
        while let Some(entry) = entries.next() {
            let logical: u32 = fields::get(entry, 0);
            let logical = u64::from(logical);
            if logical < next || logical >= within.1 {
                let what = match depth {
                    0 => "has out of order extents",
                    _ => "has an invalid extent node",
                };
                self.broken(inode, map, format_args!("{what} (lblk {logical})"));
                // Further entries would only repeat the finding.
                return;
            }
            if depth == 0 {
                next = self.leaf(inode, &Extent::decode(entry), within.1, map);
                continue;
            }
            let end = entries
                .peek()
                .map_or(within.1, |entry| u64::from(Index::decode(entry).logical));
            self.child(
                inode,
                Index::decode(entry).child,
                depth - 1,
                (logical, end),
                map,
            );
            next = logical + 1;
        }
    }

    fn child(&mut self, inode: &Inode, block: u64, depth: u16, within: (u64, u64), map: &mut Map) {
        let Some(node) = self.tree_block(inode, block, map) else {
            return;
        };
        let found = Header::decode(&node).depth;
        if found != depth {
            self.found.inode(
                inode.number,
                format_args!("extent node {block} says it is at depth {found}, not {depth}"),
            );
        }
        if let Err(problem) = header(&node, node.len()) {
            let lblk = within.0;
            self.broken(
                inode,
                map,
                format_args!("has an invalid extent node (blk {block}, lblk {lblk}): {problem}"),
            );
            return;
        }
        if self.volume.has_checksums() {
            let computed = extent::checksum_of(inode.seed(self.volume), &node);
            let offset = extent::checksum_offset(&node);
            if offset + 4 > node.len() || computed != fields::get::<u32>(&node, offset) {
                self.found.inode(
                    inode.number,
                    format_args!("extent block checksum does not match extent (block {block})"),
                );
            }
        }
        let first = u64::from(Index::decode(node.get(HEADER_SIZE..).unwrap_or_default()).logical);
        if first != within.0 {
            self.found.inode(
                inode.number,
                format_args!(
                    "interior extent node: logical start {} does not match logical start {first} \
                     at next level",
                    within.0
                ),
            );
        }
        self.node(inode, &node, depth, within, map);
    }

    /// Checks one extent. Returns the logical block after it.
    fn leaf(&mut self, inode: &Inode, extent: &Extent, limit: u64, map: &mut Map) -> u64 {
        let (logical, length) = (u64::from(extent.logical), u64::from(extent.length));
        let physical = extent.physical;
        let end = extent.end();
        let sound = length > 0
            && end <= limit
            && self.volume.is_data_block(physical)
            && physical + length <= self.volume.blocks;
        if !sound {
            self.broken(
                inode,
                map,
                format_args!(
                    "has an invalid extent (logical block {logical}, physical block {physical}, \
                     len {length})"
                ),
            );
            return end.max(logical + 1);
        }
        let ratio = self.volume.cluster_ratio;
        let unaligned = physical % ratio != logical % ratio;
        // A cluster of the file must lie in one cluster of the filesystem.
        let torn = map.runs.last().is_some_and(|last| {
            let (logical_end, physical_end) =
                (last.logical + last.length, last.physical + last.length);
            !logical.is_multiple_of(ratio)
                && logical / ratio == (logical_end - 1) / ratio
                && physical / ratio != (physical_end - 1) / ratio
        });
        if unaligned || torn {
            self.found.inode(
                inode.number,
                format_args!(
                    "logical block {logical} (physical block {physical}) violates cluster \
                     allocation rules"
                ),
            );
        }
        map.push(Run {
            logical,
            physical,
            length,
            written: !extent.unwritten,
        });
        end
    }

    fn indirect(&mut self, inode: &Inode, map: &mut Map) {
        let pointers = inode.block();
        let per_block = self.volume.block_size as u64 / 4;
        let mut bad = 0;
        for index in 0..DIRECT {
            self.pointer(inode, index as u64, word(pointers, index), map, &mut bad);
        }
        let mut logical = DIRECT as u64;
        let mut reach = 1_u64;
        for level in 1..=3_u32 {
            reach = reach.saturating_mul(per_block);
            let index = DIRECT + level as usize - 1;
            let block = word(pointers, index);
            self.pointers(inode, level, logical, block, map, &mut bad);
            logical = logical.saturating_add(reach);
        }
    }

    /// Walks a block of pointers, `level` levels above data.
    fn pointers(
        &mut self,
        inode: &Inode,
        level: u32,
        logical: u64,
        block: u32,
        map: &mut Map,
        bad: &mut u32,
    ) {
        if block == 0 {
            return;
        }
        let Some(node) = self.tree_block(inode, u64::from(block), map) else {
            return;
        };
        let per_block = node.len() as u64 / 4;
        let step = per_block.pow(level - 1);
        for index in 0..per_block {
            let pointer = word(&node, in_memory(index));
            let logical = logical + index * step;
            if level == 1 {
                self.pointer(inode, logical, pointer, map, bad);
            } else {
                self.pointers(inode, level - 1, logical, pointer, map, bad);
            }
            if *bad > TOLD_MAX {
                return;
            }
        }
    }

    fn pointer(&mut self, inode: &Inode, logical: u64, block: u32, map: &mut Map, bad: &mut u32) {
        if block == 0 {
            return;
        }
        let physical = u64::from(block);
        if !self.volume.is_data_block(physical) {
            *bad += 1;
            if *bad <= TOLD_MAX {
                self.broken(
                    inode,
                    map,
                    format_args!("has illegal block {physical} at {logical}"),
                );
            }
            if *bad == TOLD_MAX {
                self.found
                    .inode(inode.number, "has too many illegal blocks");
            }
            return;
        }
        map.push(Run {
            logical,
            physical,
            length: 1,
            written: true,
        });
    }

    /// Reads a block of a tree, only once.
    fn tree_block(&mut self, inode: &Inode, block: u64, map: &mut Map) -> Option<Vec<u8>> {
        if !self.volume.is_data_block(block) {
            self.broken(inode, map, format_args!("has illegal tree block {block}"));
            return None;
        }
        if contains(self.fixed, block) {
            self.broken(
                inode,
                map,
                format_args!("tree block {block} conflicts with critical metadata"),
            );
            return None;
        }
        if !self.visited.insert(block) {
            self.broken(
                inode,
                map,
                format_args!("tree block {block} is multiply claimed"),
            );
            return None;
        }
        map.nodes.push(block);
        let mut node = Vec::new();
        match self.volume.read_block(block, &mut node) {
            Ok(()) => Some(node),
            Err(problem) => {
                self.broken(inode, map, problem);
                None
            }
        }
    }

    fn broken(&mut self, inode: &Inode, map: &mut Map, problem: impl fmt::Display) {
        map.broken = true;
        self.found.inode(inode.number, problem);
    }
}

/// Checks an extent node's header for a node of `size` bytes.
fn header(node: &[u8], size: usize) -> Result<(), String> {
    let header = Header::decode(node);
    let room = size / ENTRY_SIZE - 1;
    if header.magic != extent::MAGIC {
        return Err(format!("magic {:#x}", header.magic));
    }
    let max = usize::from(header.max);
    // Without checksums, a node may or may not reserve the room of one entry.
    if max == 0 || max > room || max + 2 < room {
        return Err(format!("room for {max} entries, not {room}"));
    }
    if header.entries > header.max {
        return Err(format!("{} entries of {max}", header.entries));
    }
    if header.entries == 0 && header.depth > 0 {
        return Err("no entries".into());
    }
    Ok(())
}
