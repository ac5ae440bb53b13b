//! Locates and reads the bytes of inodes.

use std::io;
use std::ops::Range;

use super::{Inode, Reader};
use crate::format::{FileType, INODE_SLOT, Layout, SYMLINK_MAX};
use crate::source::ReadAt;
use crate::sparse::{CHUNK_BITS_MAX, chunk_size};
use crate::tree::{Chunks, Data};
use crate::{BLOCK_SIZE, Error, Result};
use micabox_file::narrow::{in_memory, saturate8};

/// Chunk entries have 8 bytes and name a device.
const CHUNK_INDEXES: u32 = 0x20;
/// Bits of a chunk format that have a meaning.
const CHUNK_FORMAT: u32 = 0x3f;
/// Number of chunk entries read together.
const ENTRIES: u64 = 512;

/// A run of a file's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Start in the file, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
    /// Start in the image, in bytes; `None` for a hole. Addresses past the image itself are in the
    /// address space shared by all devices.
    pub address: Option<u64>,
}

/// How the chunks of a file are listed.
struct ChunkList {
    /// 2^`bits` blocks make a chunk.
    bits: u8,
    /// Number of chunks.
    count: u64,
    /// Position of the list in the image, in bytes.
    at: u64,
    /// Size of an entry in bytes.
    unit: u64,
}

impl<R: ReadAt> Reader<R> {
    /// Checks that an inode's description of its bytes is possible.
    pub(super) fn check_data(&self, inode: &Inode) -> Result<()> {
        if inode.size > i64::MAX as u64 {
            return Err(inode.corrupt("its size is negative"));
        }
        match inode.kind {
            FileType::Regular => {}
            FileType::Directory if self.is_compressed(inode) => {
                return Err(Error::Unsupported("compressed directories"));
            }
            _ if self.is_compressed(inode) => {
                return Err(inode.corrupt("it is compressed, and no file"));
            }
            FileType::Directory if inode.layout != Layout::ChunkBased => {}
            FileType::Symlink
                if inode.layout != Layout::ChunkBased
                    && (1..=SYMLINK_MAX as u64).contains(&inode.size) => {}
            FileType::Directory => return Err(inode.corrupt("it is a directory in chunks")),
            FileType::Symlink => {
                return Err(inode.corrupt("its target has an impossible length"));
            }
            _ => return Ok(()),
        }
        match inode.layout {
            Layout::ChunkBased => self.chunk_list(inode).map(|_| ()),
            Layout::CompressedFull | Layout::CompressedCompact => Ok(()),
            Layout::FlatPlain | Layout::FlatInline => {
                let (whole, tail) = whole_and_tail(inode);
                if tail > 0 && inode.body_at() % BLOCK_SIZE + tail > BLOCK_SIZE {
                    return Err(inode.corrupt("its inline data crosses a block boundary"));
                }
                if inode.body_at() + tail > self.size {
                    return Err(inode.corrupt("its inline data lies outside the image"));
                }
                self.check_range(inode, u64::from(inode.union) * BLOCK_SIZE, whole)
            }
        }
    }

    /// Checks that a range lies in the image or, for a file, in one of its devices.
    fn check_range(&self, inode: &Inode, start: u64, length: u64) -> Result<()> {
        // No overflow: a 32-bit block number and a positive 63-bit length.
        let end = start + length;
        if length == 0 || end <= self.size {
            return Ok(());
        }
        let in_device = inode.kind == FileType::Regular
            && self.devices.iter().any(|device| {
                let first = u64::from(device.first_block) * BLOCK_SIZE;
                let device_end = first + u64::from(device.blocks) * BLOCK_SIZE;
                // A device's last block may only be cut off by the end of the file.
                device.first_block > 0 && first <= start && end <= device_end
            });
        if !in_device {
            return Err(inode.corrupt("its data lies outside the image"));
        }
        Ok(())
    }

    fn chunk_list(&self, inode: &Inode) -> Result<ChunkList> {
        let format = inode.union;
        let bits = saturate8(format & u32::from(CHUNK_BITS_MAX));
        if format & 0xffff & !CHUNK_FORMAT != 0 {
            return Err(inode.corrupt("its chunk format is unknown"));
        }
        let unit = if format & CHUNK_INDEXES == 0 { 4 } else { 8 };
        let count = inode.size.div_ceil(chunk_size(bits));
        let at = inode.body_at().next_multiple_of(unit);
        let fits = count
            .checked_mul(unit)
            .and_then(|length| at.checked_add(length))
            .is_some_and(|end| end <= self.size);
        if !fits {
            return Err(inode.corrupt("its chunk list lies outside the image"));
        }
        Ok(ChunkList {
            bits,
            count,
            at,
            unit,
        })
    }

    /// Calls `f` with the number and the start block, in the shared address space, of every chunk
    /// from `first` on, until `f` returns false. [`Chunks::HOLE`] stands for a hole.
    fn for_each_chunk(
        &self,
        inode: &Inode,
        list: &ChunkList,
        first: u64,
        mut f: impl FnMut(u64, u32) -> bool,
    ) -> Result<()> {
        let mut buf = Vec::new();
        let mut next = first;
        while next < list.count {
            let count = (list.count - next).min(ENTRIES);
            buf.resize(in_memory(count * list.unit), 0);
            self.fill(&mut buf, list.at + next * list.unit)?;
            for entry in buf.chunks_exact(in_memory(list.unit)) {
                let block = match *entry {
                    [a, b, c, d] => u32::from_le_bytes([a, b, c, d]),
                    [_, _, device_low, device_high, a, b, c, d] => {
                        let device = u16::from_le_bytes([device_low, device_high]);
                        self.flat_block(inode, device, u32::from_le_bytes([a, b, c, d]))?
                    }
                    _ => Chunks::HOLE,
                };
                if block != Chunks::HOLE {
                    let chunk = chunk_size(list.bits);
                    let length = (inode.size - next * chunk).min(chunk);
                    self.check_range(inode, u64::from(block) * BLOCK_SIZE, length)?;
                }
                if !f(next, block) {
                    return Ok(());
                }
                next += 1;
            }
        }
        Ok(())
    }

    /// Returns the block's number in the address space that all devices share.
    fn flat_block(&self, inode: &Inode, device: u16, block: u32) -> Result<u32> {
        if block == Chunks::HOLE {
            return Ok(block);
        }
        // Linux ignores the bits above those that the number of devices needs.
        let mask = (self.devices.len() + 1).next_power_of_two() - 1;
        match usize::from(device) & mask {
            0 => Ok(block),
            index => self
                .devices
                .get(index - 1)
                .filter(|device| device.first_block > 0)
                .and_then(|device| device.first_block.checked_add(block))
                .ok_or(inode.corrupt("a chunk is on a device that is not in the table")),
        }
    }

    /// Returns the position of a regular file's bytes in the form that [`crate::Tree`] has. `None`
    /// if some are packed into the inode.
    pub fn data(&self, inode: &Inode) -> Result<Option<Data>> {
        if inode.size == 0 {
            return Ok(Some(Data::Contiguous { block: 0 }));
        }
        match inode.layout {
            Layout::FlatInline => Ok(None),
            Layout::CompressedFull | Layout::CompressedCompact => Err(self.compressed()),
            Layout::FlatPlain => Ok(Some(Data::Contiguous { block: inode.union })),
            Layout::ChunkBased => {
                let list = self.chunk_list(inode)?;
                let mut blocks = Vec::new();
                self.for_each_chunk(inode, &list, 0, |_, block| {
                    blocks.push(block);
                    true
                })?;
                Ok(Some(Data::Chunked(Box::new(Chunks {
                    bits: list.bits,
                    blocks: blocks.into(),
                }))))
            }
        }
    }

    /// Returns the range of an inode with its attributes and what follows them.
    pub(crate) fn metadata_range(&self, inode: &Inode) -> Result<Range<u64>> {
        let start = u64::from(self.superblock.meta_block) * BLOCK_SIZE + inode.nid * INODE_SLOT;
        let body = match inode.kind {
            FileType::Regular | FileType::Directory | FileType::Symlink => {
                match (inode.layout, self.chunk_list_size(inode)?) {
                    (Layout::ChunkBased, size) => size,
                    _ => whole_and_tail(inode).1,
                }
            }
            _ => 0,
        };
        Ok(start..inode.body_at() + body)
    }

    /// Returns how many bytes of the image only list the position of this inode's data.
    pub(crate) fn chunk_list_size(&self, inode: &Inode) -> Result<u64> {
        match (inode.kind, inode.layout) {
            (FileType::Regular, Layout::ChunkBased) => {
                let list = self.chunk_list(inode)?;
                Ok(list.count * list.unit)
            }
            // Of an entry in a pack; others take more.
            (FileType::Regular, Layout::CompressedFull | Layout::CompressedCompact) => {
                Ok(inode.size.div_ceil(BLOCK_SIZE).saturating_mul(2))
            }
            _ => Ok(0),
        }
    }

    /// Returns the runs of a regular file's bytes, ascending and without gaps, each as long as
    /// possible.
    ///
    /// # Errors
    ///
    /// [`Error::CorruptInode`] if a run lies outside the image and its devices.
    pub fn extents(&self, file: &Inode) -> Result<Vec<Extent>> {
        let mut extents: Vec<Extent> = Vec::new();
        let mut push = |extent: Extent| {
            if extent.length == 0 {
                return;
            }
            if let Some(last) = extents.last_mut() {
                let follows = match (last.address, extent.address) {
                    (Some(a), Some(b)) => a + last.length == b,
                    (None, None) => true,
                    _ => false,
                };
                if follows {
                    last.length += extent.length;
                    return;
                }
            }
            extents.push(extent);
        };
        match file.layout {
            Layout::ChunkBased => {
                let list = self.chunk_list(file)?;
                let chunk = chunk_size(list.bits);
                self.for_each_chunk(file, &list, 0, |number, block| {
                    let offset = number * chunk;
                    push(Extent {
                        offset,
                        length: (file.size - offset).min(chunk),
                        address: (block != Chunks::HOLE).then_some(u64::from(block) * BLOCK_SIZE),
                    });
                    true
                })?;
            }
            Layout::CompressedFull | Layout::CompressedCompact => return Err(self.compressed()),
            Layout::FlatPlain | Layout::FlatInline => {
                let (whole, tail) = whole_and_tail(file);
                push(Extent {
                    offset: 0,
                    length: whole,
                    address: Some(u64::from(file.union) * BLOCK_SIZE),
                });
                push(Extent {
                    offset: whole,
                    length: tail,
                    address: Some(file.body_at()),
                });
            }
        }
        Ok(extents)
    }

    /// Reads from a file's contents, a directory's blocks or a link's target, starting at `offset`
    /// bytes. Returns the number of bytes read, which is less than `buf` has only at the end.
    ///
    /// # Errors
    ///
    /// [`Error::Read`] if the bytes are on a device that is not part of the source.
    pub fn read(&self, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let length = inode.size.saturating_sub(offset).min(buf.len() as u64);
        // Fits: the buffer has at least this length.
        let mut left = &mut buf[..in_memory(length)];
        let mut at = offset;
        while !left.is_empty() {
            let extent = self.extent_at(inode, at)?;
            let skip = at - extent.offset;
            let count = in_memory((extent.length - skip).min(left.len() as u64));
            let (now, later) = left.split_at_mut(count);
            match extent.address {
                Some(address) if address + skip + count as u64 <= self.source_size => {
                    self.fill(now, address + skip)?;
                }
                Some(_) => return Err(Error::Read(io::ErrorKind::UnexpectedEof.into())),
                None => now.fill(0),
            }
            left = later;
            at += count as u64;
        }
        Ok(in_memory(length))
    }

    /// Returns the run that holds the byte at `offset`, which is inside the file.
    fn extent_at(&self, inode: &Inode, offset: u64) -> Result<Extent> {
        if self.is_compressed(inode) {
            return Err(self.compressed());
        }
        if inode.layout != Layout::ChunkBased {
            let (whole, tail) = whole_and_tail(inode);
            return Ok(if offset < whole {
                Extent {
                    offset: 0,
                    length: whole,
                    address: Some(u64::from(inode.union) * BLOCK_SIZE),
                }
            } else {
                Extent {
                    offset: whole,
                    length: tail,
                    address: Some(inode.body_at()),
                }
            });
        }
        let list = self.chunk_list(inode)?;
        let chunk = chunk_size(list.bits);
        let mut extent = None;
        self.for_each_chunk(inode, &list, offset / chunk, |number, block| {
            let offset = number * chunk;
            extent = Some(Extent {
                offset,
                length: (inode.size - offset).min(chunk),
                address: (block != Chunks::HOLE).then_some(u64::from(block) * BLOCK_SIZE),
            });
            false
        })?;
        extent.ok_or_else(|| inode.corrupt("its chunk list is too short"))
    }

    fn compressed(&self) -> Error {
        Error::Compressed(self.superblock.algorithm())
    }

    /// Returns the target of a symbolic link, 1 to 4095 bytes without NUL.
    ///
    /// # Errors
    ///
    /// [`Error::CorruptInode`], also if `link` is not a symbolic link.
    pub fn read_link(&self, link: &Inode) -> Result<Box<[u8]>> {
        if link.kind != FileType::Symlink {
            return Err(link.corrupt("it is used as a symbolic link but is not one"));
        }
        // At most 4095 bytes: checked with the inode.
        let mut target = vec![0; in_memory(link.size)];
        self.read(link, 0, &mut target)?;
        if target.contains(&0) {
            return Err(link.corrupt("its target contains a NUL byte"));
        }
        Ok(target.into())
    }
}

/// Returns how many bytes of a flat inode lie in blocks of their own, and how many follow the
/// inode.
fn whole_and_tail(inode: &Inode) -> (u64, u64) {
    match inode.layout {
        Layout::FlatInline => {
            let tail = inode.size % BLOCK_SIZE;
            (inode.size - tail, tail)
        }
        _ => (inode.size, 0),
    }
}
