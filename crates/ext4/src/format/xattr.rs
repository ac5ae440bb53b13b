//! Extended attributes: `fs/ext4/xattr.h`, and Documentation/filesystems/ext4/attributes.rst
//! and eainode.rst.
//!
//! Attributes lie in the inode, behind `i_extra_isize` (a magic number, then entries; value
//! offsets count from the first entry), and in one block (a header, then entries; value offsets
//! count from the block's start). Entries grow upwards and end with four zero bytes, values
//! grow downwards from the end, both padded to 4. In a block, entries are sorted by name index,
//! name length, name. With ea_inode, a large value is an inode of its own.

use super::checksum::crc32c;
use super::fields::{self, record};

/// Magic number of a block's header, and of attributes in an inode.
pub const MAGIC: u32 = 0xEA02_0000;
/// Bytes of an entry before its name.
pub const ENTRY_HEADER: usize = 16;
/// Bytes of the magic number before an inode's entries.
pub const INODE_HEADER: usize = 4;
/// Longest name behind its prefix.
pub const MAX_NAME: usize = 255;
/// Inodes that may share a block.
pub const MAX_REFERENCES: u32 = 1024;

record! {
    /// What an attribute block starts with, little-endian.
    pub struct Header[32, le] {
        /// [`MAGIC`].
        0x00 magic: u32,
        /// Inodes that share the block.
        0x04 references: u32,
        /// 1.
        0x08 blocks: u32,
        /// Hash of all attributes; 0 if the block must not be shared.
        0x0C hash: u32,
        /// CRC-32C of block number and block.
        0x10 checksum: u32,
    }
}

record! {
    /// An entry, little-endian, before its name.
    pub struct Entry[16, le] {
        /// Bytes of the name behind the prefix.
        0x00 name_len: u8,
        /// The prefix; see [`PREFIXES`].
        0x01 name_index: u8,
        /// Where the value is.
        0x02 value_offset: u16,
        /// The inode that holds the value, or 0.
        0x04 value_inode: u32,
        /// Bytes of the value.
        0x08 value_size: u32,
        /// Hash of name and value.
        0x0C hash: u32,
    }
}

/// `e_name_index` of `user.`: of files and directories only.
pub const INDEX_USER: u8 = 1;
/// `e_name_index` of `system.posix_acl_access`, whose value is of [`super::acl`]'s form.
pub const INDEX_ACL_ACCESS: u8 = 2;
/// `e_name_index` of `system.posix_acl_default`.
pub const INDEX_ACL_DEFAULT: u8 = 3;
/// `e_name_index` of `system.`; `system.data` is a file's inline data.
pub const INDEX_SYSTEM: u8 = 7;

/// Name indexes and the prefixes they stand for. Of two that fit a name, the first counts.
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

/// Splits a full name into index and rest. `None` if there is no index for it.
#[must_use]
pub fn split_name(name: &[u8]) -> Option<(u8, &[u8])> {
    PREFIXES.iter().find_map(|&(index, prefix)| {
        let rest = name.strip_prefix(prefix)?;
        // A whole name as prefix has nothing behind it, the others something.
        (prefix.ends_with(b".") != rest.is_empty()).then_some((index, rest))
    })
}

/// The prefix of an index.
#[must_use]
pub fn prefix(index: u8) -> Option<&'static [u8]> {
    PREFIXES
        .iter()
        .find(|(known, _)| *known == index)
        .map(|(_, prefix)| *prefix)
}

/// Bytes that an entry needs with its name.
#[must_use]
pub const fn entry_size(name_len: usize) -> usize {
    (ENTRY_HEADER + name_len + 3) & !3
}

/// Bytes that a value needs.
#[must_use]
pub const fn value_size(size: usize) -> usize {
    (size + 3) & !3
}

/// An entry's hash: of its name, and of its value as words, or, if the value is an inode, of
/// that inode's hash (`value_hash`, its `i_atime`) as the only word.
#[must_use]
pub fn entry_hash(name: &[u8], value: Value<'_>) -> u32 {
    entry_hash_of(name.iter().map(|&byte| u32::from(byte)), value)
}

/// The hash that kernels before 6.0 wrote on machines where characters are signed; readers
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

/// What an entry's hash is made of besides the name.
#[derive(Debug, Clone, Copy)]
pub enum Value<'a> {
    /// A value beside its entry.
    Bytes(&'a [u8]),
    /// A value in an inode: the hash that inode has.
    Inode {
        /// [`value_hash`] of the value.
        hash: u32,
    },
}

/// The hash of a value in an inode of its own, kept in that inode's `i_atime`.
#[must_use]
pub fn value_hash(filesystem_seed: u32, value: &[u8]) -> u32 {
    crc32c(filesystem_seed, value)
}

/// Continues a block's hash with an entry's; a block with an entry of hash 0 has 0.
#[must_use]
pub fn block_hash(hash: u32, entry_hash: u32) -> u32 {
    hash.rotate_left(16) ^ entry_hash
}

/// The checksum that belongs into an attribute block's header.
#[must_use]
pub fn checksum_of(filesystem_seed: u32, number: u64, block: &[u8]) -> u32 {
    let crc = crc32c(filesystem_seed, &number.to_le_bytes());
    let crc = crc32c(crc, block.get(..0x10).unwrap_or_default());
    let crc = crc32c(crc, &[0; 4]);
    crc32c(crc, block.get(0x14..).unwrap_or_default())
}

/// Puts the checksum into an attribute block's header.
pub fn seal(filesystem_seed: u32, number: u64, block: &mut [u8]) {
    let checksum = checksum_of(filesystem_seed, number, block);
    fields::put(block, 0x10, checksum);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_split() {
        assert_eq!(split_name(b"user.a"), Some((1, &b"a"[..])));
        assert_eq!(split_name(b"system.posix_acl_access"), Some((2, &b""[..])));
        assert_eq!(split_name(b"system.data"), Some((7, &b"data"[..])));
        assert_eq!(split_name(b"user."), None);
        assert_eq!(split_name(b"other.x"), None);
    }
}
