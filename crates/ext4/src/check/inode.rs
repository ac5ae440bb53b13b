//! An inode's bytes, and what they mean without looking anywhere else.

use super::volume::Volume;
use crate::format::checksum::inode_seed;
use crate::format::directory::FileType;
use crate::format::features::{compat, incompat, ro_compat};
use crate::format::inode::{
    self, GOOD_OLD_SIZE, RawInode, S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFREG,
    S_IFSOCK, flags,
};

/// What an inode is.
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
    /// The type of a mode; `None` for none of them.
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

    /// The type that directory entries have for it.
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

    /// The name that e2fsck has for an impossible one.
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

/// An inode as it lies in its table.
#[derive(Debug, Clone)]
pub(super) struct Inode<'b> {
    pub(super) number: u32,
    pub(super) raw: RawInode,
    /// All its bytes.
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

    /// Block of extended attributes, 0 for none.
    pub(super) fn attribute_block(&self, volume: &Volume) -> u64 {
        match volume.has_incompat(incompat::BIT64) {
            true => self.raw.file_acl(),
            false => self.raw.file_acl_lo.into(),
        }
    }

    /// What it says to occupy, in units of 512 bytes.
    pub(super) fn sectors(&self, volume: &Volume) -> u64 {
        if !volume.has_ro_compat(ro_compat::HUGE_FILE) {
            return self.raw.blocks_lo.into();
        }
        match self.has(flags::HUGE_FILE) {
            true => self
                .raw
                .blocks()
                .saturating_mul(volume.block_size as u64 / 512),
            false => self.raw.blocks(),
        }
    }

    /// Seed of the checksums of its blocks.
    pub(super) fn seed(&self, volume: &Volume) -> u32 {
        inode_seed(volume.seed, self.number, self.raw.generation)
    }

    /// Whether its own checksum is right.
    pub(super) fn is_sealed(&self, volume: &Volume) -> bool {
        // An inode that nobody ever wrote has none.
        inode::is_sealed(volume.seed, self.number, self.bytes)
            || self.bytes.iter().all(|&byte| byte == 0)
    }

    /// Whether the fields beyond the first 128 bytes end where they can.
    pub(super) fn extra_size_fits(&self) -> bool {
        let extra = usize::from(self.raw.extra_isize);
        let room = self.bytes.len() - GOOD_OLD_SIZE.min(self.bytes.len());
        extra == 0 || (extra >= 4 && extra <= room && extra.is_multiple_of(4))
    }

    /// Whether it is a symbolic link whose target is in `i_block`.
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
