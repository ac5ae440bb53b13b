//! Grows a filesystem that is not in use.
//!
//! Bitmaps and inode tables of new groups are not written, except the last block bitmap: flags mark
//! them as uninitialized (uninit_bg). Descriptors that do not fit in the old table go to the groups
//! that they describe (meta_bg), so nothing ever moves.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use crate::engine::Geometry;
use crate::error::{Error, Place};
use crate::format::features::{compat, incompat};
use crate::format::group::{
    BLOCK_UNINIT, GroupDescriptor, INODE_UNINIT, INODE_ZEROED, bitmap_checksum,
};
use crate::format::superblock::{MAGIC, SUPERBLOCK_OFFSET, Superblock};
use crate::placement::Placement;
use crate::{BlockDevice, DeviceError};
use micabox_file::narrow::{in_memory, saturate16, saturate32};

/// Minimum number of blocks beyond its metadata for which a shorter last group is kept.
const GROUP_REST_MIN: u64 = 50;

/// The reason why a filesystem can't grow.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResizeError {
    /// The filesystem is larger already.
    #[error("the filesystem has {have} bytes already; it can't become smaller")]
    Shrink {
        /// Its size in bytes.
        have: u64,
    },
    /// The filesystem is not in a state to be changed.
    #[error("the filesystem {0}")]
    NotReady(&'static str),
    /// Growing the filesystem needs a feature that this crate lacks.
    #[error("{0}; resize2fs can grow it")]
    Unsupported(&'static str),
    /// More groups than can be numbered, or more than 2^32 - 1 inodes.
    #[error("{0} bytes are more than this filesystem can have")]
    TooLarge(u64),
    /// The filesystem can't be read, or is inconsistent.
    #[error(transparent)]
    Filesystem(#[from] Error),
    /// The device failed.
    #[error("cannot resize the filesystem: {0}")]
    Device(#[from] DeviceError),
}

/// The properties of a filesystem that was resized.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resized {
    /// Block size in bytes.
    pub block_size: u32,
    /// Number of blocks before.
    pub blocks_before: u64,
    /// Number of blocks now.
    pub blocks: u64,
    /// Number of free blocks now.
    pub free_blocks: u64,
    /// Number of inodes now.
    pub inodes: u32,
}

/// Grows a filesystem to at most `size` bytes. The device must have that size. Flushes the device.
///
/// The superblock changes last. If the operation is interrupted before, the old filesystem is
/// intact; at worst e2fsck remarks on the padding of one bitmap.
///
/// # Errors
///
/// [`ResizeError`]; nothing was changed then, unless the device failed.
pub fn grow(device: &mut dyn BlockDevice, size: u64) -> Result<Resized, ResizeError> {
    let mut raw = [0; Superblock::SIZE];
    device.read_at(SUPERBLOCK_OFFSET, &mut raw)?;
    let old = Superblock::decode(&raw);
    let geometry = ready(&old, &raw, device.size()?)?;
    let blocks = size.min(device.size()?) / geometry.block_size as u64;
    if blocks < geometry.blocks_count {
        let have = geometry.blocks_count * geometry.block_size as u64;
        return Err(ResizeError::Shrink { have });
    }
    let new = larger(&old, &geometry, blocks).ok_or(ResizeError::TooLarge(size))?;
    let needs_room = descriptor_blocks(&new, &geometry) > descriptor_blocks(&old, &geometry);
    let more_backups =
        (u64::from(geometry.groups)..new.groups()).any(|group| new.has_backup(group));
    if (needs_room || more_backups) && old.has_compat(compat::RESIZE_INODE) {
        return Err(ResizeError::Unsupported(
            "the filesystem keeps descriptor blocks in reserve (resize_inode)",
        ));
    }
    let mut growth = Growth {
        old: &old,
        new,
        table: Vec::new(),
        geometry: &geometry,
        device,
    };
    growth.read_table()?;
    growth.extend_last_group()?;
    growth.add_groups()?;
    growth.write(&raw)
}

/// Checks that a filesystem can be changed at all.
fn ready(
    superblock: &Superblock,
    raw: &[u8; Superblock::SIZE],
    size: u64,
) -> Result<Geometry, ResizeError> {
    if superblock.magic != MAGIC {
        return Err(Error::NotExt4.into());
    }
    let geometry = Geometry::new(superblock, size)?;
    if superblock.has_checksums() && Superblock::checksum_of(raw) != superblock.checksum {
        return Err(Place::Superblock.corrupt("its checksum is wrong").into());
    }
    Geometry::writable(superblock)?;
    if superblock.has_incompat(incompat::RECOVER) || superblock.last_orphan != 0 {
        return Err(ResizeError::NotReady(
            "was not unmounted cleanly: open it for writing, or mount it, once",
        ));
    }
    if !superblock.has_group_checksums() {
        return Err(ResizeError::Unsupported(
            "the filesystem has no checksums of its groups",
        ));
    }
    Ok(geometry)
}

/// Returns the superblock of the larger filesystem, without its free counts.
fn larger(old: &Superblock, geometry: &Geometry, blocks: u64) -> Option<Superblock> {
    let mut new = old.clone();
    let mut blocks = blocks;
    loop {
        new.set_blocks_count(blocks);
        if new.blocks_count() != blocks {
            // Without 64bit the number does not fit.
            return None;
        }
        let groups = u32::try_from(new.groups()).ok()?;
        new.inodes_count = groups.checked_mul(geometry.inodes_per_group)?;
        if groups == geometry.groups {
            break;
        }
        if new.has_compat(compat::SPARSE_SUPER2) {
            name_backups(&mut new, old, geometry.groups, groups);
        }
        if descriptor_blocks(&new, geometry) > descriptor_blocks(old, geometry)
            && !old.has_incompat(incompat::META_BG)
        {
            new.feature_incompat |= incompat::META_BG;
            new.first_meta_bg = u32::try_from(descriptor_blocks(old, geometry)).ok()?;
        }
        let last = groups - 1;
        let start = geometry.group_start(last);
        let base =
            Placement::new(&new, geometry.block_size, geometry.descriptor_size).base(last.into());
        let metadata = base.end - base.start + 2 + table_blocks(geometry);
        if blocks - start >= metadata + GROUP_REST_MIN {
            break;
        }
        blocks = start;
    }
    let reserved = u128::from(old.reserved_blocks()) * u128::from(blocks)
        / u128::from(geometry.blocks_count.max(1));
    new.set_reserved_blocks(u64::try_from(reserved).unwrap_or(u64::MAX));
    Some(new)
}

/// Assigns backups to a filesystem with sparse_super2 that had too few groups for two backups.
fn name_backups(new: &mut Superblock, old: &Superblock, before: u32, groups: u32) {
    new.backup_groups = old.backup_groups;
    if new.backup_groups[0] == 0 && before == 1 {
        new.backup_groups[0] = 1;
    }
    if new.backup_groups[1] == 0 && before <= 2 && groups > 2 {
        new.backup_groups[1] = groups - 1;
    }
}

fn descriptor_blocks(superblock: &Superblock, geometry: &Geometry) -> u64 {
    let per_block = geometry.block_size / geometry.descriptor_size;
    superblock.groups().div_ceil(per_block as u64)
}

fn table_blocks(geometry: &Geometry) -> u64 {
    geometry.blocks_for(u64::from(geometry.inodes_per_group) * geometry.inode_size as u64)
}

struct Growth<'g> {
    old: &'g Superblock,
    new: Superblock,
    /// All descriptors, old and new, in whole blocks.
    table: Vec<u8>,
    geometry: &'g Geometry,
    device: &'g mut dyn BlockDevice,
}

impl Growth<'_> {
    fn placement<'s>(&self, superblock: &'s Superblock) -> Placement<'s> {
        Placement::new(
            superblock,
            self.geometry.block_size,
            self.geometry.descriptor_size,
        )
    }

    fn offset(&self, block: u64) -> u64 {
        block << self.geometry.block_bits
    }

    fn read_table(&mut self) -> Result<(), ResizeError> {
        let block_size = self.geometry.block_size;
        let length = in_memory(descriptor_blocks(&self.new, self.geometry)) * block_size;
        let mut table = vec![0; length];
        let count = descriptor_blocks(self.old, self.geometry);
        for (index, block) in (0..count).zip(table.chunks_exact_mut(block_size)) {
            let place = self.placement(self.old).descriptor_block(index);
            self.device.read_at(self.offset(place), block)?;
        }
        let size = self.geometry.descriptor_size;
        for (group, bytes) in (0..self.geometry.groups).zip(table.chunks_exact(size)) {
            let descriptor = GroupDescriptor::decode(bytes);
            if descriptor.checksum != GroupDescriptor::checksum_of(self.old, group, bytes) {
                let problem = "the descriptor's checksum is wrong";
                return Err(Place::Group(group).corrupt(problem).into());
            }
        }
        self.table = table;
        Ok(())
    }

    /// Changes a group's descriptor.
    fn set_descriptor(&mut self, group: u32, descriptor: &GroupDescriptor) {
        let size = self.geometry.descriptor_size;
        let start = group as usize * size;
        if let Some(bytes) = self.table.get_mut(start..start + size) {
            descriptor.seal_into(&self.new, group, bytes);
        }
    }

    fn descriptor(&self, group: u32) -> GroupDescriptor {
        let start = group as usize * self.geometry.descriptor_size;
        let bytes = self.table.get(start..).unwrap_or_default();
        let length = self.geometry.descriptor_size.min(bytes.len());
        GroupDescriptor::decode(bytes.get(..length).unwrap_or_default())
    }

    /// Returns the number of blocks of a group of the larger filesystem.
    fn group_blocks(&self, group: u32) -> u64 {
        let start = self.geometry.group_start(group);
        let rest = self.new.blocks_count().saturating_sub(start);
        rest.min(self.geometry.blocks_per_group.into())
    }

    /// Extends the last group of the old filesystem: padding of its bitmap becomes free blocks.
    fn extend_last_group(&mut self) -> Result<(), ResizeError> {
        let group = self.geometry.groups - 1;
        let before = u64::from(self.geometry.group_blocks(group));
        let after = self.group_blocks(group);
        if after <= before {
            return Ok(());
        }
        let mut descriptor = self.descriptor(group);
        let free = u64::from(descriptor.free_blocks()) + after - before;
        descriptor.set_free_blocks(saturate32(free));
        if descriptor.flags & BLOCK_UNINIT == 0 {
            let offset = self.offset(descriptor.block_bitmap());
            let mut bitmap = vec![0; self.geometry.block_size];
            self.device.read_at(offset, &mut bitmap)?;
            clear(&mut bitmap, before..after);
            let meant = self.geometry.blocks_per_group as usize / 8;
            let checksum = bitmap_checksum(&self.new, bitmap.get(..meant).unwrap_or(&bitmap));
            descriptor.set_block_bitmap_checksum(checksum);
            self.device.write_at(offset, &bitmap)?;
        }
        self.set_descriptor(group, &descriptor);
        Ok(())
    }

    /// Adds groups that are free except for their own metadata.
    fn add_groups(&mut self) -> Result<(), ResizeError> {
        let groups = saturate32(self.new.groups());
        for group in self.geometry.groups..groups {
            let start = self.geometry.group_start(group);
            let base = self.placement(&self.new).base(group.into());
            let tables = base.end.max(start);
            let length = table_blocks(self.geometry);
            let taken = tables + 2 + length - start;
            let blocks = self.group_blocks(group);
            let mut descriptor = GroupDescriptor::default();
            descriptor.set_block_bitmap(tables);
            descriptor.set_inode_bitmap(tables + 1);
            descriptor.set_inode_table(tables + 2);
            descriptor.set_free_blocks(saturate32(blocks - taken));
            descriptor.set_free_inodes(self.geometry.inodes_per_group);
            descriptor.set_unused_inodes(self.geometry.inodes_per_group);
            descriptor.flags = INODE_UNINIT;
            let table = self.offset(tables + 2);
            if self
                .device
                .is_hole(table, length << self.geometry.block_bits)
            {
                // The kernel need not clear the table after a mount.
                descriptor.flags |= INODE_ZEROED;
            }
            if group + 1 < groups {
                descriptor.flags |= BLOCK_UNINIT;
            } else {
                let bitmap = self.last_bitmap(taken, blocks);
                let meant = self.geometry.blocks_per_group as usize / 8;
                let checksum = bitmap_checksum(&self.new, bitmap.get(..meant).unwrap_or(&bitmap));
                descriptor.set_block_bitmap_checksum(checksum);
                self.device.write_at(self.offset(tables), &bitmap)?;
            }
            self.set_descriptor(group, &descriptor);
        }
        Ok(())
    }

    /// Builds the block bitmap of the last group: metadata, free blocks, and padding after the end.
    fn last_bitmap(&self, taken: u64, blocks: u64) -> Vec<u8> {
        let mut bitmap = vec![0xff; self.geometry.block_size];
        clear(&mut bitmap, taken..blocks);
        bitmap
    }

    /// Writes descriptors and superblocks, those of the old filesystem last.
    fn write(mut self, raw: &[u8; Superblock::SIZE]) -> Result<Resized, ResizeError> {
        let groups = saturate32(self.new.groups());
        let each = (0..groups).map(|group| self.descriptor(group));
        let (free_blocks, free_inodes) = each.fold((0, 0_u32), |(blocks, inodes), descriptor| {
            let more = u64::from(descriptor.free_blocks());
            (
                blocks + more,
                inodes.saturating_add(descriptor.free_inodes()),
            )
        });
        if self.new.overhead_clusters != 0 {
            let more = (self.new.blocks_count() - self.old.blocks_count())
                .saturating_sub(free_blocks.saturating_sub(self.old.free_blocks()));
            self.new.overhead_clusters =
                self.new.overhead_clusters.saturating_add(saturate32(more));
        }
        self.new.set_free_blocks(free_blocks);
        self.new.free_inodes = free_inodes;

        let table = core::mem::take(&mut self.table);
        let old_blocks = descriptor_blocks(self.old, self.geometry);
        let blocks: Vec<_> = (0..)
            .zip(table.chunks_exact(self.geometry.block_size))
            .collect();
        for (index, block) in blocks.iter().filter(|(index, _)| *index >= old_blocks) {
            self.write_descriptors(*index, block, 0)?;
        }
        self.write_superblock(raw, self.geometry.groups..groups)?;
        self.device.flush()?;
        for (index, block) in blocks.iter().filter(|(index, _)| *index < old_blocks) {
            self.write_descriptors(*index, block, 1)?;
        }
        self.write_superblock(raw, 1..self.geometry.groups)?;
        self.device.flush()?;
        for (index, block) in blocks.iter().filter(|(index, _)| *index < old_blocks) {
            let place = self.placement(&self.new).descriptor_block(*index);
            self.device.write_at(self.offset(place), block)?;
        }
        self.write_superblock(raw, 0..1)?;
        self.device.flush()?;
        Ok(Resized {
            block_size: saturate32(self.geometry.block_size),
            blocks_before: self.old.blocks_count(),
            blocks: self.new.blocks_count(),
            free_blocks,
            inodes: self.new.inodes_count,
        })
    }

    /// Writes the copies of a block of descriptors except the first `skip`.
    fn write_descriptors(
        &mut self,
        index: u64,
        block: &[u8],
        skip: usize,
    ) -> Result<(), ResizeError> {
        let copies: Vec<u64> = self
            .placement(&self.new)
            .descriptor_copies(index)
            .skip(skip)
            .collect();
        for place in copies {
            self.device.write_at(self.offset(place), block)?;
        }
        Ok(())
    }

    /// Writes the superblock to those of `groups` that have a copy.
    fn write_superblock(
        &mut self,
        raw: &[u8; Superblock::SIZE],
        groups: Range<u32>,
    ) -> Result<(), ResizeError> {
        for group in groups.filter(|&group| self.new.has_backup(group.into())) {
            let mut bytes = *raw;
            let mut superblock = self.new.clone();
            superblock.block_group = saturate16(group);
            superblock.seal_into(&mut bytes);
            let offset = match group {
                0 => SUPERBLOCK_OFFSET,
                _ => self.offset(self.geometry.group_start(group)),
            };
            self.device.write_at(offset, &bytes)?;
        }
        Ok(())
    }
}

fn clear(bitmap: &mut [u8], bits: Range<u64>) {
    for bit in bits {
        if let Some(byte) = bitmap.get_mut((bit / 8) as usize) {
            *byte &= !(1 << (bit % 8));
        }
    }
}
