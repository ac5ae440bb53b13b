//! Reads files.

use alloc::vec;
use alloc::vec::Vec;

use micabox_file::Segment;

use super::{Ext4, Ino};
use crate::cache::ChunkKey;
use crate::device::BlockDevice;
use crate::error::{Errno, Place, Result};
use crate::format::inode::{self, RawInode, flags};
use micabox_file::narrow::in_memory;

/// Length limit of a symbolic link's target, as in Linux.
const MAX_SYMLINK: u64 = 4096;

/// Returns a mask of bits `from` to `to` (inclusive).
pub(crate) fn mask(from: usize, to: usize) -> u64 {
    (u64::MAX >> (63 - to.min(63))) & (u64::MAX << from.min(63))
}

impl<D: BlockDevice> Ext4<D> {
    /// Reads from byte `offset` of a file. Returns the number of bytes read, which is less than the
    /// length of `buf` only at the file's end.
    ///
    /// # Errors
    ///
    /// [`Errno::IsADirectory`], [`Errno::Invalid`] if the inode is not a file, and damage.
    pub fn read(&mut self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let inode = self.inode(ino)?;
        if !inode.is(inode::S_IFREG) {
            let is_directory = inode.is(inode::S_IFDIR);
            return Err(if is_directory {
                Errno::IsADirectory
            } else {
                Errno::Invalid
            }
            .into());
        }
        self.read_data(ino, offset, buf)
    }

    /// Reads the contents of any inode that has some.
    fn read_data(&mut self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let inode = self.inode(ino)?;
        let size = inode.raw.size();
        let length = in_memory(size.saturating_sub(offset).min(buf.len() as u64));
        let is_inline = inode.has(flags::INLINE_DATA);
        let goes_on = inode.read_end == offset;
        inode.read_end = offset + length as u64;
        let Some(buf) = buf.get_mut(..length).filter(|buf| !buf.is_empty()) else {
            return Ok(0);
        };
        if is_inline {
            let data = self.inline_data(ino)?;
            let from = usize::try_from(offset).map_err(|_| Errno::Invalid)?;
            buf.copy_from_slice(data.get(from..from + length).unwrap_or_default());
            return Ok(length);
        }
        let chunk_size = self.pages.chunk_size();
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let at = offset + done as u64;
            let within = in_memory(at % chunk_size as u64);
            let count = rest.len().min(chunk_size - within);
            let number = u32::try_from(at / chunk_size as u64).map_err(|_| Errno::FileTooLarge)?;
            if let Some(part) = rest.get_mut(..count) {
                self.read_chunk((ino, number), within, part, goes_on, size)?;
            }
            done += count;
        }
        Ok(length)
    }

    /// Reads bytes of one chunk from `within` on.
    fn read_chunk(
        &mut self,
        key: ChunkKey,
        within: usize,
        buf: &mut [u8],
        goes_on: bool,
        size: u64,
    ) -> Result<()> {
        let bits = self.geometry.block_bits;
        let (first, last) = (within >> bits, (within + buf.len() - 1) >> bits);
        let needed = mask(first, last);
        // Shrink before the read, so that the new blocks are not dropped.
        if self.pages.is_over_bound() {
            self.pages.shrink();
        }
        let slot = self.pages.find_or_add(key);
        let valid = self.pages.at(slot).map_or(0, |chunk| chunk.valid);
        if valid & needed != needed {
            let chunk_size = self.pages.chunk_size();
            // A sequential reader gets the whole chunk, up to the file's end.
            let start = u64::from(key.1) * chunk_size as u64;
            let end = in_memory((size - start).min(chunk_size as u64));
            let last = if goes_on { (end - 1) >> bits } else { last };
            self.fill(key, slot, first, last)?;
        }
        let slot = self.pages.find_or_add(key);
        let bytes = self.pages.bytes(slot).get(within..within + buf.len());
        buf.copy_from_slice(bytes.ok_or(Place::Inode(key.0).corrupt("lost from the cache"))?);
        Ok(())
    }

    /// Loads blocks `first` to `last` of a chunk into memory.
    pub(crate) fn fill(
        &mut self,
        key: ChunkKey,
        slot: u32,
        first: usize,
        last: usize,
    ) -> Result<()> {
        let block_size = self.geometry.block_size;
        let per_chunk = self.pages.chunk_size() / block_size;
        let base = u64::from(key.1) * per_chunk as u64;
        self.pages.reach(slot, (last + 1) * block_size);
        let mut at = first;
        while at <= last {
            let valid = self.pages.at(slot).map_or(0, |chunk| chunk.valid);
            if valid >> at & 1 != 0 {
                at += 1;
                continue;
            }
            // The number of consecutive missing blocks.
            let missing = ((valid >> at).trailing_zeros() as usize).min(last + 1 - at);
            let logical = u32::try_from(base + at as u64).map_err(|_| Errno::FileTooLarge)?;
            let mapping = self.map(key.0, logical)?;
            let count = missing.min(mapping.length as usize).max(1);
            let range = at * block_size..(at + count) * block_size;
            if let Some(bytes) = self.pages.bytes_mut(slot).get_mut(range) {
                match mapping.data() {
                    Some(physical) => self.io.read_blocks(physical, bytes)?,
                    None => bytes.fill(0),
                }
            }
            if let Some(chunk) = self.pages.at(slot) {
                chunk.valid |= mask(at, at + count - 1);
            }
            at += count;
        }
        Ok(())
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    ///
    /// [`Errno::Invalid`] if the inode is not a symbolic link, and damage.
    pub fn read_link(&mut self, ino: Ino) -> Result<Vec<u8>> {
        let inode = self.inode(ino)?;
        if !inode.is(inode::S_IFLNK) {
            return Err(Errno::Invalid.into());
        }
        let size = inode.raw.size();
        if size > MAX_SYMLINK {
            return Err(Place::Inode(ino).corrupt("the symbolic link is too long"));
        }
        if inode.has(flags::INLINE_DATA) {
            return self.inline_data(ino);
        }
        if size < RawInode::default().block.len() as u64 {
            return Ok(inode
                .raw
                .block
                .get(..in_memory(size))
                .unwrap_or_default()
                .to_vec());
        }
        let mut target = vec![0; in_memory(size)];
        self.read_data(ino, 0, &mut target)?;
        Ok(target)
    }

    /// Returns the parts of a file that are not holes, ascending. Allocated space that was never
    /// written counts as a hole.
    ///
    /// # Errors
    ///
    /// Damage, and missing space for written contents that had no place yet.
    pub fn segments(&mut self, ino: Ino) -> Result<Vec<Segment>> {
        self.write_back_file(ino)?;
        let inode = self.inode(ino)?;
        let size = inode.raw.size();
        let mut segments: Vec<Segment> = Vec::new();
        if inode.has(flags::INLINE_DATA) {
            if size > 0 {
                segments.push(Segment {
                    offset: 0,
                    length: size,
                });
            }
            return Ok(segments);
        }
        let bits = self.geometry.block_bits;
        let end = self.geometry.blocks_for(size);
        let mut logical = 0u64;
        let mut budget = self.budget(ino);
        while logical < end {
            let Ok(number) = u32::try_from(logical) else {
                break;
            };
            let mapping = self.map(ino, number)?;
            budget.take(&mapping)?;
            let offset = logical << bits;
            let length = (u64::from(mapping.length) << bits).min(size - offset);
            if mapping.data().is_some() {
                match segments.last_mut() {
                    Some(last) if last.offset + last.length == offset => last.length += length,
                    _ => segments.push(Segment { offset, length }),
                }
            }
            logical += u64::from(mapping.length.max(1));
        }
        Ok(segments)
    }
}
