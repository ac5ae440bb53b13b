//! Opens and closes filesystems.

use alloc::vec;
use alloc::vec::Vec;

use super::commit::Transaction;
use super::{Access, Ext4, Geometry, Group, Io, Options};
use crate::cache::{Blocks, Kind, Lru, Pages};
use crate::device::BlockDevice;
use crate::error::{Errno, Error, Place, Result};
use crate::format::features::{compat, incompat};
use crate::format::group::GroupDescriptor;
use crate::format::superblock::{self, SUPERBLOCK_OFFSET, Superblock};
use micabox_file::narrow::{in_memory, saturate32};

impl<D: BlockDevice> Ext4<D> {
    /// Opens a filesystem for reading and writing. As when Linux mounts it, a journal that was left
    /// behind is replayed to the device, inodes that were deleted while open are cleaned up, and
    /// the superblock's free counts become the sums over all groups.
    ///
    /// # Errors
    ///
    /// If there is no filesystem, it uses features that can't be written, it is marked as having
    /// errors (unless [`Options::despite_errors`]), or the device fails or rejects writes.
    pub fn open(device: D, options: Options) -> Result<Self> {
        if device.is_read_only() {
            return Err(Errno::ReadOnly.into());
        }
        let mut filesystem = Self::start(device, options, Access::Write)?;
        filesystem.open_journal()?;
        filesystem.refuse_errors()?;
        if filesystem.has_errors() {
            // Linux does not trust the list then, either. A check finds the owners of those blocks.
            filesystem.superblock.last_orphan = 0;
            filesystem.transaction.superblock = true;
        }
        filesystem.clean_up_orphans()?;
        filesystem.recount();
        Ok(filesystem)
    }

    /// Opens a filesystem for reading. Nothing is written; a journal that was left behind is
    /// applied in memory.
    ///
    /// # Errors
    ///
    /// If there is no filesystem, it uses features that can't be read, or the device fails.
    pub fn open_read_only(device: D, options: Options) -> Result<Self> {
        Self::start(device, options, Access::Read)
    }

    fn start(device: D, options: Options, access: Access) -> Result<Self> {
        let device_size = device.size()?;
        let superblock = read_superblock(&device)?;
        let geometry = Geometry::new(&superblock, device_size)?;
        if access == Access::Write {
            Geometry::writable(&superblock)?;
        }
        let block_size = geometry.block_size;
        let seed = geometry.has_checksums.then_some(geometry.seed);
        let io = Io::new(device, block_size, geometry.blocks_count);
        let mut filesystem = Self {
            io,
            blocks: Blocks::new(block_size, options.block_cache / block_size, seed),
            pages: Pages::new(block_size, options.page_cache),
            inodes: Lru::default(),
            dirty_inodes: Vec::new(),
            names: Lru::default(),
            groups: Vec::new(),
            dirty_groups: Vec::new(),
            journal: None,
            transaction: Transaction::default(),
            orphans: super::orphan_list::OrphanList::default(),
            directory_blocks: super::budget::DirectoryBlocks::default(),
            free_blocks: 0,
            free_inodes: 0,
            reserved: 0,
            generation: superblock.hash_seed[0] ^ superblock.write_time,
            access,
            superblock,
            geometry,
            options,
        };
        if access == Access::Write {
            filesystem.refuse_errors()?;
        }
        let dirty = filesystem.superblock.has_compat(compat::HAS_JOURNAL)
            && filesystem.superblock.has_incompat(incompat::RECOVER);
        filesystem.load_groups(!dirty)?;
        if dirty {
            filesystem.replay(access == Access::Write)?;
            // The journal may have changed anything that was read so far.
            filesystem.blocks.clear();
            filesystem.inodes.clear();
            filesystem.reload_superblock()?;
            if access == Access::Write {
                Geometry::writable(&filesystem.superblock)?;
            }
            filesystem.geometry = Geometry::new(&filesystem.superblock, device_size)?;
            filesystem.load_groups(true)?;
        }
        Ok(filesystem)
    }

    fn reload_superblock(&mut self) -> Result<()> {
        let (block, offset) = self.superblock_place();
        let bytes = self.blocks.read(&self.io, block, Kind::Plain)?;
        let replayed = decode_superblock(bytes.get(offset..).unwrap_or_default())?;
        let before = core::mem::replace(&mut self.superblock, replayed);
        self.superblock.keep_errors_of(&before);
        Ok(())
    }

    /// Refuses writing to a filesystem marked as having errors, unless the options allow it.
    pub(crate) fn refuse_errors(&self) -> Result<()> {
        if self.has_errors() && !self.options.despite_errors {
            return Err(Error::MarkedDamaged);
        }
        Ok(())
    }

    /// Marks the superblock as changed if its free counts are stale: running kernels update only
    /// those of the groups, so after a crash the superblock's are old.
    fn recount(&mut self) {
        if self.superblock.free_blocks() != self.free_blocks
            || self.superblock.free_inodes != self.free_inodes
        {
            self.transaction.superblock = true;
        }
    }

    /// Whether the filesystem is marked as having errors: a kernel found some, or could not write,
    /// and stopped. The contents can be read, but may be incomplete; `e2fsck` repairs them, and
    /// [`crate::check::clear_errors`] removes the mark if nothing is wrong.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.superblock.has_errors()
    }

    /// Returns the block with the superblock, and the offset in the block.
    pub(crate) fn superblock_place(&self) -> (u64, usize) {
        let block_size = self.geometry.block_size as u64;
        (
            SUPERBLOCK_OFFSET / block_size,
            in_memory(SUPERBLOCK_OFFSET % block_size),
        )
    }

    /// Reads the group descriptors; `verify` checks their checksums and positions.
    fn load_groups(&mut self, verify: bool) -> Result<()> {
        let size = self.geometry.descriptor_size;
        let per_block = saturate32(self.geometry.block_size / size);
        let mut groups = Vec::new();
        let (mut free_blocks, mut free_inodes) = (0u64, 0u32);
        let mut block = vec![0; self.geometry.block_size];
        for index in 0..self.geometry.groups.div_ceil(per_block) {
            let place = descriptor_block(&self.geometry, &self.superblock, index)?;
            self.io.read_blocks(place, &mut block)?;
            for (bytes, number) in block
                .chunks_exact(size)
                .zip(index * per_block..self.geometry.groups)
            {
                let descriptor = GroupDescriptor::decode(bytes);
                if verify {
                    let checksum = GroupDescriptor::checksum_of(&self.superblock, number, bytes);
                    if checksum != descriptor.checksum && self.superblock.has_group_checksums() {
                        return Err(
                            Place::Group(number).corrupt("the descriptor's checksum is wrong")
                        );
                    }
                    self.check_descriptor(number, &descriptor)?;
                }
                free_blocks = free_blocks.saturating_add(descriptor.free_blocks().into());
                free_inodes = free_inodes.saturating_add(descriptor.free_inodes());
                groups.push(Group {
                    descriptor,
                    dirty: false,
                    blocks: None,
                    inodes: None,
                    longest_run: u32::MAX,
                    cursor: 0,
                });
            }
        }
        self.groups = groups;
        self.free_blocks = free_blocks;
        self.free_inodes = free_inodes;
        Ok(())
    }

    fn check_descriptor(&self, number: u32, descriptor: &GroupDescriptor) -> Result<()> {
        let table = u64::from(self.geometry.inodes_per_group) * self.geometry.inode_size as u64;
        for (first, count) in [
            (descriptor.block_bitmap(), 1),
            (descriptor.inode_bitmap(), 1),
            (descriptor.inode_table(), self.geometry.blocks_for(table)),
        ] {
            let end = first.checked_add(count);
            if first <= self.geometry.first_data_block
                || end.is_none_or(|end| end > self.geometry.blocks_count)
            {
                return Err(Place::Group(number)
                    .corrupt("bitmaps or inode table are not on the filesystem"));
            }
        }
        if descriptor.free_blocks() > self.geometry.group_blocks(number)
            || descriptor.free_inodes() > self.geometry.inodes_per_group
            || descriptor.unused_inodes() > self.geometry.inodes_per_group
        {
            return Err(Place::Group(number).corrupt("more is free than there is"));
        }
        Ok(())
    }

    /// Makes everything durable, leaves the filesystem as after a clean unmount, and returns the
    /// device.
    ///
    /// # Errors
    ///
    /// Those of [`Ext4::sync`].
    pub fn close(mut self) -> Result<D> {
        if self.access != Access::Read {
            self.sync()?;
            self.checkpoint()?;
            self.mark_clean()?;
        }
        Ok(self.io.device)
    }

    /// Returns the device without writing unsynced changes to it, as after a crash.
    pub fn abandon(self) -> D {
        self.io.device
    }

    /// Returns the device.
    pub fn device(&self) -> &D {
        &self.io.device
    }

    /// Prepares an operation that changes something: checks that this is allowed, and makes room in
    /// the running transaction and in the caches.
    pub(crate) fn begin(&mut self) -> Result<()> {
        match self.access {
            Access::Read => return Err(Errno::ReadOnly.into()),
            Access::Stopped => return Err(Error::Stopped),
            Access::Write => {}
        }
        if self.transaction_is_full() {
            self.commit()?;
        }
        if self.pages.dirty_bytes() > self.pages.bound() / 2 {
            self.write_back_pages()?;
        }
        if self.pages.is_over_bound() {
            self.pages.shrink();
        }
        Ok(())
    }
}

fn read_superblock<D: BlockDevice>(device: &D) -> Result<Superblock> {
    if device.size()? < SUPERBLOCK_OFFSET + Superblock::SIZE as u64 {
        return Err(Error::NotExt4);
    }
    let mut bytes = [0; Superblock::SIZE];
    device.read_at(SUPERBLOCK_OFFSET, &mut bytes)?;
    decode_superblock(&bytes)
}

fn decode_superblock(bytes: &[u8]) -> Result<Superblock> {
    let superblock = Superblock::decode(bytes);
    if superblock.magic != superblock::MAGIC {
        return Err(Error::NotExt4);
    }
    if superblock.has_checksums() {
        let bytes = bytes.first_chunk().ok_or(Error::NotExt4)?;
        if Superblock::checksum_of(bytes) != superblock.checksum {
            return Err(Place::Superblock.corrupt("the checksum is wrong"));
        }
    }
    Ok(superblock)
}

/// Returns the block with the `index`th block's worth of group descriptors: after the superblock,
/// or with meta_bg at the start of the groups that they describe.
pub(crate) fn descriptor_block(
    geometry: &Geometry,
    superblock: &Superblock,
    index: u32,
) -> Result<u64> {
    if !superblock.has_incompat(incompat::META_BG) || index < superblock.first_meta_bg {
        return Ok(SUPERBLOCK_OFFSET / geometry.block_size as u64 + 1 + u64::from(index));
    }
    let per_block = (geometry.block_size / geometry.descriptor_size) as u64;
    let group = u64::from(index) * per_block;
    let number = u32::try_from(group)
        .ok()
        .filter(|&group| group < geometry.groups)
        .ok_or(Place::Superblock.corrupt("group descriptors are past the end"))?;
    Ok(geometry.group_start(number) + u64::from(superblock.has_backup(group)))
}
