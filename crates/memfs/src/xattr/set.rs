//! The extended attributes of one file, and the room that they take.

use std::collections::BTreeMap;

use crate::Result;
use crate::room::Room;

/// A program's capabilities.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

/// The lists of a file, and of what is made in a directory.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Longest name and value (`linux/limits.h`); of a value one byte less, which archives and EROFS images hold.
pub(crate) const NAME_MAX: usize = 255;
pub(crate) const SIZE_MAX: usize = (64 << 10) - 1;

/// The attributes of a file: values by name.
pub(crate) type Xattrs = BTreeMap<Box<[u8]>, Box<[u8]>>;

fn cost(name: &[u8], value: &[u8]) -> u64 {
    (name.len() + value.len()) as u64
}

/// Returns what attributes take of the room.
pub(crate) fn sum(xattrs: &Xattrs) -> u64 {
    xattrs.iter().map(|(name, value)| cost(name, value)).sum()
}

/// Returns whether an attribute's name and value are within the kernel's limits.
pub(crate) fn is_valid(name: &[u8], value: &[u8]) -> bool {
    (1..=NAME_MAX).contains(&name.len()) && !name.contains(&0) && value.len() <= SIZE_MAX
}

/// Sets an attribute and takes room for it.
pub(crate) fn take(room: &Room, xattrs: &mut Xattrs, name: &[u8], value: &[u8]) -> Result<()> {
    let old = xattrs.get(name).map_or(0, |old| cost(name, old));
    let new = cost(name, value);
    room.take_bytes(new.saturating_sub(old))?;
    room.give_bytes(old.saturating_sub(new));
    xattrs.insert(name.into(), value.into());
    Ok(())
}

/// Removes an attribute; returns whether it was there.
pub(crate) fn remove(room: &Room, xattrs: &mut Xattrs, name: &[u8]) -> bool {
    let Some(value) = xattrs.remove(name) else {
        return false;
    };
    room.give_bytes(cost(name, &value));
    true
}

/// Removes all attributes.
pub(crate) fn clear(room: &Room, xattrs: &mut Xattrs) {
    let all = std::mem::take(xattrs);
    room.give_bytes(sum(&all));
}
