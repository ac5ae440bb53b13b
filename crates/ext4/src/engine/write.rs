//! Writes files: into memory, with space that is reserved now and allocated later.

use super::read::mask;
use super::{Ext4, Ino};
use crate::device::BlockDevice;
use crate::error::{Errno, Result};
use crate::format::inode::{self, flags};
use micabox_file::narrow::in_memory;

/// Number of bytes to write before checking whether the caches need room.
const PIECE: usize = 4 << 20;

impl<D: BlockDevice> Ext4<D> {
    /// Writes at byte `offset` of a file, which grows if necessary; skipped bytes become a hole.
    /// Returns the number of bytes written: all, or as many as there was space for.
    ///
    /// # Errors
    ///
    /// [`Errno::NoSpace`] if there is no space for any byte, [`Errno::FileTooLarge`],
    /// [`Errno::IsADirectory`], [`Errno::Invalid`] if the inode is not a file,
    /// [`Errno::NotPermitted`] for an immutable file, and damage.
    pub fn write(&mut self, ino: Ino, offset: u64, buf: &[u8]) -> Result<usize> {
        self.begin()?;
        self.writable_file(ino)?;
        let end = offset
            .checked_add(buf.len() as u64)
            .ok_or(Errno::FileTooLarge)?;
        if end > self.geometry.max_file_size() {
            return Err(Errno::FileTooLarge.into());
        }
        if buf.is_empty() {
            return Ok(0);
        }
        let result = self.write_pieces(ino, offset, buf);
        self.stop_on(result)
    }

    fn write_pieces(&mut self, ino: Ino, offset: u64, buf: &[u8]) -> Result<usize> {
        self.make_room(self.geometry.blocks_for(buf.len() as u64) + 8)?;
        self.make_extents(ino)?;
        let size = self.inode(ino)?.raw.size();
        if offset > size {
            self.zero_to_block_end(ino, size)?;
        }
        let mut done = 0;
        for piece in buf.chunks(PIECE) {
            if done > 0 {
                self.begin()?;
            }
            match self.write_pages(ino, offset + done as u64, piece) {
                Ok(()) => done += piece.len(),
                Err(error) if error.errno() == Errno::NoSpace && done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        self.touch(ino)?;
        Ok(done)
    }

    /// Checks that an inode is a file whose contents may change.
    pub(crate) fn writable_file(&mut self, ino: Ino) -> Result<()> {
        let inode = self.inode(ino)?;
        if inode.is(inode::S_IFDIR) {
            return Err(Errno::IsADirectory.into());
        }
        if !inode.is(inode::S_IFREG) {
            return Err(Errno::Invalid.into());
        }
        if inode.has(flags::IMMUTABLE) || inode.has(flags::VERITY) {
            return Err(Errno::NotPermitted.into());
        }
        Ok(())
    }

    /// Returns the number of blocks that `count` blocks of contents may need, including extent
    /// trees.
    fn with_metadata(&self, count: u64) -> u64 {
        count + (self.reserved + count) / 256 + 16
    }

    /// Commits if space is short and the transaction freed some. Only between operations.
    pub(crate) fn make_room(&mut self, count: u64) -> Result<()> {
        if self.available_blocks() < self.with_metadata(count) && self.transaction.freed_blocks > 0
        {
            self.commit()?;
        }
        Ok(())
    }

    /// Copies bytes into the cache of contents; extends the file to the end of the bytes.
    pub(crate) fn write_pages(&mut self, ino: Ino, offset: u64, buf: &[u8]) -> Result<()> {
        let chunk_size = self.pages.chunk_size();
        let bits = self.geometry.block_bits;
        let block_size = self.geometry.block_size;
        let mut size = self.inode(ino)?.raw.size();
        let mut done = 0;
        while let Some(rest) = buf.get(done..).filter(|rest| !rest.is_empty()) {
            let at = offset + done as u64;
            let within = in_memory(at % chunk_size as u64);
            let count = rest.len().min(chunk_size - within);
            let number = u32::try_from(at / chunk_size as u64).map_err(|_| Errno::FileTooLarge)?;
            let key = (ino, number);
            let slot = self.pages.find_or_add(key);
            let (first, last) = (within >> bits, (within + count - 1) >> bits);
            let blocks = mask(first, last);
            let (valid, dirty) = self
                .pages
                .at(slot)
                .map_or((0, 0), |chunk| (chunk.valid, chunk.dirty));
            let reserved = self.reserve(ino, number, blocks & !dirty)?;
            // Partly written blocks need the rest of their bytes.
            let chunk_start = at - within as u64;
            let partial_first = !within.is_multiple_of(block_size);
            let partial_last = !(within + count).is_multiple_of(block_size);
            for (block, partial) in [(first, partial_first), (last, partial_last)] {
                if !partial || valid >> block & 1 != 0 {
                    continue;
                }
                let block_start = chunk_start + ((block as u64) << bits);
                if block_start < size {
                    self.fill(key, slot, block, block)?;
                } else {
                    self.pages.reach(slot, (block + 1) * block_size);
                    let range = block * block_size..(block + 1) * block_size;
                    self.pages
                        .bytes_mut(slot)
                        .get_mut(range)
                        .unwrap_or_default()
                        .fill(0);
                }
            }
            self.pages.reach(slot, (last + 1) * block_size);
            if let (Some(place), Some(bytes)) = (
                self.pages.bytes_mut(slot).get_mut(within..within + count),
                rest.get(..count),
            ) {
                place.copy_from_slice(bytes);
            }
            self.pages.mark_dirty(key, slot, blocks, reserved);
            self.reserved += u64::from(reserved.count_ones());
            done += count;
            if at + count as u64 > size {
                size = at + count as u64;
                self.inode_mut(ino)?.raw.set_size(size);
            }
        }
        Ok(())
    }

    /// Returns which of a chunk's `blocks`, which are about to change, have no place yet, after
    /// checking that there is space for them.
    fn reserve(&mut self, ino: Ino, chunk: u32, blocks: u64) -> Result<u64> {
        let per_chunk = (self.pages.chunk_size() >> self.geometry.block_bits) as u64;
        let base = u64::from(chunk) * per_chunk;
        let mut reserved = 0;
        let mut rest = blocks;
        while rest != 0 {
            let first = rest.trailing_zeros();
            let run = (rest >> first).trailing_ones();
            let logical =
                u32::try_from(base + u64::from(first)).map_err(|_| Errno::FileTooLarge)?;
            let mapping = self.map(ino, logical)?;
            let count = run.min(mapping.length).max(1);
            let bits = mask(first as usize, (first + count - 1) as usize);
            if mapping.physical.is_none() {
                reserved |= bits;
            }
            rest &= !bits;
        }
        let count = u64::from(reserved.count_ones());
        if count > 0 && self.available_blocks() < self.with_metadata(count) {
            return Err(Errno::NoSpace.into());
        }
        Ok(reserved)
    }

    /// Writes zeros from a byte, the file's size, to the end of its block, so that old data does
    /// not appear when the file grows past it.
    pub(crate) fn zero_to_block_end(&mut self, ino: Ino, from: u64) -> Result<()> {
        let block_size = self.geometry.block_size as u64;
        let length = from.next_multiple_of(block_size) - from;
        self.zero_bytes(ino, from, length)
    }

    /// Zeros bytes within one block, unless the block is a hole.
    pub(crate) fn zero_bytes(&mut self, ino: Ino, from: u64, length: u64) -> Result<()> {
        if length == 0 {
            return Ok(());
        }
        let chunk_size = self.pages.chunk_size() as u64;
        let within = in_memory(from % chunk_size);
        let block = within >> self.geometry.block_bits;
        let key = (
            ino,
            u32::try_from(from / chunk_size).map_err(|_| Errno::FileTooLarge)?,
        );
        let cached = self
            .pages
            .peek(key)
            .is_some_and(|chunk| chunk.dirty >> block & 1 != 0);
        let logical = self.logical(from)?;
        if !cached && self.map(ino, logical)?.data().is_none() {
            // The block reads as zeros already, but may be cached.
            self.pages.forget_blocks(key, 1 << block);
            return Ok(());
        }
        let slot = self.pages.find_or_add(key);
        self.fill(key, slot, block, block)?;
        let range = within..within + in_memory(length);
        if let Some(bytes) = self.pages.bytes_mut(slot).get_mut(range) {
            if bytes.iter().all(|&byte| byte == 0) {
                return Ok(());
            }
            bytes.fill(0);
        }
        self.pages.mark_dirty(key, slot, 1 << block, 0);
        Ok(())
    }
}
