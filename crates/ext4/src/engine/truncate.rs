//! Changes sizes of files, and frees inodes.

use super::read::mask;
use super::{Ext4, Ino};
use crate::device::BlockDevice;
use crate::error::{Errno, Result};
use crate::format::inode::{self, flags};
use micabox_file::narrow::in_memory;

impl<D: BlockDevice> Ext4<D> {
    /// Sets the length of a file to `size` bytes: cuts it, or adds a hole.
    ///
    /// # Errors
    ///
    /// [`Errno::FileTooLarge`], [`Errno::IsADirectory`], [`Errno::Invalid`] if the inode is not a
    /// file, [`Errno::NotPermitted`] for an immutable file, and damage.
    pub fn truncate(&mut self, ino: Ino, size: u64) -> Result<()> {
        self.begin()?;
        self.writable_file(ino)?;
        if size > self.geometry.max_file_size() {
            return Err(Errno::FileTooLarge.into());
        }
        self.make_room(16)?;
        let result = self.resize_file(ino, size);
        self.stop_on(result)
    }

    fn resize_file(&mut self, ino: Ino, size: u64) -> Result<()> {
        self.make_extents(ino)?;
        let old = self.inode(ino)?.raw.size();
        if size >= old {
            self.zero_to_block_end(ino, old)?;
            self.inode_mut(ino)?.raw.set_size(size);
            return self.touch(ino);
        }
        self.forget_pages(ino, size);
        self.zero_to_block_end(ino, size)?;
        self.inode_mut(ino)?.raw.set_size(size);
        self.touch(ino)?;
        let from = self.geometry.blocks_for(size);
        self.cut_blocks(ino, u32::try_from(from).map_err(|_| Errno::FileTooLarge)?)
    }

    /// Drops the cached blocks of a file that lie entirely at or past `size`.
    pub(crate) fn forget_pages(&mut self, ino: Ino, size: u64) {
        let chunk_size = self.pages.chunk_size() as u64;
        let first = in_memory(self.geometry.blocks_for(size % chunk_size));
        let Ok(number) = u32::try_from(size / chunk_size) else {
            return;
        };
        for key in self.pages.keys_from(ino, number) {
            let freed = if key.1 == number && first > 0 {
                let per_chunk = in_memory(chunk_size >> self.geometry.block_bits);
                if first >= per_chunk {
                    0
                } else {
                    self.pages.forget_blocks(key, mask(first, 63))
                }
            } else {
                self.pages.remove(key)
            };
            self.reserved = self.reserved.saturating_sub(freed.into());
        }
    }

    /// Frees all blocks from number `from` on. If they do not fit in one transaction, several are
    /// used, with the inode in the list of orphans, so that a crash does not leave the work half
    /// done.
    pub(crate) fn cut_blocks(&mut self, ino: Ino, from: u32) -> Result<()> {
        self.remove_range(ino, from, 1 << 32)
    }

    /// Frees the blocks from `from` up to `to` (exclusive).
    pub(crate) fn remove_range(&mut self, ino: Ino, from: u32, to: u64) -> Result<()> {
        if self.remove_extents(ino, from, to)? {
            return Ok(());
        }
        // A range in the middle of a file may stay partly punched: the file's size does not depend
        // on it.
        let ends_file = to > u64::from(u32::MAX);
        let is_orphan = self.orphans.contains(ino);
        if ends_file && !is_orphan {
            self.add_orphan(ino)?;
        }
        loop {
            self.commit()?;
            if self.remove_extents(ino, from, to)? {
                break;
            }
        }
        if ends_file && !is_orphan {
            self.remove_orphan(ino)?;
        }
        Ok(())
    }

    /// Frees an inode that has no names and is not held.
    pub(crate) fn evict(&mut self, ino: Ino) -> Result<()> {
        self.forget_pages(ino, 0);
        let inode = self.inode(ino)?;
        let has_blocks = inode.is(inode::S_IFREG)
            || inode.is(inode::S_IFDIR)
            || (inode.is(inode::S_IFLNK) && (inode.has(flags::EXTENTS) || inode.raw.size() >= 60));
        if has_blocks && !inode.has(flags::INLINE_DATA) {
            if inode.is(inode::S_IFDIR) {
                self.revoke_directory(ino)?;
            }
            self.make_extents(ino)?;
            self.cut_blocks(ino, 0)?;
        }
        self.drop_attributes(ino)?;
        if self.orphans.contains(ino) {
            self.remove_orphan(ino)?;
        }
        self.free_inode(ino)
    }

    /// Revokes a directory's blocks: they are metadata, so older copies must not be replayed.
    fn revoke_directory(&mut self, ino: Ino) -> Result<()> {
        let mut logical = 0;
        while let Some((block, _)) = self.directory_block(ino, &mut logical)? {
            if self.blocks.forget(block) {
                self.transaction.revoked.insert(block);
            }
        }
        Ok(())
    }
}
