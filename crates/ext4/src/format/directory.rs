//! Directory blocks: `struct ext4_dir_entry_2`, `dx_root`, `dx_node` of `fs/ext4/namei.c`, and
//! Documentation/filesystems/ext4/directory.rst.
//!
//! Entries fill their block without gaps. With metadata_csum, the last 12 bytes of a block are an
//! entry without inode that holds the checksum.
//!
//! An indexed directory's first block has `.`, `..` (whose length covers the rest of the block),
//! then the root of the index; inner nodes begin with an empty entry that covers them. Index
//! entries have 8 bytes, a hash and a block within the directory; limit and count take the place of
//! the first entry's hash.

use super::checksum::crc32c;
use super::fields::{self, record};
use micabox_file::FileKind;

use super::inode;
use micabox_file::narrow::{saturate8, saturate16};

/// Size in bytes of an entry before its name.
pub const ENTRY_HEADER: usize = 8;
/// Length of the longest name in bytes.
pub const MAX_NAME: usize = 255;
/// Size in bytes of the entry that holds a block's checksum.
pub const TAIL_SIZE: usize = 12;
/// `file_type` of the entry that holds a block's checksum.
pub const TAIL_FILE_TYPE: u8 = 0xDE;
/// Maximum link count of a directory; with more subdirectories it is 1 for "many".
pub const MAX_LINKS: u32 = 65000;

/// Offset of the index's root in block 0: after `.` and `..`.
pub const ROOT_INFO_OFFSET: usize = 24;
/// Offset of limit, count and entries of the root.
pub const ROOT_ENTRIES_OFFSET: usize = ROOT_INFO_OFFSET + RootInfo::SIZE;
/// Offset of limit, count and entries of an inner node.
pub const NODE_ENTRIES_OFFSET: usize = 8;
/// Size in bytes of an index entry.
pub const INDEX_ENTRY_SIZE: usize = 8;
/// Size in bytes of the tail with the checksum of an index block.
pub const INDEX_TAIL_SIZE: usize = 8;

/// `file_type` of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileType {
    /// Not stored (or no feature `filetype`): the inode has the type.
    Unknown = 0,
    /// Regular file.
    Regular = 1,
    /// Directory.
    Directory = 2,
    /// Character device.
    CharDevice = 3,
    /// Block device.
    BlockDevice = 4,
    /// FIFO.
    Fifo = 5,
    /// Socket.
    Socket = 6,
    /// Symbolic link.
    Symlink = 7,
}

impl FileType {
    /// Decodes an entry's byte; unknown values are [`FileType::Unknown`].
    #[must_use]
    pub fn from_byte(byte: u8) -> Self {
        match byte {
            1 => Self::Regular,
            2 => Self::Directory,
            3 => Self::CharDevice,
            4 => Self::BlockDevice,
            5 => Self::Fifo,
            6 => Self::Socket,
            7 => Self::Symlink,
            _ => Self::Unknown,
        }
    }

    /// Returns the type in an inode's mode.
    #[must_use]
    pub fn from_mode(mode: u16) -> Self {
        match mode & inode::S_IFMT {
            inode::S_IFREG => Self::Regular,
            inode::S_IFDIR => Self::Directory,
            inode::S_IFCHR => Self::CharDevice,
            inode::S_IFBLK => Self::BlockDevice,
            inode::S_IFIFO => Self::Fifo,
            inode::S_IFSOCK => Self::Socket,
            inode::S_IFLNK => Self::Symlink,
            _ => Self::Unknown,
        }
    }

    /// Returns the corresponding kind of file.
    #[must_use]
    pub fn kind(self) -> Option<FileKind> {
        Some(match self {
            Self::Regular => FileKind::File,
            Self::Directory => FileKind::Directory,
            Self::Symlink => FileKind::Symlink,
            Self::CharDevice => FileKind::CharDevice,
            Self::BlockDevice => FileKind::BlockDevice,
            Self::Fifo => FileKind::Fifo,
            Self::Socket => FileKind::Socket,
            Self::Unknown => return None,
        })
    }
}

/// Returns the size in bytes of an entry with a name of `name_len` bytes: a multiple of 4.
#[must_use]
pub const fn entry_size(name_len: usize) -> usize {
    (ENTRY_HEADER + name_len + 3) & !3
}

/// Decodes the length of an entry from `rec_len`: with blocks of 64 KiB, 0 and 65535 stand for
/// 65536 and the two lowest bits are bits 16 and 17.
#[must_use]
pub fn decode_length(stored: u16, block_size: usize) -> usize {
    if block_size < 65536 {
        return stored.into();
    }
    match stored {
        0 | 65535 => block_size,
        _ => usize::from(stored & 0xFFFC) | usize::from(stored & 3) << 16,
    }
}

/// Encodes the length of an entry: the inverse of [`decode_length`].
#[must_use]
pub fn encode_length(length: usize, block_size: usize) -> u16 {
    if block_size < 65536 || length < 65536 {
        saturate16(length)
    } else if length == block_size {
        if block_size == 65536 { 65535 } else { 0 }
    } else {
        saturate16((length & 0xFFFC) | ((length >> 16) & 3))
    }
}

/// An entry as stored in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Offset in the block in bytes.
    pub offset: usize,
    /// Number of bytes to the next entry.
    pub length: usize,
    /// Inode number; 0 for a free entry.
    pub inode: u32,
    /// Its type.
    pub file_type: FileType,
    /// Its name.
    pub name: &'a [u8],
}

/// Iterates over the entries of a block. An entry that violates the format ends the iteration with
/// an `Err` that describes the problem.
#[derive(Debug, Clone)]
pub struct Entries<'a> {
    block: &'a [u8],
    offset: usize,
    block_size: usize,
    /// Whether byte 7 is a type; without feature `filetype` it is the name length's high byte.
    has_types: bool,
}

impl<'a> Entries<'a> {
    /// Creates an iterator over the entries of a whole block.
    #[must_use]
    pub fn new(block: &'a [u8], has_types: bool) -> Self {
        Self {
            block,
            offset: 0,
            block_size: block.len(),
            has_types,
        }
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>, &'static str>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.block.get(self.offset..)?;
        if rest.is_empty() {
            return None;
        }
        let Some((head, names)) = rest.split_at_checked(ENTRY_HEADER) else {
            self.offset = usize::MAX;
            return Some(Err("a directory entry is cut off by the end of its block"));
        };
        let length = decode_length(fields::get(head, 4), self.block_size);
        let name_len = usize::from(head[6]);
        let problem = if length < entry_size(1) {
            "a directory entry is too short"
        } else if !length.is_multiple_of(4) {
            "a directory entry's length is not a multiple of 4"
        } else if length < entry_size(name_len) {
            "a directory entry is shorter than its name"
        } else if length > rest.len() {
            "a directory entry reaches past its block"
        } else {
            let entry = Entry {
                offset: self.offset,
                length,
                inode: fields::get(head, 0),
                file_type: if self.has_types {
                    FileType::from_byte(head[7])
                } else {
                    FileType::Unknown
                },
                name: names.get(..name_len).unwrap_or_default(),
            };
            self.offset += length;
            return Some(Ok(entry));
        };
        self.offset = usize::MAX;
        Some(Err(problem))
    }
}

/// Writes an entry of `length` bytes at `offset` of a block.
pub fn put_entry(
    block: &mut [u8],
    offset: usize,
    length: usize,
    inode: u32,
    file_type: u8,
    name: &[u8],
) {
    let block_size = block.len();
    let Some(entry) = block.get_mut(offset..offset + entry_size(name.len()).min(length)) else {
        return;
    };
    fields::put(entry, 0, inode);
    fields::put(entry, 4, encode_length(length, block_size));
    fields::put(entry, 6, saturate8(name.len()));
    fields::put(entry, 7, file_type);
    if let Some(place) = entry.get_mut(ENTRY_HEADER..ENTRY_HEADER + name.len()) {
        place.copy_from_slice(name);
    }
}

/// Writes the checksum entry at the end of a block.
pub fn put_tail(block: &mut [u8]) {
    let offset = block.len().saturating_sub(TAIL_SIZE);
    if let Some(tail) = block.get_mut(offset..) {
        tail.fill(0);
        fields::put(tail, 4, saturate16(TAIL_SIZE));
        fields::put(tail, 7, TAIL_FILE_TYPE);
    }
}

/// Whether a block ends with a checksum entry.
#[must_use]
pub fn has_tail(block: &[u8]) -> bool {
    block.last_chunk::<TAIL_SIZE>().is_some_and(|tail| {
        fields::get::<u32>(tail, 0) == 0
            && fields::get::<u16>(tail, 4) == saturate16(TAIL_SIZE)
            && fields::get::<u16>(tail, 6) == u16::from(TAIL_FILE_TYPE) << 8
    })
}

/// Computes the checksum for a block's tail; `seed` is that of the directory's inode.
#[must_use]
pub fn checksum_of(seed: u32, block: &[u8]) -> u32 {
    crc32c(
        seed,
        block
            .get(..block.len().saturating_sub(TAIL_SIZE))
            .unwrap_or_default(),
    )
}

/// Writes the checksum into a block's tail; `seed` is that of the directory's inode.
pub fn seal(seed: u32, block: &mut [u8]) {
    let checksum = checksum_of(seed, block);
    let offset = block.len().saturating_sub(4);
    fields::put(block, offset, checksum);
}

record! {
    /// `dx_root_info`, little-endian, at [`ROOT_INFO_OFFSET`] of block 0.
    pub struct RootInfo[8, le] {
        /// Zero.
        0x00 reserved: u32,
        /// [`super::hash::Version`] as a byte, ignoring signedness.
        0x04 hash_version: u8,
        /// Size of this structure in bytes, 8.
        0x05 info_length: u8,
        /// Levels of inner nodes: 0 to 2, with large_dir up to 3.
        0x06 indirect_levels: u8,
        /// Zero.
        0x07 unused_flags: u8,
    }
}

/// Returns how many entries fit in an index block whose entries start at `entries_offset`.
#[must_use]
pub fn index_limit(block_size: usize, entries_offset: usize, checksums: bool) -> u16 {
    let tail = if checksums { INDEX_TAIL_SIZE } else { 0 };
    saturate16(block_size.saturating_sub(entries_offset + tail) / INDEX_ENTRY_SIZE)
}

/// Computes the checksum of an index block whose entries start at `entries_offset` (its tail is
/// `dt_reserved`, 4 bytes, and `dt_checksum`, 4 bytes, after the room for entries); `seed` is that
/// of the directory's inode. `None` if limit or count is invalid.
#[must_use]
pub fn index_checksum_of(seed: u32, block: &[u8], entries_offset: usize) -> Option<u32> {
    let limit = usize::from(fields::get::<u16>(block, entries_offset));
    let count = usize::from(fields::get::<u16>(block, entries_offset + 2));
    let tail = block
        .get(entries_offset + limit * INDEX_ENTRY_SIZE..)?
        .get(..INDEX_TAIL_SIZE)?;
    if count > limit {
        return None;
    }
    let crc = crc32c(
        seed,
        block.get(..entries_offset + count * INDEX_ENTRY_SIZE)?,
    );
    let crc = crc32c(crc, tail.get(..4)?);
    Some(crc32c(crc, &[0; 4]))
}

/// Returns the offset of an index block's checksum.
#[must_use]
pub fn index_checksum_offset(block: &[u8], entries_offset: usize) -> usize {
    let limit = usize::from(fields::get::<u16>(block, entries_offset));
    entries_offset + limit * INDEX_ENTRY_SIZE + 4
}

/// Writes the checksum into an index block.
pub fn seal_index(seed: u32, block: &mut [u8], entries_offset: usize) {
    if let Some(checksum) = index_checksum_of(seed, block, entries_offset) {
        let offset = index_checksum_offset(block, entries_offset);
        fields::put(block, offset, checksum);
    }
}
