//! POSIX access control lists, as extended attributes have them (`linux/posix_acl_xattr.h`): what a
//! filesystem does with them beyond keeping them. The rules are those of acl(5).

use std::vec::Vec;

/// The version of the format.
const VERSION: u32 = 2;

/// Kinds of entries (`linux/posix_acl.h`).
const OWNER: u16 = 0x01;
const GROUP: u16 = 0x04;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// Bytes of an entry, and most of them: what fits an attribute's value.
const ENTRY: usize = 8;
const MOST: usize = (64 << 10) / ENTRY;

/// A list: kind, permissions and the number of a user or group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl(Vec<(u16, u16, u32)>);

impl Acl {
    /// Reads an attribute's value. None if it is not a list with the three entries that each has.
    #[must_use]
    pub fn parse(value: &[u8]) -> Option<Self> {
        let (version, entries) = value.split_first_chunk()?;
        let (entries, rest) = entries.as_chunks::<ENTRY>();
        if u32::from_le_bytes(*version) != VERSION || !rest.is_empty() || entries.len() > MOST {
            return None;
        }
        let entries = entries.iter().map(|&[k0, k1, p0, p1, i0, i1, i2, i3]| {
            let (kind, permissions) = (u16::from_le_bytes([k0, k1]), u16::from_le_bytes([p0, p1]));
            (kind, permissions, u32::from_le_bytes([i0, i1, i2, i3]))
        });
        let acl = Self(entries.collect());
        let has = |kind| acl.0.iter().filter(|entry| entry.0 == kind).count() == 1;
        ([OWNER, GROUP, OTHER].into_iter().all(has)).then_some(acl)
    }

    /// Returns the attribute's value.
    #[must_use]
    pub fn value(&self) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for (kind, permissions, id) in &self.0 {
            value.extend(kind.to_le_bytes());
            value.extend(permissions.to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        value
    }

    /// Returns whether it says no more than a file's permission bits can.
    #[must_use]
    pub fn is_minimal(&self) -> bool {
        self.0.len() == 3
    }

    /// Returns the permission bits of a file with this list.
    #[must_use]
    pub fn mode(&self) -> u32 {
        let bits = |kind| {
            let entry = self.0.iter().find(|entry| entry.0 == kind);
            entry.map(|entry| u32::from(entry.1 & 7))
        };
        let group = bits(MASK).or_else(|| bits(GROUP));
        bits(OWNER).unwrap_or(0) << 6 | group.unwrap_or(0) << 3 | bits(OTHER).unwrap_or(0)
    }

    /// Returns the list of the file after a change of its permission bits to those of `mode`.
    #[must_use]
    pub fn with_mode(&self, mode: u32) -> Self {
        self.with(|kind_of_mode, _| (mode >> kind_of_mode & 7) as u16)
    }

    /// Returns the list that a new file gets from its directory's default list, if its maker asks for
    /// the permission bits of `mode`.
    #[must_use]
    pub fn inherited(&self, mode: u32) -> Self {
        self.with(|kind_of_mode, has| has & (mode >> kind_of_mode & 7) as u16)
    }

    /// Changes the entries that permission bits stand for: `change` gets the bits' place in a mode, and
    /// the entry's permissions.
    fn with(&self, change: impl Fn(u32, u16) -> u16) -> Self {
        let has_mask = self.0.iter().any(|entry| entry.0 == MASK);
        let entries = self.0.iter().map(|&(kind, permissions, id)| {
            let permissions = match kind {
                OWNER => change(6, permissions),
                MASK => change(3, permissions),
                GROUP if !has_mask => change(3, permissions),
                OTHER => change(0, permissions),
                _ => permissions,
            };
            (kind, permissions, id)
        });
        Self(entries.collect())
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;

    const USER: u16 = 0x02;
    const NONE: u32 = u32::MAX;

    fn list(user: bool) -> Acl {
        let mut entries = vec![(OWNER, 7, NONE)];
        if user {
            entries.push((USER, 6, 1000));
        }
        entries.push((GROUP, 5, NONE));
        if user {
            entries.push((MASK, 7, NONE));
        }
        entries.push((OTHER, 4, NONE));
        Acl(entries)
    }

    #[test]
    fn permission_bits_follow_from_a_list_and_a_list_follows_them() {
        let (minimal, more) = (list(false), list(true));
        assert_eq!((minimal.mode(), more.mode()), (0o754, 0o774));
        assert!(minimal.is_minimal() && !more.is_minimal());
        assert_eq!(more.with_mode(0o640).mode(), 0o640);
        // The mask bounds the group's entry, which stays.
        assert_eq!(more.with_mode(0o640).0.get(2), Some(&(GROUP, 5, NONE)));
        assert_eq!(minimal.with_mode(0o640).mode(), 0o640);
        assert_eq!(more.inherited(0o666).mode(), 0o664);
    }

    #[test]
    fn only_lists_are_read() {
        let value = list(true).value();
        assert_eq!(Acl::parse(&value), Some(list(true)));
        let mut other = value.clone();
        other[0] = 3;
        for wrong in [
            &[][..],
            &value[..value.len() - 1],
            &value[..4],
            &value[..12],
            &other,
        ] {
            assert_eq!(Acl::parse(wrong), None);
        }
    }
}
