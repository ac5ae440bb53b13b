//! Caches contents of files: chunks of blocks, some of them not yet on the device.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::list::List;
use super::memory::Memory;

/// An inode's number and the number of a chunk within it.
pub(crate) type ChunkKey = (u32, u32);

/// Storage of a chunk's bytes.
#[derive(Debug)]
enum Bytes {
    /// As many whole blocks as needed so far.
    Few(Vec<u8>),
    /// A buffer for a whole chunk.
    All(u32),
}

impl Default for Bytes {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

/// Consecutive blocks of one file. Bit `n` of each mask is the `n`th block.
#[derive(Debug, Default)]
pub(crate) struct Chunk {
    bytes: Bytes,
    /// The blocks whose bytes are here.
    pub(crate) valid: u64,
    /// The blocks whose bytes are nowhere else.
    pub(crate) dirty: u64,
    /// The blocks without a place on the device; space is reserved for them.
    pub(crate) reserved: u64,
}

/// The cache of files' contents.
#[derive(Debug)]
pub(crate) struct Pages {
    list: List<(ChunkKey, Chunk)>,
    index: BTreeMap<ChunkKey, u32>,
    dirty: BTreeSet<ChunkKey>,
    last: Option<(ChunkKey, u32)>,
    memory: Memory,
    /// Size of a full chunk in bytes.
    chunk_size: usize,
    block_size: usize,
    /// Size of all chunks in bytes.
    bytes: usize,
    /// Upper bound of `bytes`.
    bound: usize,
}

impl Pages {
    pub(crate) fn new(block_size: usize, bound: usize) -> Self {
        Self {
            list: List::default(),
            index: BTreeMap::new(),
            dirty: BTreeSet::new(),
            last: None,
            memory: Memory::new(block_size.max(64 << 10), bound),
            chunk_size: block_size.max(64 << 10),
            block_size,
            bytes: 0,
            bound,
        }
    }

    /// Returns the size of a full chunk in bytes.
    pub(crate) fn chunk_size(&self) -> usize {
        self.chunk_size
    }

    /// Returns the slot of a chunk, and makes it the most recently used.
    #[inline]
    pub(crate) fn find(&mut self, key: ChunkKey) -> Option<u32> {
        if let Some((last, slot)) = self.last
            && last == key
        {
            return Some(slot);
        }
        let slot = *self.index.get(&key)?;
        self.list.touch(slot);
        self.last = Some((key, slot));
        Some(slot)
    }

    /// Returns the slot of a chunk, which is added if it is not cached.
    pub(crate) fn find_or_add(&mut self, key: ChunkKey) -> u32 {
        if let Some(slot) = self.find(key) {
            return slot;
        }
        let slot = self.list.insert((key, Chunk::default()));
        self.index.insert(key, slot);
        self.last = Some((key, slot));
        slot
    }

    /// Returns the chunk in a slot.
    #[inline]
    pub(crate) fn at(&mut self, slot: u32) -> Option<&mut Chunk> {
        self.list.get_mut(slot).map(|(_, chunk)| chunk)
    }

    /// Returns the bytes of the chunk in a slot, up to its current length.
    #[inline]
    pub(crate) fn bytes(&self, slot: u32) -> &[u8] {
        match self.list.get(slot).map(|(_, chunk)| &chunk.bytes) {
            Some(Bytes::Few(bytes)) => bytes,
            Some(Bytes::All(buffer)) => self.memory.get(*buffer),
            None => &[],
        }
    }

    /// Returns the bytes of the chunk in a slot for changes, up to its current length.
    #[inline]
    pub(crate) fn bytes_mut(&mut self, slot: u32) -> &mut [u8] {
        match self.list.get_mut(slot).map(|(_, chunk)| &mut chunk.bytes) {
            Some(Bytes::Few(bytes)) => bytes,
            Some(Bytes::All(buffer)) => self.memory.get_mut(*buffer),
            None => &mut [],
        }
    }

    /// Returns the chunk of a key.
    pub(crate) fn peek(&self, key: ChunkKey) -> Option<&Chunk> {
        self.list
            .get(*self.index.get(&key)?)
            .map(|(_, chunk)| chunk)
    }

    /// Extends a chunk's buffer to at least `length` bytes. New bytes are arbitrary: a block
    /// becomes valid when it is filled.
    pub(crate) fn reach(&mut self, slot: u32, length: usize) {
        let Some((_, chunk)) = self.list.get_mut(slot) else {
            return;
        };
        let Bytes::Few(bytes) = &mut chunk.bytes else {
            return;
        };
        let before = bytes.len();
        if before >= length {
            return;
        }
        if length > self.chunk_size / 2
            && let Some(buffer) = self.memory.take()
        {
            if let Some(place) = self.memory.get_mut(buffer).get_mut(..before) {
                place.copy_from_slice(bytes);
            }
            chunk.bytes = Bytes::All(buffer);
            self.bytes += self.chunk_size - before;
        } else {
            let to = length
                .max(before * 2)
                .next_multiple_of(self.block_size)
                .min(self.chunk_size);
            bytes.resize(to, 0);
            self.bytes += to - before;
        }
    }

    /// Marks blocks of a chunk as changed.
    pub(crate) fn mark_dirty(&mut self, key: ChunkKey, slot: u32, blocks: u64, reserved: u64) {
        if let Some((_, chunk)) = self.list.get_mut(slot) {
            if chunk.dirty == 0 {
                self.dirty.insert(key);
            }
            chunk.valid |= blocks;
            chunk.dirty |= blocks;
            chunk.reserved |= reserved;
        }
    }

    /// Iterates over the keys of chunks with changed blocks, ascending.
    pub(crate) fn dirty(&self) -> impl Iterator<Item = ChunkKey> {
        self.dirty.iter().copied()
    }

    /// Returns the keys of a file's chunks with changed blocks, ascending.
    pub(crate) fn dirty_of(&self, inode: u32) -> Vec<ChunkKey> {
        self.dirty
            .range((inode, 0)..=(inode, u32::MAX))
            .copied()
            .collect()
    }

    /// Returns an upper bound of the bytes in chunks with changed blocks.
    pub(crate) fn dirty_bytes(&self) -> usize {
        // Small files have small chunks; the size of all chunks limits the result for those.
        (self.dirty.len() * self.chunk_size).min(self.bytes)
    }

    /// Marks a chunk's blocks as written to the device.
    pub(crate) fn clean(&mut self, key: ChunkKey) {
        self.dirty.remove(&key);
        if let Some(&slot) = self.index.get(&key)
            && let Some((_, chunk)) = self.list.get_mut(slot)
        {
            chunk.dirty = 0;
            chunk.reserved = 0;
        }
    }

    /// Drops unchanged chunks, least recently used first, until the bound holds.
    pub(crate) fn shrink(&mut self) {
        let mut next = self.list.oldest();
        let mut patience = 256 + self.dirty.len();
        while let Some(slot) = next
            && self.bytes > self.bound
            && patience > 0
        {
            next = self.list.newer(slot);
            patience -= 1;
            if let Some(&(key, ref chunk)) = self.list.get(slot)
                && chunk.dirty == 0
            {
                self.remove(key);
            }
        }
    }

    /// Whether the cache holds more than the bound allows.
    pub(crate) fn is_over_bound(&self) -> bool {
        self.bytes > self.bound
    }

    /// Returns the number of bytes that the cache may hold.
    pub(crate) fn bound(&self) -> usize {
        self.bound
    }

    /// Drops a chunk; returns the number of its blocks with reserved space.
    pub(crate) fn remove(&mut self, key: ChunkKey) -> u32 {
        let Some(slot) = self.index.remove(&key) else {
            return 0;
        };
        self.dirty.remove(&key);
        self.last = None;
        let Some((_, chunk)) = self.list.remove(slot) else {
            return 0;
        };
        match chunk.bytes {
            Bytes::Few(bytes) => self.bytes -= bytes.len(),
            Bytes::All(buffer) => {
                self.memory.give(buffer);
                self.bytes -= self.chunk_size;
            }
        }
        chunk.reserved.count_ones()
    }

    /// Returns the keys of a file's chunks from number `from` on.
    pub(crate) fn keys_from(&self, inode: u32, from: u32) -> Vec<ChunkKey> {
        self.index
            .range((inode, from)..=(inode, u32::MAX))
            .map(|(&key, _)| key)
            .collect()
    }

    /// Drops the blocks in the mask `blocks` of a chunk; returns how many of them had reserved
    /// space.
    pub(crate) fn forget_blocks(&mut self, key: ChunkKey, blocks: u64) -> u32 {
        let Some(&slot) = self.index.get(&key) else {
            return 0;
        };
        let Some((_, chunk)) = self.list.get_mut(slot) else {
            return 0;
        };
        let reserved = (chunk.reserved & blocks).count_ones();
        let was_dirty = chunk.dirty != 0;
        chunk.valid &= !blocks;
        chunk.dirty &= !blocks;
        chunk.reserved &= !blocks;
        if was_dirty && chunk.dirty == 0 {
            self.dirty.remove(&key);
        }
        reserved
    }
}
