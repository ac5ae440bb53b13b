//! Tracks inodes without names, or half truncated, so that a crash does not lose them.
//!
//! Orphans form a list through `i_dtime`, whose head is in the superblock. Filesystems with
//! orphan_file have theirs in a file; orphans in that file are cleaned up, and new ones go to the
//! list, which is valid as well.

use alloc::vec::Vec;

use super::{Ext4, Ino};
use crate::cache::Kind;
use crate::device::BlockDevice;
use crate::error::{Errno, Place, Result};
use crate::format::features::{compat, ro_compat};
use crate::format::{fields, orphan};

impl<D: BlockDevice> Ext4<D> {
    /// Keeps an inode from being freed while it has no names, as an open file does. Every call must
    /// be paired with a call of [`Ext4::release`].
    ///
    /// # Errors
    ///
    /// [`Errno::Stale`] if the inode is not in use, and damage.
    pub fn hold(&mut self, ino: Ino) -> Result<()> {
        self.inode(ino)?.opens += 1;
        Ok(())
    }

    /// Undoes one [`Ext4::hold`]. The last call frees an inode without names.
    ///
    /// # Errors
    ///
    /// [`Errno::Invalid`] if the inode is not held, and damage.
    pub fn release(&mut self, ino: Ino) -> Result<()> {
        let inode = self.inode(ino)?;
        inode.opens = inode.opens.checked_sub(1).ok_or(Errno::Invalid)?;
        if inode.opens == 0 && inode.raw.links_count == 0 {
            self.begin()?;
            let result = self.evict(ino);
            return self.stop_on(result);
        }
        Ok(())
    }

    pub(crate) fn add_orphan(&mut self, ino: Ino) -> Result<()> {
        self.inode_mut(ino)?.raw.dtime = self.orphans.newest();
        self.orphans.push(ino);
        self.transaction.superblock = true;
        Ok(())
    }

    pub(crate) fn remove_orphan(&mut self, ino: Ino) -> Result<()> {
        let Some(gone) = self.orphans.remove(ino) else {
            return Ok(());
        };
        if gone.newer != 0 {
            self.inode_mut(gone.newer)?.raw.dtime = gone.older;
        }
        self.inode_mut(ino)?.raw.dtime = 0;
        self.transaction.superblock = true;
        Ok(())
    }

    /// Completes deletions and truncations that were pending when the filesystem was last written.
    pub(crate) fn clean_up_orphans(&mut self) -> Result<()> {
        let mut chain: Vec<Ino> = Vec::new();
        let mut next = self.superblock.last_orphan;
        while next != 0 {
            self.check_orphan(next)?;
            // An inode that is known as an orphan may be loaded without names.
            if !self.orphans.push_oldest(next) {
                return Err(Place::Inode(next).corrupt("the list of orphans goes in circles"));
            }
            chain.push(next);
            next = self.inode(next)?.raw.dtime;
        }
        for ino in chain {
            self.clean_up(ino)?;
            self.begin()?;
        }
        self.clean_up_orphan_file()
    }

    /// Rejects orphans that Linux rejects as well: the root's inode and the filesystem's own are
    /// never deleted or truncated.
    fn check_orphan(&self, ino: Ino) -> Result<()> {
        if (self.geometry.first_inode..=self.geometry.inodes_count).contains(&ino) {
            return Ok(());
        }
        Err(Place::Inode(ino).corrupt("a reserved inode is in the list of orphans"))
    }

    fn clean_up(&mut self, ino: Ino) -> Result<()> {
        let result = self.clean_up_one(ino);
        self.stop_on(result)
    }

    fn clean_up_one(&mut self, ino: Ino) -> Result<()> {
        let inode = self.inode(ino)?;
        if inode.raw.links_count == 0 {
            return self.evict(ino);
        }
        let size = inode.raw.size();
        if inode.is(crate::format::inode::S_IFREG) {
            self.make_extents(ino)?;
            let from = self.geometry.blocks_for(size);
            self.cut_blocks(ino, u32::try_from(from).map_err(|_| Errno::FileTooLarge)?)?;
        }
        self.remove_orphan(ino)
    }

    fn clean_up_orphan_file(&mut self) -> Result<()> {
        if !self.superblock.has_compat(compat::ORPHAN_FILE)
            || !self.superblock.has_ro_compat(ro_compat::ORPHAN_PRESENT)
        {
            return Ok(());
        }
        let file = self.superblock.orphan_file_inode;
        let seed = self.inode(file)?.seed;
        let size = self.inode(file)?.raw.size();
        let blocks = u32::try_from(self.geometry.blocks_for(size))
            .ok()
            .filter(|&blocks| u64::from(blocks) <= self.geometry.blocks_count)
            .ok_or(Place::Inode(file).corrupt("the orphan file is larger than the filesystem"))?;
        for logical in 0..blocks {
            let number = self.map_block(file, logical)?;
            let block = self.blocks.read(&self.io, number, Kind::Plain)?.to_vec();
            let slots = block.len().saturating_sub(orphan::TAIL_SIZE);
            if fields::get::<u32>(&block, slots) != orphan::MAGIC
                || (self.geometry.has_checksums
                    && orphan::checksum_of(seed, number, &block)
                        != fields::get::<u32>(&block, slots + 4))
            {
                return Err(Place::Block(number).corrupt("not a block of the orphan file"));
            }
            let listed = block.get(..slots).unwrap_or_default().chunks_exact(4);
            for ino in listed
                .map(|slot| fields::get::<u32>(slot, 0))
                .filter(|&ino| ino != 0)
            {
                self.check_orphan(ino)?;
                if !self.orphans.contains(ino) {
                    self.orphans.push(ino);
                    self.clean_up(ino)?;
                }
            }
            let block = self.blocks.write(&self.io, number, Kind::Plain)?;
            if let Some(slots) = block.get_mut(..slots) {
                slots.fill(0);
            }
            if self.geometry.has_checksums {
                let checksum = orphan::checksum_of(seed, number, block);
                fields::put(block, slots + 4, checksum);
            }
        }
        self.superblock.feature_ro_compat &= !ro_compat::ORPHAN_PRESENT;
        self.transaction.superblock = true;
        self.commit()
    }
}
