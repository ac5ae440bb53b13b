//! Access control lists: converts between the form on disk (`fs/ext4/acl.h`) and the longer form
//! that programs exchange with the kernel and with archives (`struct posix_acl_xattr_header`).

use alloc::vec::Vec;

use super::fields;

const DISK_VERSION: u32 = 1;
const XATTR_VERSION: u32 = 2;
/// Entries of this tag name a user.
const TAG_USER: u16 = 0x02;
/// Entries of this tag name a group.
const TAG_GROUP: u16 = 0x08;
const NO_ID: u32 = u32::MAX;

/// Converts the form of `getxattr(2)` to the form on disk. `None` if `value` does not have that
/// form.
#[must_use]
pub fn to_disk(value: &[u8]) -> Option<Vec<u8>> {
    let (version, entries) = value.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*version) != XATTR_VERSION || !entries.len().is_multiple_of(8) {
        return None;
    }
    let mut disk = DISK_VERSION.to_le_bytes().to_vec();
    for entry in entries.chunks_exact(8) {
        disk.extend_from_slice(entry.get(..4)?);
        if matches!(fields::get(entry, 0), TAG_USER | TAG_GROUP) {
            disk.extend_from_slice(entry.get(4..)?);
        }
    }
    Some(disk)
}

/// Converts the form on disk to the form of `getxattr(2)`. `None` if `disk` does not have that
/// form.
#[must_use]
pub fn from_disk(disk: &[u8]) -> Option<Vec<u8>> {
    let (version, mut entries) = disk.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*version) != DISK_VERSION {
        return None;
    }
    let mut value = XATTR_VERSION.to_le_bytes().to_vec();
    while let Some((entry, rest)) = entries.split_first_chunk::<4>() {
        value.extend_from_slice(entry);
        entries = rest;
        if matches!(fields::get(entry, 0), TAG_USER | TAG_GROUP) {
            let (id, rest) = entries.split_first_chunk::<4>()?;
            value.extend_from_slice(id);
            entries = rest;
        } else {
            value.extend_from_slice(&NO_ID.to_le_bytes());
        }
    }
    entries.is_empty().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_control_lists_round_trip() {
        let mut value = 2u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in [
            (1u16, 6u16, NO_ID),
            (2, 4, 1000),
            (4, 4, NO_ID),
            (0x10, 4, NO_ID),
            (0x20, 4, NO_ID),
        ] {
            value.extend_from_slice(&tag.to_le_bytes());
            value.extend_from_slice(&permissions.to_le_bytes());
            value.extend_from_slice(&id.to_le_bytes());
        }
        let disk = to_disk(&value).unwrap();
        assert_eq!(disk.len(), 4 + 4 * 4 + 8);
        assert_eq!(from_disk(&disk).unwrap(), value);
    }
}
