//! Contents of files: chunks of blocks, some of them not yet anywhere else.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::list::List;
use super::memory::Memory;

/// An inode's number and the number of a chunk within it.
pub(crate) type ChunkKey = (u32, u32);

/// Where a chunk's bytes are.
#[derive(Debug)]
enum Bytes {
    /// As many whole blocks as were needed.
    Few(Vec<u8>),
    /// A buffer for a whole chunk.
    All(u32),
}

impl Default for Bytes {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

/// A row of blocks of one file. Bit `n` of each mask is its `n`th block.
#[derive(Debug, Default)]
pub(crate) struct Chunk {
    bytes: Bytes,
    /// The block's bytes are here.
    pub(crate) valid: u64,
    /// They are nowhere else.
    pub(crate) dirty: u64,
    /// The block has no place on the device yet; space is reserved for it.
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
    /// Bytes in a full chunk.
    chunk_size: usize,
    block_size: usize,
    /// Bytes in all chunks.
    bytes: usize,
    /// Bytes that `bytes` may reach.
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

    /// Bytes in a full chunk.
    pub(crate) fn chunk_size(&self) -> usize {
        self.chunk_size
    }

    /// The slot of a chunk, now the one used last.
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

    /// The slot of a chunk, made if there was none.
    pub(crate) fn find_or_add(&mut self, key: ChunkKey) -> u32 {
        if let Some(slot) = self.find(key) {
            return slot;
        }
        let slot = self.list.insert((key, Chunk::default()));
        self.index.insert(key, slot);
        self.last = Some((key, slot));
        slot
    }

    /// The chunk in a slot.
    #[inline]
    pub(crate) fn at(&mut self, slot: u32) -> Option<&mut Chunk> {
        self.list.get_mut(slot).map(|(_, chunk)| chunk)
    }

    /// The bytes of the chunk in a slot, as far as it reaches.
    #[inline]
    pub(crate) fn bytes(&self, slot: u32) -> &[u8] {
        match self.list.get(slot).map(|(_, chunk)| &chunk.bytes) {
            Some(Bytes::Few(bytes)) => bytes,
            Some(Bytes::All(buffer)) => self.memory.get(*buffer),
            None => &[],
        }
    }

    /// The bytes of the chunk in a slot, as far as it reaches.
    #[inline]
    pub(crate) fn bytes_mut(&mut self, slot: u32) -> &mut [u8] {
        match self.list.get_mut(slot).map(|(_, chunk)| &mut chunk.bytes) {
            Some(Bytes::Few(bytes)) => bytes,
            Some(Bytes::All(buffer)) => self.memory.get_mut(*buffer),
            None => &mut [],
        }
    }

    /// The chunk of a key.
    pub(crate) fn peek(&self, key: ChunkKey) -> Option<&Chunk> {
        self.list
            .get(*self.index.get(&key)?)
            .map(|(_, chunk)| chunk)
    }

    /// Makes sure that a chunk's buffer has at least `length` bytes. New ones are anything: a
    /// block becomes valid when it is filled.
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

    /// Blocks of a chunk were changed.
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

    /// Keys of chunks with changed blocks, ascending.
    pub(crate) fn dirty(&self) -> impl Iterator<Item = ChunkKey> {
        self.dirty.iter().copied()
    }

    /// Keys of a file's chunks with changed blocks, ascending.
    pub(crate) fn dirty_of(&self, inode: u32) -> Vec<ChunkKey> {
        self.dirty
            .range((inode, 0)..=(inode, u32::MAX))
            .copied()
            .collect()
    }

    /// Bytes that chunks with changed blocks take, at most.
    pub(crate) fn dirty_bytes(&self) -> usize {
        // Small files have small chunks; the bound on all bytes holds for those.
        (self.dirty.len() * self.chunk_size).min(self.bytes)
    }

    /// A chunk's blocks are on the device.
    pub(crate) fn clean(&mut self, key: ChunkKey) {
        self.dirty.remove(&key);
        if let Some(&slot) = self.index.get(&key)
            && let Some((_, chunk)) = self.list.get_mut(slot)
        {
            chunk.dirty = 0;
            chunk.reserved = 0;
        }
    }

    /// Drops unchanged chunks, those not used for longest first, down to the bound.
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

    /// Whether more is kept than the bound allows.
    pub(crate) fn is_over_bound(&self) -> bool {
        self.bytes > self.bound
    }

    /// Bytes that may be kept.
    pub(crate) fn bound(&self) -> usize {
        self.bound
    }

    /// Drops a chunk; gives the blocks of it for which space was reserved.
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

    /// Keys of a file's chunks from number `from` on.
    pub(crate) fn keys_from(&self, inode: u32, from: u32) -> Vec<ChunkKey> {
        self.index
            .range((inode, from)..=(inode, u32::MAX))
            .map(|(&key, _)| key)
            .collect()
    }

    /// Forgets a chunk's blocks `blocks`; gives how many of them had space reserved.
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
