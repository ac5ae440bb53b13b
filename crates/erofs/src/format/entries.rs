//! Directory entries and extended attributes.

use super::FileType;
use super::fields::{Fields, Parse};
use micabox_file::narrow::saturate16;

pub(crate) const DIRENT_SIZE: usize = 12;
pub(crate) const XATTR_HEADER_SIZE: usize = 12;
pub(crate) const XATTR_ENTRY_SIZE: usize = 4;

/// Encodes a directory entry without its name.
pub(crate) fn encode_dirent(nid: u64, name_offset: u16, kind: FileType) -> [u8; DIRENT_SIZE] {
    Fields::new()
        .u64(nid)
        .u16(name_offset)
        .u8(kind as u8)
        .done()
}

/// Returns the inode number, the offset of the name within the block, and the type number.
pub(crate) fn decode_dirent(bytes: &[u8]) -> (u64, u16, u8) {
    let mut parse = Parse(bytes);
    (parse.u64(), parse.u16(), parse.u8())
}

/// Returns the number of shared attributes.
pub(crate) fn decode_xattr_header(bytes: &[u8]) -> u8 {
    let mut parse = Parse(bytes);
    let _name_filter = parse.u32();
    parse.u8()
}

/// Returns the length of the stored name, the namespace, and the length of the value.
pub(crate) fn decode_xattr_entry(bytes: &[u8]) -> (u8, u8, u16) {
    let mut parse = Parse(bytes);
    (parse.u8(), parse.u8(), parse.u16())
}

/// Encodes the header of an inode's attributes; the numbers of the shared ones follow.
pub(crate) fn encode_xattr_header(shared: u8) -> [u8; XATTR_HEADER_SIZE] {
    Fields::new()
        .u32(0) // name filter, unused without its feature bit
        .u8(shared)
        .done()
}

/// Encodes the header of one attribute; name without prefix, value and padding to 4 bytes follow.
pub(crate) fn encode_xattr_entry(
    name_length: u8,
    namespace: u8,
    value_length: u16,
) -> [u8; XATTR_ENTRY_SIZE] {
    Fields::new()
        .u8(name_length)
        .u8(namespace)
        .u16(value_length)
        .done()
}

/// Returns an inode's count field for `size` bytes of attributes: 0, or a header and more.
pub(crate) fn xattr_count(size: usize) -> u16 {
    match size.checked_sub(XATTR_HEADER_SIZE) {
        None => 0,
        Some(rest) => 1 + saturate16(rest / 4),
    }
}

/// Returns the bytes of attributes that an inode's count field stands for.
pub(crate) fn xattr_body_size(count: u16) -> usize {
    match count {
        0 => 0,
        _ => XATTR_HEADER_SIZE + 4 * usize::from(count - 1),
    }
}

/// Returns the size in bytes of one stored attribute.
pub(crate) fn xattr_entry_size(name_length: usize, value_length: usize) -> usize {
    (XATTR_ENTRY_SIZE + name_length + value_length).next_multiple_of(4)
}
