//! Allocates inodes, lowest number first, so that tables fill from the front.

use super::bitmap::{Bits, InodeBitmap};
use super::{Ext4, Ino};
use crate::cache::Kind;
use crate::device::BlockDevice;
use crate::error::{Errno, Place, Result};
use crate::format::extent;
use crate::format::group::{self, INODE_UNINIT, INODE_ZEROED};
use crate::format::inode::{self, RawInode, flags};
use micabox_file::narrow::{low32, saturate16, saturate32};

use super::allocate::same_checksum;

/// The properties of a new inode.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewInode {
    /// Type and permissions.
    pub(crate) mode: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl<D: BlockDevice> Ext4<D> {
    fn load_inode_bitmap(&mut self, number: u32) -> Result<()> {
        let group = self.group(number)?;
        if group.inodes.is_some() {
            return Ok(());
        }
        let descriptor = group.descriptor.clone();
        let length = self.geometry.inodes_per_group;
        let used = if self.superblock.has_group_checksums() && descriptor.flags & INODE_UNINIT != 0
        {
            Bits::zeros(length)
        } else {
            let bytes = self
                .blocks
                .read(&self.io, descriptor.inode_bitmap(), Kind::Plain)?;
            if self.geometry.has_checksums {
                let meaning = length as usize / 8;
                let checksum =
                    group::bitmap_checksum(&self.superblock, bytes.get(..meaning).unwrap_or(bytes));
                if !same_checksum(
                    checksum,
                    descriptor.inode_bitmap_checksum(),
                    self.geometry.descriptor_size,
                ) {
                    return Err(
                        Place::Group(number).corrupt("the inode bitmap's checksum is wrong")
                    );
                }
            }
            Bits::from_bytes(bytes, length)
        };
        self.group_mut(number)?.inodes = Some(InodeBitmap { used, hint: 0 });
        Ok(())
    }

    /// Allocates an inode near `parent` and initializes it: empty and without names.
    pub(crate) fn allocate_inode(&mut self, parent: Ino, new: NewInode) -> Result<Ino> {
        let home = self
            .geometry
            .inode_group(parent)
            .map_or(0, |(group, _)| group);
        for step in 0..self.geometry.groups {
            let number =
                saturate32((u64::from(home) + u64::from(step)) % u64::from(self.geometry.groups));
            if self.group(number)?.descriptor.free_inodes() == 0 {
                continue;
            }
            self.load_inode_bitmap(number)?;
            let group = self.group_mut(number)?;
            let Some(inodes) = &mut group.inodes else {
                continue;
            };
            let Some(index) = inodes.used.next_zero(inodes.hint) else {
                continue;
            };
            let ino = number * self.geometry.inodes_per_group + index + 1;
            if ino < self.geometry.first_inode && ino != super::ROOT {
                return Err(Place::Group(number).corrupt("a reserved inode is free"));
            }
            self.take_inode(number, index, new.mode)?;
            self.make_inode(ino, new)?;
            return Ok(ino);
        }
        Err(Errno::NoSpace.into())
    }

    fn take_inode(&mut self, number: u32, index: u32, mode: u16) -> Result<()> {
        let has_unused = self.superblock.has_group_checksums();
        let per_group = self.geometry.inodes_per_group;
        let inode_size = self.geometry.inode_size as u64;
        let block_bits = self.geometry.block_bits;
        let group = self.dirty_group(number)?;
        if let Some(inodes) = &mut group.inodes {
            inodes.used.set(index, 1);
            inodes.hint = index + 1;
        }
        let descriptor = &mut group.descriptor;
        descriptor.set_free_inodes(descriptor.free_inodes().saturating_sub(1));
        if mode & inode::S_IFMT == inode::S_IFDIR {
            descriptor.set_directories(descriptor.directories().saturating_add(1));
        }
        if has_unused {
            if descriptor.flags & INODE_UNINIT != 0 {
                descriptor.flags &= !INODE_UNINIT;
                descriptor.set_unused_inodes(per_group);
            }
            let used = per_group.saturating_sub(descriptor.unused_inodes());
            if index >= used {
                descriptor.set_unused_inodes(per_group - index - 1);
                if descriptor.flags & INODE_ZEROED == 0 {
                    // This part of the table was never written.
                    let table = descriptor.inode_table();
                    let from = (u64::from(used) * inode_size).div_ceil(1 << block_bits);
                    let to = (u64::from(index) * inode_size) >> block_bits;
                    for block in from..=to {
                        self.blocks.fresh(table + block, Kind::Plain)?;
                    }
                }
            }
        }
        self.free_inodes = self.free_inodes.saturating_sub(1);
        Ok(())
    }

    fn make_inode(&mut self, ino: Ino, new: NewInode) -> Result<()> {
        self.generation = {
            // xorshift: any number that differs from that of the last use will do.
            let mut x = self.generation | 1;
            x ^= x << 13;
            x ^= x >> 17;
            x ^ (x << 5)
        };
        let (time, extra) = self.geometry.encode_time(self.now());
        let room = saturate16(
            self.geometry
                .inode_size
                .saturating_sub(inode::GOOD_OLD_SIZE),
        );
        let extra_isize = self
            .superblock
            .want_extra_isize
            .max(self.superblock.min_extra_isize);
        let extra_isize = if extra_isize == 0 {
            inode::EXTRA_ISIZE
        } else {
            extra_isize
        };
        let mut raw = RawInode {
            mode: new.mode,
            atime: time,
            ctime: time,
            mtime: time,
            crtime: time,
            atime_extra: extra,
            ctime_extra: extra,
            mtime_extra: extra,
            crtime_extra: extra,
            generation: self.generation,
            extra_isize: extra_isize.min(room) & !3,
            ..RawInode::default()
        };
        raw.set_uid(new.uid);
        raw.set_gid(new.gid);
        if matches!(
            new.mode & inode::S_IFMT,
            inode::S_IFREG | inode::S_IFDIR | inode::S_IFLNK
        ) {
            raw.flags = flags::EXTENTS;
            let root = extent::Header {
                magic: extent::MAGIC,
                max: extent::ROOT_ENTRIES,
                ..extent::Header::default()
            };
            root.encode_into(&mut raw.block);
        }
        let bytes = self.blank_inode_bytes();
        self.cache_inode(ino, raw, bytes);
        self.inode_mut(ino)?;
        Ok(())
    }

    /// Frees an inode that has neither names nor blocks.
    pub(crate) fn free_inode(&mut self, ino: Ino) -> Result<()> {
        let now = self.now();
        let (number, index) = self.geometry.inode_group(ino).ok_or(Errno::Stale)?;
        let last = self.geometry.inodes_count;
        let inode = self.inode_mut(ino)?;
        let is_directory = inode.is(inode::S_IFDIR);
        inode.raw.links_count = 0;
        inode.raw.set_size(0);
        inode.raw.set_blocks(0);
        inode.raw.set_file_acl(0);
        // Readers distinguish a deleted inode from an orphan by a time that is not an inode number.
        inode.raw.dtime = low32(now.seconds.cast_unsigned()).max(last.saturating_add(1));
        self.store_inode(ino)?;
        self.inodes.remove(&ino);
        self.load_inode_bitmap(number)?;
        let group = self.dirty_group(number)?;
        if let Some(inodes) = &mut group.inodes {
            if !inodes.used.get(index) {
                return Err(Place::Inode(ino).corrupt("an inode to be freed is free already"));
            }
            inodes.used.clear(index, 1);
            inodes.hint = inodes.hint.min(index);
        }
        let descriptor = &mut group.descriptor;
        descriptor.set_free_inodes(descriptor.free_inodes().saturating_add(1));
        if is_directory {
            descriptor.set_directories(descriptor.directories().saturating_sub(1));
        }
        self.free_inodes = self.free_inodes.saturating_add(1);
        Ok(())
    }
}
