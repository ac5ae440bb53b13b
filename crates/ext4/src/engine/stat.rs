//! Reports the attributes of inodes and the statistics of the filesystem.

use super::{Ext4, Ino};
use crate::FileKind;
use crate::device::BlockDevice;
use crate::error::Result;
use crate::format::inode::{self, flags};
use micabox_file::Timestamp;
use micabox_file::narrow::saturate32;

/// An inode's attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Its number.
    pub ino: Ino,
    /// Type and permissions.
    pub mode: u16,
    /// Number of names; for a directory, 1 means too many subdirectories to count.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Number of 512-byte blocks on the device.
    pub blocks: u64,
    /// Major and minor number of a device; 0 for other types.
    pub device: (u32, u32),
    /// Last access, as last set: reads do not change it.
    pub atime: Timestamp,
    /// Last change of the contents.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Creation, if the inode stores it.
    pub crtime: Timestamp,
    /// Flags of `chattr`.
    pub flags: u32,
    /// Distinguishes this use of the inode number from earlier ones.
    pub generation: u32,
}

impl Stat {
    /// Returns the type; `None` if the mode has no valid type.
    #[must_use]
    pub fn kind(&self) -> Option<FileKind> {
        FileKind::from_mode(self.mode)
    }
}

impl From<Stat> for micabox_file::Stat {
    /// Only an inode on a damaged disk has no kind; it is treated like a FIFO, without contents.
    fn from(stat: Stat) -> Self {
        Self {
            number: stat.ino.into(),
            kind: stat.kind().unwrap_or(FileKind::Fifo),
            mode: stat.mode & !inode::S_IFMT,
            links: stat.links,
            uid: stat.uid,
            gid: stat.gid,
            device: stat.device,
            size: stat.size,
            blocks: stat.blocks,
            atime: stat.atime,
            mtime: stat.mtime,
            ctime: stat.ctime,
            born: stat.crtime,
        }
    }
}

/// Space and inodes of a filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statistics {
    /// Block size in bytes.
    pub block_size: u32,
    /// Number of blocks.
    pub blocks: u64,
    /// Number of blocks that are neither used nor reserved for unwritten contents.
    pub free_blocks: u64,
    /// Number of free blocks that only root may use.
    pub reserved_blocks: u64,
    /// Number of inodes.
    pub inodes: u32,
    /// Number of inodes not in use.
    pub free_inodes: u32,
}

impl<D: BlockDevice> Ext4<D> {
    /// Returns an inode's attributes.
    ///
    /// # Errors
    ///
    /// [`crate::Errno::Stale`] if the inode is not in use, and damage.
    pub fn stat(&mut self, ino: Ino) -> Result<Stat> {
        let block_bits = self.geometry.block_bits;
        let inode = self.inode(ino)?;
        let raw = &inode.raw;
        let is_device = inode.is(inode::S_IFCHR) || inode.is(inode::S_IFBLK);
        let in_blocks = inode.has(flags::HUGE_FILE);
        Ok(Stat {
            ino,
            mode: raw.mode,
            links: raw.links_count.into(),
            uid: raw.uid(),
            gid: raw.gid(),
            size: raw.size(),
            blocks: if in_blocks {
                raw.blocks() << (block_bits - 9)
            } else {
                raw.blocks()
            },
            device: if is_device {
                inode::decode_device(&raw.block)
            } else {
                (0, 0)
            },
            atime: inode::decode_time(raw.atime, raw.atime_extra),
            mtime: inode::decode_time(raw.mtime, raw.mtime_extra),
            ctime: inode::decode_time(raw.ctime, raw.ctime_extra),
            crtime: inode::decode_time(raw.crtime, raw.crtime_extra),
            flags: raw.flags,
            generation: raw.generation,
        })
    }

    /// Returns the space and inode statistics of the filesystem.
    pub fn statistics(&self) -> Statistics {
        let clusters = u64::from(self.geometry.cluster_blocks);
        Statistics {
            block_size: saturate32(self.geometry.block_size),
            blocks: self.geometry.blocks_count,
            free_blocks: self
                .free_blocks
                .saturating_mul(clusters)
                .saturating_sub(self.reserved),
            reserved_blocks: self.superblock.reserved_blocks(),
            inodes: self.geometry.inodes_count,
            free_inodes: self.free_inodes,
        }
    }
}
