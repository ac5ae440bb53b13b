//! The fixed part of inodes.

use super::fields::{Fields, Parse};
use micabox_file::Timestamp;
use micabox_file::narrow::{low32, saturate16};

/// Inodes start at multiples of this; an inode's number is its position in these units.
pub(crate) const INODE_SLOT: u64 = 32;

/// How an inode's bytes are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Consecutive whole blocks.
    FlatPlain = 0,
    /// Like [`Self::FlatPlain`], but the last, partial block follows the inode.
    FlatInline = 2,
    /// Chunks of equal size, each with its own address.
    ChunkBased = 4,
    /// Compressed, with an index of entries of eight bytes.
    CompressedFull = 1,
    /// Compressed, with an index in packs.
    CompressedCompact = 3,
}

/// The content of an inode's first field.
pub(crate) enum InodeFormat {
    /// Layout, and whether the inode has the extended form.
    Known(Layout, bool),
    /// Bits that this crate does not know.
    Unknown,
}

/// Decodes the form of an inode from its first two bytes.
pub(crate) fn inode_format(bytes: &[u8]) -> InodeFormat {
    let format = Parse(bytes).u16();
    let extended = format & 1 != 0;
    match format >> 1 {
        0 => InodeFormat::Known(Layout::FlatPlain, extended),
        1 => InodeFormat::Known(Layout::CompressedFull, extended),
        3 => InodeFormat::Known(Layout::CompressedCompact, extended),
        2 => InodeFormat::Known(Layout::FlatInline, extended),
        4 => InodeFormat::Known(Layout::ChunkBased, extended),
        _ => InodeFormat::Unknown,
    }
}

/// The fixed part of an inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RawInode {
    pub layout: Layout,
    /// Size of the attributes: 0, or 1 for the header and 1 for each 4 bytes after it.
    pub xattr_count: u16,
    /// Type and permissions.
    pub mode: u16,
    pub nlink: u32,
    pub size: u64,
    /// Start block, device number or chunk format.
    pub union: u32,
    /// 32-bit inode number, for programs that use the old system calls.
    pub ino: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: Timestamp,
}

pub(crate) const COMPACT_SIZE: usize = 32;
pub(crate) const EXTENDED_SIZE: usize = 64;

impl RawInode {
    /// Decodes the compact form; the time is the superblock's.
    pub(crate) fn decode_compact(bytes: &[u8], layout: Layout, mtime: Timestamp) -> Self {
        let mut parse = Parse(bytes);
        let _format = parse.u16();
        let xattr_count = parse.u16();
        let mode = parse.u16();
        let nlink = u32::from(parse.u16());
        let size = u64::from(parse.u32());
        let _reserved = parse.u32();
        Self {
            layout,
            xattr_count,
            mode,
            nlink,
            size,
            union: parse.u32(),
            ino: parse.u32(),
            uid: u32::from(parse.u16()),
            gid: u32::from(parse.u16()),
            mtime,
        }
    }

    /// Decodes the extended form.
    pub(crate) fn decode_extended(bytes: &[u8], layout: Layout) -> Self {
        let mut parse = Parse(bytes);
        let _format = parse.u16();
        let xattr_count = parse.u16();
        let mode = parse.u16();
        let _reserved = parse.u16();
        let size = parse.u64();
        let union = parse.u32();
        let ino = parse.u32();
        let uid = parse.u32();
        let gid = parse.u32();
        let mtime = Timestamp {
            seconds: parse.u64().cast_signed(),
            nanos: parse.u32(),
        };
        Self {
            layout,
            xattr_count,
            mode,
            nlink: parse.u32(),
            size,
            union,
            ino,
            uid,
            gid,
            mtime,
        }
    }

    /// Encodes the compact form, for inodes that meet [`fits_compact`].
    pub(crate) fn encode_compact(&self) -> [u8; COMPACT_SIZE] {
        Fields::new()
            .u16((self.layout as u16) << 1)
            .u16(self.xattr_count)
            .u16(self.mode)
            .u16(saturate16(self.nlink))
            .u32(low32(self.size))
            .u32(0)
            .u32(self.union)
            .u32(self.ino)
            .u16(saturate16(self.uid))
            .u16(saturate16(self.gid))
            .done()
    }

    /// Encodes the extended form.
    pub(crate) fn encode_extended(&self) -> [u8; EXTENDED_SIZE] {
        Fields::new()
            .u16((self.layout as u16) << 1 | 1)
            .u16(self.xattr_count)
            .u16(self.mode)
            .u16(0)
            .u64(self.size)
            .u32(self.union)
            .u32(self.ino)
            .u32(self.uid)
            .u32(self.gid)
            .u64(self.mtime.seconds.cast_unsigned())
            .u32(self.mtime.nanos)
            .u32(self.nlink)
            .done()
    }
}

/// Whether the compact form can hold an inode, apart from its time: owners and link count have 16
/// bits, the size has 32, and the time is the superblock's build time.
pub(crate) fn fits_compact(size: u64, uid: u32, gid: u32, nlink: u32) -> bool {
    size <= u64::from(u32::MAX) && uid.max(gid).max(nlink) <= u32::from(u16::MAX)
}
