//! Caches metadata blocks: read once, checked once, changed in memory, written by commits.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use super::lru::Lru;
use crate::device::BlockDevice;
use crate::engine::Io;
use crate::error::{Place, Result};
use crate::format::{directory, extent, fields, xattr};

/// What a block is, as far as its checksum is concerned. Seeds are those of the inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// No checksum of its own: bitmaps, inode tables, descriptors, block maps.
    Plain,
    /// A block of a directory; `root` for the first one of an indexed directory.
    Directory { seed: u32, root: bool },
    /// An extent tree's node.
    Extents { seed: u32 },
    /// Extended attributes.
    Xattr,
}

/// Whether a directory block is an inner node of the index: one empty entry covers it.
pub(crate) fn is_index_node(block: &[u8]) -> bool {
    fields::get::<u32>(block, 0) == 0
        && directory::decode_length(fields::get(block, 4), block.len()) == block.len()
}

#[derive(Debug)]
struct Buffer {
    data: Box<[u8]>,
    kind: Kind,
    /// The running transaction changed the block.
    dirty: bool,
    /// The block is committed to the log and not yet in place.
    logged: bool,
}

/// The cache of metadata blocks. Blocks that are changed or only in the log stay even above the
/// bound; code that changes blocks commits in time.
#[derive(Debug)]
pub(crate) struct Blocks {
    buffers: Lru<u64, Buffer>,
    block_size: usize,
    bound: usize,
    dirty: Vec<u64>,
    logged: usize,
    /// Seed of checksums, if the filesystem has them.
    seed: Option<u32>,
}

impl Blocks {
    pub(crate) fn new(block_size: usize, bound: usize, seed: Option<u32>) -> Self {
        Self {
            buffers: Lru::default(),
            block_size,
            bound,
            dirty: Vec::new(),
            logged: 0,
            seed,
        }
    }

    /// Returns the number of blocks that the running transaction changed.
    pub(crate) fn dirty_count(&self) -> usize {
        self.dirty.len()
    }

    /// Returns the number of blocks that are only in the log.
    pub(crate) fn logged_count(&self) -> usize {
        self.logged
    }

    fn slot<D: BlockDevice>(&mut self, io: &Io<D>, number: u64, kind: Kind) -> Result<u32> {
        if let Some(slot) = self.buffers.touch(&number) {
            return Ok(slot);
        }
        let mut data = vec![0; self.block_size].into_boxed_slice();
        io.read_blocks(number, &mut data)?;
        check(&data, number, kind, self.seed)?;
        Ok(self.add(
            number,
            Buffer {
                data,
                kind,
                dirty: false,
                logged: false,
            },
        ))
    }

    fn add(&mut self, number: u64, buffer: Buffer) -> u32 {
        if self.buffers.len() >= self.bound + self.bound / 16 + self.dirty.len() + self.logged {
            let pinned = self.dirty.len() + self.logged;
            self.buffers.shrink(self.bound + pinned, |buffer| {
                !buffer.dirty && !buffer.logged
            });
        }
        self.buffers.insert(number, buffer)
    }

    /// Returns a block's bytes.
    pub(crate) fn read<D: BlockDevice>(
        &mut self,
        io: &Io<D>,
        number: u64,
        kind: Kind,
    ) -> Result<&[u8]> {
        let slot = self.slot(io, number, kind)?;
        let buffer = self
            .buffers
            .at(slot)
            .ok_or(Place::Block(number).corrupt("lost from the cache"))?;
        Ok(&buffer.data)
    }

    /// Returns a block's bytes for changes by the running transaction.
    pub(crate) fn write<D: BlockDevice>(
        &mut self,
        io: &Io<D>,
        number: u64,
        kind: Kind,
    ) -> Result<&mut [u8]> {
        let slot = self.slot(io, number, kind)?;
        self.changed(slot, number, kind)
    }

    /// Returns a block of zeros, to be filled by the running transaction. The old contents are not
    /// read.
    pub(crate) fn fresh(&mut self, number: u64, kind: Kind) -> Result<&mut [u8]> {
        let slot = match self.buffers.touch(&number) {
            Some(slot) => {
                if let Some(buffer) = self.buffers.at(slot) {
                    buffer.data.fill(0);
                }
                slot
            }
            None => {
                let data = vec![0; self.block_size].into_boxed_slice();
                self.add(
                    number,
                    Buffer {
                        data,
                        kind,
                        dirty: false,
                        logged: false,
                    },
                )
            }
        };
        self.changed(slot, number, kind)
    }

    fn changed(&mut self, slot: u32, number: u64, kind: Kind) -> Result<&mut [u8]> {
        let buffer = self
            .buffers
            .at(slot)
            .ok_or(Place::Block(number).corrupt("lost from the cache"))?;
        if !buffer.dirty {
            buffer.dirty = true;
            self.dirty.push(number);
        }
        buffer.kind = kind;
        Ok(&mut buffer.data)
    }

    /// Drops a freed block. Returns whether the log has a copy that must not be replayed.
    pub(crate) fn forget(&mut self, number: u64) -> bool {
        let Some(buffer) = self.buffers.remove(&number) else {
            return false;
        };
        if buffer.dirty {
            self.dirty.retain(|&dirty| dirty != number);
        }
        self.logged -= usize::from(buffer.logged);
        buffer.logged
    }

    /// Writes checksums into all changed blocks; returns their numbers, ascending.
    pub(crate) fn seal(&mut self) -> &[u64] {
        self.dirty.sort_unstable();
        if let Some(filesystem_seed) = self.seed {
            for number in &self.dirty {
                if let Some(buffer) = self.buffers.get(number) {
                    seal(&mut buffer.data, *number, buffer.kind, filesystem_seed);
                }
            }
        }
        &self.dirty
    }

    /// Returns the bytes of a cached block.
    pub(crate) fn cached(&self, number: u64) -> Option<&[u8]> {
        self.buffers.peek(&number).map(|buffer| &*buffer.data)
    }

    /// Marks the running transaction as in the log (`logged`), or in place.
    pub(crate) fn committed(&mut self, logged: bool) {
        for number in core::mem::take(&mut self.dirty) {
            if let Some(buffer) = self.buffers.get(&number) {
                buffer.dirty = false;
                self.logged += usize::from(logged && !buffer.logged);
                buffer.logged |= logged;
            }
        }
    }

    /// Returns the numbers of the blocks that are only in the log, ascending.
    pub(crate) fn logged(&self) -> Vec<u64> {
        let mut numbers: Vec<u64> = self
            .buffers
            .iter()
            .filter(|(_, buffer)| buffer.logged)
            .map(|(&number, _)| number)
            .collect();
        numbers.sort_unstable();
        numbers
    }

    /// Marks these blocks as in place.
    pub(crate) fn checkpointed(&mut self, numbers: &[u64]) {
        for number in numbers {
            if let Some(buffer) = self.buffers.get(number) {
                buffer.logged = false;
            }
        }
        self.logged = 0;
        self.buffers.shrink(self.bound, |buffer| !buffer.dirty);
    }

    /// Drops all blocks, changed or not.
    pub(crate) fn clear(&mut self) {
        self.buffers.clear();
        self.dirty.clear();
        self.logged = 0;
    }
}

/// Checks a block's checksum, and its start where the kind of the block determines it.
fn check(data: &[u8], number: u64, kind: Kind, seed: Option<u32>) -> Result<()> {
    let place = Place::Block(number);
    match kind {
        Kind::Plain => {}
        Kind::Directory {
            seed: inode_seed,
            root,
        } if seed.is_some() => {
            let right = if root || is_index_node(data) {
                let entries = index_entries_offset(root);
                let stored =
                    fields::get::<u32>(data, directory::index_checksum_offset(data, entries));
                directory::index_checksum_of(inode_seed, data, entries) == Some(stored)
            } else {
                directory::has_tail(data)
                    && directory::checksum_of(inode_seed, data)
                        == fields::get::<u32>(data, data.len().saturating_sub(4))
            };
            if !right {
                return Err(place.corrupt("a directory block's checksum is wrong"));
            }
        }
        Kind::Directory { .. } => {}
        Kind::Extents { seed: inode_seed } => {
            let header = extent::Header::decode(data);
            if header.magic != extent::MAGIC
                || header.entries > header.max
                || header.max > extent::node_capacity(data.len())
            {
                return Err(place.corrupt("not a node of an extent tree"));
            }
            if seed.is_some()
                && extent::checksum_of(inode_seed, data)
                    != fields::get::<u32>(data, extent::checksum_offset(data))
            {
                return Err(place.corrupt("an extent tree node's checksum is wrong"));
            }
        }
        Kind::Xattr => {
            let header = xattr::Header::decode(data);
            if header.magic != xattr::MAGIC || header.blocks != 1 {
                return Err(place.corrupt("not a block of extended attributes"));
            }
            if seed.is_some_and(|seed| xattr::checksum_of(seed, number, data) != header.checksum) {
                return Err(place.corrupt("the checksum of extended attributes is wrong"));
            }
        }
    }
    Ok(())
}

fn index_entries_offset(root: bool) -> usize {
    if root {
        directory::ROOT_ENTRIES_OFFSET
    } else {
        directory::NODE_ENTRIES_OFFSET
    }
}

fn seal(data: &mut [u8], number: u64, kind: Kind, filesystem_seed: u32) {
    match kind {
        Kind::Plain => {}
        Kind::Directory { seed, root } => {
            if root || is_index_node(data) {
                directory::seal_index(seed, data, index_entries_offset(root));
            } else {
                directory::seal(seed, data);
            }
        }
        Kind::Extents { seed } => extent::seal(seed, data),
        Kind::Xattr => xattr::seal(filesystem_seed, number, data),
    }
}
