//! Decodes an inode's bytes, without reading anything else.

use super::volume::Volume;
use crate::format::checksum::inode_seed;
use crate::format::directory::FileType;
use crate::format::features::{compat, incompat, ro_compat};
use crate::format::inode::{
    self, GOOD_OLD_SIZE, RawInode, S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFREG,
    S_IFSOCK, flags,
};

/// The type of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Fifo,
    CharDevice,
    Directory,
    BlockDevice,
    Regular,
    Symlink,
    Socket,
}

impl Kind {
    /// Returns the type in a mode; `None` if the mode has no valid type.
    pub(super) fn of(mode: u16) -> Option<Self> {
        Some(match mode & S_IFMT {
            S_IFIFO => Self::Fifo,
            S_IFCHR => Self::CharDevice,
            S_IFDIR => Self::Directory,
            S_IFBLK => Self::BlockDevice,
            S_IFREG => Self::Regular,
            S_IFLNK => Self::Symlink,
            S_IFSOCK => Self::Socket,
            _ => return None,
        })
    }

    /// Returns the type in directory entries.
    pub(super) fn file_type(self) -> FileType {
        match self {
            Self::Fifo => FileType::Fifo,
            Self::CharDevice => FileType::CharDevice,
            Self::Directory => FileType::Directory,
            Self::BlockDevice => FileType::BlockDevice,
            Self::Regular => FileType::Regular,
            Self::Symlink => FileType::Symlink,
            Self::Socket => FileType::Socket,
        }
    }

    /// Returns e2fsck's name of an inode of this type that is malformed.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Fifo => "FIFO",
            Self::CharDevice => "character device",
            Self::Directory => "directory",
            Self::BlockDevice => "block device",
            Self::Regular => "regular file",
            Self::Symlink => "symlink",
            Self::Socket => "socket",
        }
    }
}

/// An inode as stored in its table.
#[derive(Debug, Clone)]
pub(super) struct Inode<'b> {
    pub(super) number: u32,
    pub(super) raw: RawInode,
    /// All bytes of the inode.
    pub(super) bytes: &'b [u8],
}

impl<'b> Inode<'b> {
    pub(super) fn new(number: u32, bytes: &'b [u8]) -> Self {
        let mut raw = RawInode::decode(bytes);
        if bytes.len() <= GOOD_OLD_SIZE {
            raw.extra_isize = 0;
        }
        Self { number, raw, bytes }
    }

    pub(super) fn kind(&self) -> Option<Kind> {
        Kind::of(self.raw.mode)
    }

    pub(super) fn has(&self, flag: u32) -> bool {
        self.raw.flags & flag != 0
    }

    pub(super) fn block(&self) -> &'b [u8] {
        self.bytes.get(40..100).unwrap_or_default()
    }

    /// Returns the block of extended attributes, 0 for none.
    pub(super) fn attribute_block(&self, volume: &Volume) -> u64 {
        if volume.has_incompat(incompat::BIT64) {
            self.raw.file_acl()
        } else {
            self.raw.file_acl_lo.into()
        }
    }

    /// Returns the occupied space according to the inode, in units of 512 bytes.
    pub(super) fn sectors(&self, volume: &Volume) -> u64 {
        if !volume.has_ro_compat(ro_compat::HUGE_FILE) {
            return self.raw.blocks_lo.into();
        }
        if self.has(flags::HUGE_FILE) {
            self.raw
                .blocks()
                .saturating_mul(volume.block_size as u64 / 512)
        } else {
            self.raw.blocks()
        }
    }

    /// Returns the seed of the checksums of the inode's blocks.
    pub(super) fn seed(&self, volume: &Volume) -> u32 {
        inode_seed(volume.seed, self.number, self.raw.generation)
    }

    /// Whether the inode's own checksum is correct.
    pub(super) fn is_sealed(&self, volume: &Volume) -> bool {
        // An inode that was never written has no checksum.
        inode::is_sealed(volume.seed, self.number, self.bytes)
            || self.bytes.iter().all(|&byte| byte == 0)
    }

    /// Whether the fields beyond the first 128 bytes have a valid end.
    pub(super) fn extra_size_fits(&self) -> bool {
        let extra = usize::from(self.raw.extra_isize);
        let room = self.bytes.len() - GOOD_OLD_SIZE.min(self.bytes.len());
        extra == 0 || (extra >= 4 && extra <= room && extra.is_multiple_of(4))
    }

    /// Whether the inode is a symbolic link whose target is in `i_block`.
    pub(super) fn is_fast_symlink(&self, volume: &Volume) -> bool {
        if self.kind() != Some(Kind::Symlink) || self.has(flags::EXTENTS | flags::INLINE_DATA) {
            return false;
        }
        let attributes =
            self.attribute_block(volume) != 0 && volume.superblock.has_compat(compat::EXT_ATTR);
        let own = volume.block_size as u64 * volume.cluster_ratio / 512;
        self.sectors(volume) == if attributes { own } else { 0 }
    }
}
