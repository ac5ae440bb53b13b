//! Limits the cost of reading, so that a small filesystem can't pretend to hold much.
//!
//! The format does not keep a block map from naming one block a million times, two directories from
//! sharing blocks, or a log from lying in one block. A sound file has each of its blocks once, so
//! it has at most as many as the filesystem; a directory's blocks belong to it alone.

use alloc::collections::BTreeMap;

use super::map::Mapping;
use super::{Ext4, Geometry, Ino};
use crate::error::{Place, Result};

/// The remaining blocks that a file may have, and the remaining steps to find them.
#[derive(Debug)]
pub(crate) struct Budget {
    ino: Ino,
    blocks: u64,
    steps: u64,
}

impl Budget {
    /// Creates the budget of a walk over all blocks of a file.
    pub(crate) fn new(geometry: &Geometry, ino: Ino) -> Self {
        let blocks = geometry.blocks_count;
        Self {
            ino,
            blocks,
            // A hole before each block, and one after each block of a map.
            steps: blocks.saturating_mul(4).saturating_add(16),
        }
    }

    /// Accounts for one step.
    pub(crate) fn take(&mut self, mapping: &Mapping) -> Result<()> {
        let blocks = match mapping.physical {
            Some(_) => mapping.length.into(),
            None => 0,
        };
        let left = self.blocks.checked_sub(blocks);
        let steps = self.steps.checked_sub(1);
        let (Some(left), Some(steps)) = (left, steps) else {
            let problem = "it has more blocks than the filesystem";
            return Err(Place::Inode(self.ino).corrupt(problem));
        };
        (self.blocks, self.steps) = (left, steps);
        Ok(())
    }
}

/// The directory, and the logical block in it, of each directory block that was read.
#[derive(Debug, Default)]
pub(crate) struct DirectoryBlocks(BTreeMap<u64, (Ino, u32)>);

impl DirectoryBlocks {
    /// Records that a directory has a block. Memory grows with the number of blocks read.
    pub(crate) fn claim(&mut self, block: u64, directory: Ino, logical: u32) -> Result<()> {
        let owner = self.0.entry(block).or_insert((directory, logical));
        if *owner != (directory, logical) {
            let problem = if owner.0 == directory {
                "the directory has a block twice"
            } else {
                "the directory has a block of another one"
            };
            return Err(Place::Inode(directory).corrupt(problem));
        }
        Ok(())
    }

    /// Records that the `count` blocks from `first` on belong to no directory any more.
    pub(crate) fn forget(&mut self, first: u64, count: u64) {
        let end = first.saturating_add(count);
        while let Some((&block, _)) = self.0.range(first..end).next() {
            self.0.remove(&block);
        }
    }
}

impl<D> Ext4<D> {
    /// Returns a budget for a file's blocks.
    pub(crate) fn budget(&self, ino: Ino) -> Budget {
        Budget::new(&self.geometry, ino)
    }
}
