//! Writes contents of files to the device: allocates long extents, then writes in ascending order
//! and in large pieces.

use alloc::vec::Vec;

use super::{Ext4, Ino};
use crate::cache::ChunkKey;
use crate::device::BlockDevice;
use crate::error::{Errno, Place, Result};
use crate::format::extent::{Extent, MAX_LENGTH};
use micabox_file::narrow::saturate32;

/// Bytes of a chunk that are consecutive on the device.
struct Piece {
    physical: u64,
    slot: u32,
    from: usize,
    to: usize,
}

impl<D: BlockDevice> Ext4<D> {
    /// Writes all changed contents; commits whenever the transaction becomes full.
    pub(crate) fn write_back_pages(&mut self) -> Result<()> {
        loop {
            let result = self.write_back_some();
            if self.stop_on(result)? {
                return Ok(());
            }
            self.commit()?;
        }
    }

    /// Writes changed contents until the transaction is full; returns whether everything was
    /// written.
    pub(crate) fn write_back_some(&mut self) -> Result<bool> {
        let keys: Vec<ChunkKey> = self.pages.dirty().collect();
        let mut placed = 0;
        for file in keys.chunk_by(|a, b| a.0 == b.0) {
            if placed > 0 && self.transaction_is_full() {
                break;
            }
            self.place(file)?;
            placed += file.len();
        }
        self.write_chunks(keys.get(..placed).unwrap_or_default())?;
        Ok(placed == keys.len())
    }

    /// Writes the changed contents of one file.
    pub(crate) fn write_back_file(&mut self, ino: Ino) -> Result<()> {
        let keys = self.pages.dirty_of(ino);
        self.place(&keys)?;
        self.write_chunks(&keys)
    }

    fn blocks_per_chunk(&self) -> u64 {
        (self.pages.chunk_size() >> self.geometry.block_bits) as u64
    }

    /// Returns the runs of a file's blocks, as first block and count, in the masks that `which`
    /// returns for its chunks.
    fn runs(
        &self,
        keys: &[ChunkKey],
        which: impl Fn(&crate::cache::Chunk) -> u64,
    ) -> Vec<(u32, u32)> {
        let per_chunk = self.blocks_per_chunk();
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for &key in keys {
            let Some(chunk) = self.pages.peek(key) else {
                continue;
            };
            let mut rest = which(chunk);
            while rest != 0 {
                let first = rest.trailing_zeros();
                let count = (rest >> first).trailing_ones();
                rest &= !super::read::mask(first as usize, (first + count - 1) as usize);
                let logical = saturate32(u64::from(key.1) * per_chunk) + first;
                match runs.last_mut() {
                    Some(last) if last.0 + last.1 == logical => last.1 += count,
                    _ => runs.push((logical, count)),
                }
            }
        }
        runs
    }

    /// Allocates places for a file's changed blocks.
    fn place(&mut self, keys: &[ChunkKey]) -> Result<()> {
        let Some(&(ino, _)) = keys.first() else {
            return Ok(());
        };
        for (logical, count) in self.runs(keys, |chunk| chunk.dirty & !chunk.reserved) {
            self.mark_mapped_written(ino, logical, count)?;
        }
        for (logical, count) in self.runs(keys, |chunk| chunk.reserved) {
            self.place_hole(ino, logical, count)?;
        }
        for &key in keys {
            if let Some(slot) = self.pages.find(key)
                && let Some(chunk) = self.pages.at(slot)
            {
                chunk.reserved = 0;
            }
        }
        Ok(())
    }

    /// Allocates a run of blocks for which space was reserved. Blocks that already have a place got
    /// it from a call that failed later.
    fn place_hole(&mut self, ino: Ino, logical: u32, count: u32) -> Result<()> {
        let mut done = 0;
        while done < count {
            let mapping = self.map(ino, logical + done)?;
            let length = mapping.length.min(count - done).max(1);
            if mapping.physical.is_none() {
                self.allocate_range(ino, logical + done, length, false)?;
                self.reserved = self.reserved.saturating_sub(length.into());
            }
            done += length;
        }
        Ok(())
    }

    /// Marks the written blocks of unwritten extents as written.
    fn mark_mapped_written(&mut self, ino: Ino, logical: u32, count: u32) -> Result<()> {
        let mut done = 0;
        while done < count {
            let mapping = self.map(ino, logical + done)?;
            let length = mapping.length.min(count - done).max(1);
            if mapping.unwritten {
                self.mark_written(ino, logical + done, length)?;
            }
            done += length;
        }
        Ok(())
    }

    /// Allocates the blocks of a hole.
    pub(crate) fn allocate_range(
        &mut self,
        ino: Ino,
        logical: u32,
        count: u32,
        unwritten: bool,
    ) -> Result<()> {
        let mut goal = match logical.checked_sub(1) {
            Some(before) => match self.map(ino, before)?.physical {
                Some(physical) => physical + 1,
                None => self.goal_of(ino),
            },
            None => self.goal_of(ino),
        };
        let mut done = 0;
        while done < count {
            let longest = MAX_LENGTH - u32::from(unwritten);
            let want = (count - done).min(longest);
            let (physical, length) = self.allocate_blocks(goal, want)?;
            self.insert_extent(
                ino,
                Extent {
                    logical: logical + done,
                    length,
                    physical,
                    unwritten,
                },
            )?;
            self.add_blocks(ino, length.into())?;
            done += length;
            goal = physical + u64::from(length);
        }
        Ok(())
    }

    /// Writes changed blocks of chunks. All of the blocks must have places.
    fn write_chunks(&mut self, keys: &[ChunkKey]) -> Result<()> {
        let per_chunk = self.blocks_per_chunk();
        let bits = self.geometry.block_bits;
        let mut pieces: Vec<Piece> = Vec::with_capacity(keys.len());
        for &key in keys {
            let Some(slot) = self.pages.find(key) else {
                continue;
            };
            let mut rest = self.pages.at(slot).map_or(0, |chunk| chunk.dirty);
            while rest != 0 {
                let first = rest.trailing_zeros();
                let run = (rest >> first).trailing_ones();
                let logical = u32::try_from(u64::from(key.1) * per_chunk + u64::from(first))
                    .map_err(|_| Errno::FileTooLarge)?;
                let mapping = self.map(key.0, logical)?;
                let physical = mapping
                    .data()
                    .ok_or(Place::Inode(key.0).corrupt("changed contents have no place"))?;
                let count = run.min(mapping.length).max(1);
                rest &= !super::read::mask(first as usize, (first + count - 1) as usize);
                pieces.push(Piece {
                    physical,
                    slot,
                    from: (first as usize) << bits,
                    to: ((first + count) as usize) << bits,
                });
            }
        }
        pieces.sort_unstable_by_key(|piece| piece.physical);
        let mut slices: Vec<&[u8]> = Vec::new();
        let (mut first, mut next) = (0, 0);
        for piece in &pieces {
            if piece.physical != next && !slices.is_empty() {
                self.io.write_blocks(first, &slices)?;
                slices.clear();
            }
            if slices.is_empty() {
                first = piece.physical;
            }
            let bytes = self
                .pages
                .bytes(piece.slot)
                .get(piece.from..piece.to)
                .unwrap_or_default();
            next = piece.physical + (bytes.len() >> bits) as u64;
            slices.push(bytes);
        }
        self.io.write_blocks(first, &slices)?;
        for &key in keys {
            self.pages.clean(key);
        }
        Ok(())
    }
}
