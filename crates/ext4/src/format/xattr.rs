//! Extended attributes: `fs/ext4/xattr.h`, and Documentation/filesystems/ext4/attributes.rst
//! and eainode.rst.
//!
//! Attributes lie in the inode, after `i_extra_isize` (a magic number, then entries; value offsets
//! are relative to the first entry), and in one block (a header, then entries; value offsets are
//! relative to the block's start). Entries grow upwards and end with four zero bytes, values grow
//! downwards from the end, both padded to 4. In a block, entries are sorted by name index, name
//! length and name. With ea_inode, a large value is an inode of its own.

use super::checksum::crc32c;
use super::fields::{self, record};

/// Magic number of a block's header, and of attributes in an inode.
pub const MAGIC: u32 = 0xEA02_0000;
/// Size in bytes of an entry before its name.
pub const ENTRY_HEADER: usize = 16;
/// Size in bytes of the magic number before an inode's entries.
pub const INODE_HEADER: usize = 4;
/// Length in bytes of the longest name without its prefix.
pub const MAX_NAME: usize = 255;
/// Maximum number of inodes that share a block.
pub const MAX_REFERENCES: u32 = 1024;

record! {
    /// The start of an attribute block, little-endian.
    pub struct Header[32, le] {
        /// [`MAGIC`].
        0x00 magic: u32,
        /// Number of inodes that share the block.
        0x04 references: u32,
        /// Number of blocks, 1.
        0x08 blocks: u32,
        /// Hash of all attributes; 0 if the block must not be shared.
        0x0C hash: u32,
        /// CRC-32C of block number and block.
        0x10 checksum: u32,
    }
}

record! {
    /// An entry without its name, little-endian.
    pub struct Entry[16, le] {
        /// Length in bytes of the name without the prefix.
        0x00 name_len: u8,
        /// The prefix; see [`PREFIXES`].
        0x01 name_index: u8,
        /// Offset of the value.
        0x02 value_offset: u16,
        /// The inode that holds the value, or 0.
        0x04 value_inode: u32,
        /// Size of the value in bytes.
        0x08 value_size: u32,
        /// Hash of name and value.
        0x0C hash: u32,
    }
}

/// `e_name_index` of `user.`: only for files and directories.
pub const INDEX_USER: u8 = 1;
/// `e_name_index` of `system.posix_acl_access`, whose value has the form of [`super::acl`].
pub const INDEX_ACL_ACCESS: u8 = 2;
/// `e_name_index` of `system.posix_acl_default`.
pub const INDEX_ACL_DEFAULT: u8 = 3;
/// `e_name_index` of `system.`; `system.data` is a file's inline data.
pub const INDEX_SYSTEM: u8 = 7;

/// Name indexes and their prefixes. If two match a name, the first one applies.
pub const PREFIXES: [(u8, &[u8]); 8] = [
    (INDEX_USER, b"user."),
    (INDEX_ACL_ACCESS, b"system.posix_acl_access"),
    (INDEX_ACL_DEFAULT, b"system.posix_acl_default"),
    (4, b"trusted."),
    (6, b"security."),
    (8, b"system.richacl"),
    (INDEX_SYSTEM, b"system."),
    (10, b"gnu."),
];

/// Splits a full name into index and rest. `None` if no prefix matches.
#[must_use]
pub fn split_name(name: &[u8]) -> Option<(u8, &[u8])> {
    PREFIXES.iter().find_map(|&(index, prefix)| {
        let rest = name.strip_prefix(prefix)?;
        // A prefix that is a whole name must have an empty rest, the others a nonempty one.
        (prefix.ends_with(b".") != rest.is_empty()).then_some((index, rest))
    })
}

/// Returns the prefix of an index.
#[must_use]
pub fn prefix(index: u8) -> Option<&'static [u8]> {
    PREFIXES
        .iter()
        .find(|(known, _)| *known == index)
        .map(|(_, prefix)| *prefix)
}

/// Returns the size in bytes of an entry with its name.
#[must_use]
pub const fn entry_size(name_len: usize) -> usize {
    (ENTRY_HEADER + name_len + 3) & !3
}

/// Returns the size in bytes of a stored value.
#[must_use]
pub const fn value_size(size: usize) -> usize {
    (size + 3) & !3
}

/// Computes an entry's hash from its name and from its value as words or, if the value is in an
/// inode, from that inode's hash (`value_hash`, its `i_atime`) as the only word.
#[must_use]
pub fn entry_hash(name: &[u8], value: Value<'_>) -> u32 {
    entry_hash_of(name.iter().map(|&byte| u32::from(byte)), value)
}

/// Computes the hash that kernels before 6.0 wrote on machines with signed characters; readers
/// accept it.
#[must_use]
pub fn entry_hash_signed(name: &[u8], value: Value<'_>) -> u32 {
    entry_hash_of(
        name.iter()
            .map(|&byte| i32::from(byte.cast_signed()).cast_unsigned()),
        value,
    )
}

fn entry_hash_of(name: impl Iterator<Item = u32>, value: Value<'_>) -> u32 {
    let hash = name.fold(0u32, |hash, character| hash.rotate_left(5) ^ character);
    match value {
        Value::Bytes(bytes) => bytes.chunks(4).fold(hash, |hash, chunk| {
            let mut word = [0; 4];
            for (to, from) in word.iter_mut().zip(chunk) {
                *to = *from;
            }
            hash.rotate_left(16) ^ u32::from_le_bytes(word)
        }),
        Value::Inode { hash: value_hash } => hash.rotate_left(16) ^ value_hash,
    }
}

/// The input of an entry's hash besides the name.
#[derive(Debug, Clone, Copy)]
pub enum Value<'a> {
    /// A value beside its entry.
    Bytes(&'a [u8]),
    /// A value in an inode: the hash of that inode.
    Inode {
        /// [`value_hash`] of the value.
        hash: u32,
    },
}

/// Computes the hash of a value in an inode of its own, stored in that inode's `i_atime`.
#[must_use]
pub fn value_hash(filesystem_seed: u32, value: &[u8]) -> u32 {
    crc32c(filesystem_seed, value)
}

/// Continues a block's hash with an entry's; a block that has an entry with hash 0 has hash 0.
#[must_use]
pub fn block_hash(hash: u32, entry_hash: u32) -> u32 {
    hash.rotate_left(16) ^ entry_hash
}

/// Computes the checksum for an attribute block's header.
#[must_use]
pub fn checksum_of(filesystem_seed: u32, number: u64, block: &[u8]) -> u32 {
    let crc = crc32c(filesystem_seed, &number.to_le_bytes());
    let crc = crc32c(crc, block.get(..0x10).unwrap_or_default());
    let crc = crc32c(crc, &[0; 4]);
    crc32c(crc, block.get(0x14..).unwrap_or_default())
}

/// Writes the checksum into an attribute block's header.
pub fn seal(filesystem_seed: u32, number: u64, block: &mut [u8]) {
    let checksum = checksum_of(filesystem_seed, number, block);
    fields::put(block, 0x10, checksum);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_attributes_split_at_their_prefix() {
        assert_eq!(split_name(b"user.a"), Some((1, &b"a"[..])));
        assert_eq!(split_name(b"system.posix_acl_access"), Some((2, &b""[..])));
        assert_eq!(split_name(b"system.data"), Some((7, &b"data"[..])));
        assert_eq!(split_name(b"user."), None);
        assert_eq!(split_name(b"other.x"), None);
    }
}
