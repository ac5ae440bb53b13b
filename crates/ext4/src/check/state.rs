//! Facts that one pass collects for a later one.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;

use hashbrown::{HashMap, HashSet};

use super::claims::Claims;
use super::finding::Findings;
use super::inode::Kind;
use super::map::Run;
use super::quota::Usage;
use super::volume::Volume;

/// An inode in use.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    /// `None` if its mode has no known type.
    pub(super) kind: Option<Kind>,
    /// Link count of the inode.
    pub(super) links: u16,
    /// Number of names found so far.
    pub(super) counted: u32,
    /// `i_flags`.
    pub(super) flags: u32,
    /// References according to an inode that holds an attribute's value.
    pub(super) references: u64,
}

/// A directory's blocks, or its bytes if it is inline.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) number: u32,
    pub(super) flags: u32,
    /// Seed of its blocks' checksums.
    pub(super) seed: u32,
    pub(super) size: u64,
    pub(super) runs: Vec<Run>,
    /// Inline data: the part in `i_block`, and the part in the attribute.
    pub(super) inline: Option<[Vec<u8>; 2]>,
}

/// An attribute block that inodes refer to.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Shared {
    /// Reference count in the block; `None` if the block is corrupt.
    pub(super) claimed: Option<u32>,
    pub(super) counted: u32,
}

/// Everything collected so far.
pub(super) struct State<'v, 'd> {
    pub(super) volume: &'v Volume<'d>,
    pub(super) found: &'v mut Findings,
    pub(super) claims: Claims,
    /// Blocks of the filesystem itself: ascending, disjoint.
    pub(super) fixed: Vec<Range<u64>>,
    /// Blocks of trees and directories walked so far: each has one owner.
    pub(super) visited: HashSet<u64>,
    pub(super) seen: BTreeMap<u32, Seen>,
    pub(super) directories: Vec<Directory>,
    pub(super) attribute_blocks: BTreeMap<u64, Shared>,
    /// Inodes that hold attributes' values, with the number of attributes that refer to each.
    pub(super) value_inodes: BTreeMap<u32, u64>,
    /// The directory that holds a directory's name, by inode.
    pub(super) parents: HashMap<u32, u32>,
    /// The target of a directory's `..`, by inode.
    pub(super) dotdots: HashMap<u32, u32>,
    /// The journal's blocks, if the journal is in this filesystem.
    pub(super) journal: Option<(Vec<Run>, u64)>,
    pub(super) usage: Usage,
    /// Blocks of quota files by inode.
    pub(super) quota_files: BTreeMap<u32, (Vec<Run>, u64)>,
    /// Blocks of the orphan file.
    pub(super) orphan_file: Option<(Vec<Run>, u32)>,
}

impl<'v, 'd> State<'v, 'd> {
    pub(super) fn new(volume: &'v Volume<'d>, found: &'v mut Findings) -> Self {
        Self {
            volume,
            found,
            claims: Claims::default(),
            fixed: Vec::new(),
            visited: HashSet::new(),
            seen: BTreeMap::new(),
            directories: Vec::new(),
            attribute_blocks: BTreeMap::new(),
            value_inodes: BTreeMap::new(),
            parents: HashMap::new(),
            dotdots: HashMap::new(),
            journal: None,
            usage: Usage::default(),
            quota_files: BTreeMap::new(),
            orphan_file: None,
        }
    }

    /// Whether a block belongs to the filesystem itself.
    pub(super) fn is_fixed(&self, block: u64) -> bool {
        contains(&self.fixed, block)
    }

    /// Returns the clusters of a range of blocks.
    pub(super) fn clusters(&self, blocks: Range<u64>) -> Range<u64> {
        let ratio = self.volume.cluster_ratio;
        blocks.start / ratio..blocks.end.div_ceil(ratio)
    }
}

/// Whether one of `runs`, ascending and disjoint, contains a block.
pub(super) fn contains(runs: &[Range<u64>], block: u64) -> bool {
    let next = runs.partition_point(|run| run.end <= block);
    runs.get(next).is_some_and(|run| run.start <= block)
}
