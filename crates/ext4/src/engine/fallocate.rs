//! Allocates space without contents, and punches holes.

use super::{Ext4, Ino};
use crate::device::BlockDevice;
use crate::error::{Errno, Result};
use micabox_file::narrow::{in_memory, saturate32};

/// The operation on a range of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallocate {
    /// Allocates space, which reads as zeros where there was none. Extends the file to the end of
    /// the range unless `keep_size`.
    Allocate {
        /// Leave the size alone.
        keep_size: bool,
    },
    /// Removes space and contents. The size stays.
    PunchHole,
    /// Zeros the range and keeps space allocated. Extends the file to the end of the range unless
    /// `keep_size`.
    ZeroRange {
        /// Leave the size alone.
        keep_size: bool,
    },
}

impl<D: BlockDevice> Ext4<D> {
    /// Applies `mode` to `length` bytes at `offset` of a file.
    ///
    /// # Errors
    ///
    /// [`Errno::Invalid`] for an empty range or an inode that is not a file, [`Errno::NoSpace`],
    /// [`Errno::FileTooLarge`], [`Errno::IsADirectory`], [`Errno::NotPermitted`] for an immutable
    /// file, and damage.
    pub fn fallocate(&mut self, ino: Ino, mode: Fallocate, offset: u64, length: u64) -> Result<()> {
        self.begin()?;
        self.writable_file(ino)?;
        if length == 0 {
            return Err(Errno::Invalid.into());
        }
        let end = offset.checked_add(length).ok_or(Errno::FileTooLarge)?;
        if end > self.geometry.max_file_size() {
            return Err(Errno::FileTooLarge.into());
        }
        self.make_room(16)?;
        let result = self.fallocate_range(ino, mode, offset, end);
        self.stop_on(result)
    }

    fn fallocate_range(&mut self, ino: Ino, mode: Fallocate, offset: u64, end: u64) -> Result<()> {
        self.make_extents(ino)?;
        match mode {
            Fallocate::Allocate { keep_size } => {
                self.allocate_hole(ino, offset, end)?;
                self.grow_to(ino, end, keep_size)?;
            }
            Fallocate::PunchHole => self.punch(ino, offset, end)?,
            Fallocate::ZeroRange { keep_size } => {
                self.punch(ino, offset, end)?;
                self.allocate_hole(ino, offset, end)?;
                self.grow_to(ino, end, keep_size)?;
            }
        }
        self.touch(ino)
    }

    fn grow_to(&mut self, ino: Ino, end: u64, keep_size: bool) -> Result<()> {
        let size = self.inode(ino)?.raw.size();
        if end > size && !keep_size {
            self.zero_to_block_end(ino, size)?;
            self.inode_mut(ino)?.raw.set_size(end);
        }
        Ok(())
    }

    /// Allocates the unmapped blocks of a range.
    fn allocate_hole(&mut self, ino: Ino, offset: u64, end: u64) -> Result<()> {
        self.write_back_file(ino)?;
        let mut logical = offset >> self.geometry.block_bits;
        let end = self.geometry.blocks_for(end);
        let mut missing = 0;
        let mut at = logical;
        while at < end {
            let mapping = self.map(ino, saturate32(at))?;
            let count = u64::from(mapping.length).min(end - at).max(1);
            missing += if mapping.physical.is_none() { count } else { 0 };
            at += count;
        }
        self.make_room(missing)?;
        if self.available_blocks() < missing + missing / 256 + 16 {
            return Err(Errno::NoSpace.into());
        }
        while logical < end {
            if self.transaction_is_full() {
                self.commit()?;
            }
            let mapping = self.map(ino, saturate32(logical))?;
            let count = u64::from(mapping.length)
                .min(end - logical)
                .clamp(1, 1 << 24);
            if mapping.physical.is_none() {
                self.allocate_range(ino, saturate32(logical), count as u32, true)?;
            }
            logical += count;
        }
        Ok(())
    }

    /// Removes the blocks entirely inside a range and zeros the bytes at its edges.
    fn punch(&mut self, ino: Ino, offset: u64, end: u64) -> Result<()> {
        self.write_back_file(ino)?;
        let block_size = self.geometry.block_size as u64;
        let first = offset.next_multiple_of(block_size);
        let last = end / block_size * block_size;
        if first > last {
            return self.zero_bytes(ino, offset, end - offset);
        }
        self.zero_bytes(ino, offset, first - offset)?;
        self.zero_bytes(ino, last, end - last)?;
        // The cached part of the range is clean now, except the edges, which are outside.
        let chunk_size = self.pages.chunk_size() as u64;
        for key in self.pages.keys_from(ino, saturate32(first / chunk_size)) {
            let start = u64::from(key.1) * chunk_size;
            if start >= last {
                break;
            }
            let from = first.saturating_sub(start) / block_size;
            let to = (last - start).min(chunk_size) / block_size;
            if from < to {
                let blocks = super::read::mask(in_memory(from), in_memory(to) - 1);
                self.pages.forget_blocks(key, blocks);
            }
        }
        if first < last {
            let from = saturate32(first >> self.geometry.block_bits);
            self.remove_range(ino, from, last >> self.geometry.block_bits)?;
        }
        Ok(())
    }
}
