//! Caches inodes: loaded once, written to their table by commits.

use alloc::boxed::Box;
use alloc::vec;

use super::{Ext4, Ino};
use crate::cache::Kind;
use crate::device::BlockDevice;
use crate::error::{Errno, Place, Result};
use crate::format::checksum;
use crate::format::extent::Extent;
use crate::format::group;
use crate::format::inode::{self, RawInode, flags};
use micabox_file::narrow::in_memory;

/// An inode in memory.
#[derive(Debug)]
pub(crate) struct Inode {
    pub(crate) raw: RawInode,
    /// All bytes of the inode on disk; for the first [`RawInode::SIZE`] bytes, `raw` is
    /// authoritative.
    pub(crate) bytes: Box<[u8]>,
    /// The running transaction changed the inode.
    pub(crate) dirty: bool,
    /// Number of holders that keep the inode open.
    pub(crate) opens: u32,
    /// Initial value of the checksums of its blocks.
    pub(crate) seed: u32,
    /// The extent that was found last.
    pub(crate) last_extent: Option<Extent>,
    /// The end of the last read: a read that continues there reads ahead.
    pub(crate) read_end: u64,
    /// The directory block in which the search for room starts.
    pub(crate) room_hint: u32,
}

impl Inode {
    pub(crate) fn is(&self, kind: u16) -> bool {
        self.raw.mode & inode::S_IFMT == kind
    }

    pub(crate) fn has(&self, flag: u32) -> bool {
        self.raw.flags & flag != 0
    }

    /// Returns the number of bytes of the on-disk inode that have a meaning, before attributes.
    pub(crate) fn known_size(&self) -> usize {
        known_size(&self.raw, self.bytes.len())
    }

    /// Returns the offset at which attributes may start.
    pub(crate) fn xattr_offset(&self) -> usize {
        inode::GOOD_OLD_SIZE + usize::from(self.raw.extra_isize)
    }
}

fn known_size(raw: &RawInode, inode_size: usize) -> usize {
    if inode_size <= inode::GOOD_OLD_SIZE {
        return inode::GOOD_OLD_SIZE;
    }
    (inode::GOOD_OLD_SIZE + usize::from(raw.extra_isize))
        .min(RawInode::SIZE)
        .min(inode_size)
}

impl<D: BlockDevice> Ext4<D> {
    /// Returns the block of the inode table with an inode, and the offset in the block.
    pub(crate) fn inode_place(&self, ino: Ino) -> Result<(u64, usize)> {
        let (group, index) = self.geometry.inode_group(ino).ok_or(Errno::Stale)?;
        let offset = u64::from(index) * self.geometry.inode_size as u64;
        let block = self
            .group(group)?
            .descriptor
            .inode_table()
            .checked_add(offset >> self.geometry.block_bits)
            .filter(|&block| block < self.geometry.blocks_count)
            .ok_or(Place::Group(group).corrupt("the inode table is past the filesystem's end"))?;
        Ok((block, in_memory(offset % self.geometry.block_size as u64)))
    }

    /// Returns an inode that is in use.
    #[inline]
    pub(crate) fn inode(&mut self, ino: Ino) -> Result<&mut Inode> {
        let slot = match self.inodes.touch(&ino) {
            Some(slot) => slot,
            None => self.load_inode(ino)?,
        };
        self.inodes.at(slot).ok_or(Errno::Stale.into())
    }

    fn load_inode(&mut self, ino: Ino) -> Result<u32> {
        let (block, offset) = self.inode_place(ino)?;
        if let Some((group, _)) = self.geometry.inode_group(ino)
            && self.superblock.has_group_checksums()
            && self.group(group)?.descriptor.flags & group::INODE_UNINIT != 0
        {
            return Err(Errno::Stale.into());
        }
        let size = self.geometry.inode_size;
        let bytes: Box<[u8]> = self
            .blocks
            .read(&self.io, block, Kind::Plain)?
            .get(offset..offset + size)
            .unwrap_or_default()
            .into();
        let raw = decode(&bytes);
        if raw.links_count == 0 && (raw.mode == 0 || raw.dtime != 0) && !self.orphans.contains(ino)
        {
            return Err(Errno::Stale.into());
        }
        if self.geometry.has_checksums && !inode::is_sealed(self.geometry.seed, ino, &bytes) {
            return Err(Place::Inode(ino).corrupt("the checksum is wrong"));
        }
        let extra = inode::GOOD_OLD_SIZE + usize::from(raw.extra_isize);
        if size > inode::GOOD_OLD_SIZE && (extra > size || !raw.extra_isize.is_multiple_of(4)) {
            return Err(Place::Inode(ino).corrupt("an impossible extra size"));
        }
        if raw.flags & flags::ENCRYPT != 0 {
            return Err(crate::Error::Unsupported("an encrypted file"));
        }
        Ok(self.cache_inode(ino, raw, bytes))
    }

    /// Puts an inode into the cache.
    pub(crate) fn cache_inode(&mut self, ino: Ino, raw: RawInode, bytes: Box<[u8]>) -> u32 {
        let bound = self.options.inode_cache;
        if self.inodes.len() >= bound + bound / 16 + self.dirty_inodes.len() {
            let keep = bound + self.dirty_inodes.len();
            self.inodes
                .shrink(keep, |inode| !inode.dirty && inode.opens == 0);
        }
        let seed = checksum::inode_seed(self.geometry.seed, ino, raw.generation);
        self.inodes.insert(
            ino,
            Inode {
                raw,
                bytes,
                dirty: false,
                opens: 0,
                seed,
                last_extent: None,
                read_end: 0,
                room_hint: 0,
            },
        )
    }

    /// Returns a new inode's bytes on disk: zeros.
    pub(crate) fn blank_inode_bytes(&self) -> Box<[u8]> {
        vec![0; self.geometry.inode_size].into_boxed_slice()
    }

    /// Returns an inode for changes by the running transaction.
    #[inline]
    pub(crate) fn inode_mut(&mut self, ino: Ino) -> Result<&mut Inode> {
        let slot = match self.inodes.touch(&ino) {
            Some(slot) => slot,
            None => self.load_inode(ino)?,
        };
        if self.inodes.at(slot).is_some_and(|inode| !inode.dirty) {
            // The table's block joins the transaction now, so that the transaction's size is known.
            let (block, _) = self.inode_place(ino)?;
            self.blocks.write(&self.io, block, Kind::Plain)?;
            self.dirty_inodes.push(ino);
        }
        let inode = self.inodes.at(slot).ok_or(Errno::Stale)?;
        inode.dirty = true;
        Ok(inode)
    }

    /// Writes changed inodes to their tables' blocks.
    pub(crate) fn store_inodes(&mut self) -> Result<()> {
        for ino in core::mem::take(&mut self.dirty_inodes) {
            self.store_inode(ino)?;
        }
        Ok(())
    }

    /// Writes an inode to its table's block if it changed.
    pub(crate) fn store_inode(&mut self, ino: Ino) -> Result<()> {
        let (block, offset) = self.inode_place(ino)?;
        let Some(inode) = self.inodes.get(&ino).filter(|inode| inode.dirty) else {
            return Ok(());
        };
        inode.dirty = false;
        let known = inode.known_size();
        let encoded = inode.raw.encode();
        if let (Some(place), Some(known)) = (inode.bytes.get_mut(..known), encoded.get(..known)) {
            place.copy_from_slice(known);
        }
        if self.geometry.has_checksums {
            inode::seal(self.geometry.seed, ino, &mut inode.bytes);
        }
        let table = self.blocks.write(&self.io, block, Kind::Plain)?;
        if let Some(place) = table.get_mut(offset..offset + inode.bytes.len()) {
            place.copy_from_slice(&inode.bytes);
        }
        Ok(())
    }
}

/// Decodes the fields that the inode has; those past `i_extra_isize` are not part of it.
fn decode(bytes: &[u8]) -> RawInode {
    let raw = RawInode::decode(bytes.get(..inode::GOOD_OLD_SIZE + 2).unwrap_or(bytes));
    let known = known_size(&raw, bytes.len());
    let mut decoded = RawInode::decode(bytes.get(..known).unwrap_or(bytes));
    decoded.extra_isize = raw.extra_isize;
    decoded
}
