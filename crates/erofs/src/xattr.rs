//! Extended attributes: names, the prefixes the format can express, the kernel's bounds.

use std::sync::Arc;

use crate::format;

/// One extended attribute. A clone shares its bytes with the original.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Xattr {
    /// The full name, such as `security.capability`.
    pub name: Arc<[u8]>,
    /// The value's bytes as `getxattr(2)` would return them.
    pub value: Arc<[u8]>,
}

/// The reason why an attribute, or an inode's set of attributes, can't be stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum XattrProblem {
    /// EROFS numbers the namespaces that it supports; this one has no number.
    #[error(
        "extended attribute \"{}\" is in a namespace that EROFS can't hold; it holds user.*, \
         trusted.*, security.*, system.posix_acl_access and system.posix_acl_default",
        .0.escape_ascii()
    )]
    Namespace(Arc<[u8]>),

    /// Linux's `XATTR_NAME_MAX`.
    #[error("extended attribute \"{}\" has a name longer than 255 bytes", .0.escape_ascii())]
    NameLength(Arc<[u8]>),

    /// A namespace without a name, or a NUL byte.
    #[error("extended attribute \"{}\" has an invalid name", .0.escape_ascii())]
    Name(Arc<[u8]>),

    /// The value's length has 16 bits on disk.
    #[error(
        "extended attribute \"{}\" has a value of {length} bytes; 65535 is the most",
        name.escape_ascii()
    )]
    ValueLength {
        /// The attribute.
        name: Arc<[u8]>,
        /// Its value's length in bytes.
        length: usize,
    },

    /// Two attributes of an inode have the same name.
    #[error("extended attribute \"{}\" is given twice", .0.escape_ascii())]
    Duplicate(Arc<[u8]>),

    /// Linux's `XATTR_LIST_MAX`: with more than this `listxattr(2)` always fails.
    #[error("the names of the extended attributes take {0} bytes together; 65536 is the most")]
    ListLength(usize),

    /// An inode counts its attributes' size in 4-byte units with 16 bits.
    #[error("the extended attributes take {0} bytes together; 262152 is the most")]
    SetLength(usize),
}

/// Linux's `XATTR_NAME_MAX`, prefix included.
const NAME_MAX: usize = 255;
/// Linux's `XATTR_LIST_MAX`: all names with a NUL each.
const LIST_MAX: usize = 65536;
/// Maximum number of bytes of attributes in an inode: a header, and 4-byte units counted with 16
/// bits. Shared attributes count in full, so that a few bytes can't demand any amount of memory.
pub(crate) const SET_MAX: usize = format::XATTR_HEADER_SIZE + 4 * (u16::MAX as usize - 1);

/// The namespaces by their number on disk. For ACLs the prefix is the whole name.
const NAMESPACES: [(u8, &[u8]); 5] = [
    (1, b"user."),
    (2, b"system.posix_acl_access"),
    (3, b"system.posix_acl_default"),
    (4, b"trusted."),
    (6, b"security."),
];

fn takes_suffix(index: u8) -> bool {
    !matches!(index, 2 | 3)
}

/// Splits a full name into the namespace's number on disk and the part that is stored.
pub(crate) fn split_name(name: &[u8]) -> Option<(u8, &[u8])> {
    NAMESPACES.iter().find_map(|&(index, prefix)| {
        let suffix = name.strip_prefix(prefix)?;
        (takes_suffix(index) || suffix.is_empty()).then_some((index, suffix))
    })
}

/// Returns the namespace's prefix for its number on disk.
pub(crate) fn prefix(index: u8) -> Option<&'static [u8]> {
    NAMESPACES
        .iter()
        .find_map(|&(number, prefix)| (number == index).then_some(prefix))
}

impl Xattr {
    /// Creates an attribute from its full name and value. Nothing is checked; see [`Xattr::check`].
    pub fn new(name: impl Into<Arc<[u8]>>, value: impl Into<Arc<[u8]>>) -> Self {
        Self {
            name: name.into(),
            value: value.into(),
        }
    }

    /// Returns the size on disk in bytes.
    pub(crate) fn stored_size(&self) -> usize {
        let suffix = split_name(&self.name).map_or(self.name.len(), |(_, suffix)| suffix.len());
        format::xattr_entry_size(suffix, self.value.len())
    }

    /// Checks that the format and the kernel can hold this attribute.
    ///
    /// # Errors
    ///
    /// The property that can't be stored. The writer makes the same check when it finishes; a
    /// caller that leaves out such attributes checks them first.
    pub fn check(&self) -> Result<(), XattrProblem> {
        let (index, suffix) =
            split_name(&self.name).ok_or_else(|| XattrProblem::Namespace(self.name.clone()))?;
        if self.name.len() > NAME_MAX {
            return Err(XattrProblem::NameLength(self.name.clone()));
        }
        if (takes_suffix(index) && suffix.is_empty()) || suffix.contains(&0) {
            return Err(XattrProblem::Name(self.name.clone()));
        }
        if self.value.len() > usize::from(u16::MAX) {
            return Err(XattrProblem::ValueLength {
                name: self.name.clone(),
                length: self.value.len(),
            });
        }
        Ok(())
    }
}

/// Checks that these attributes can be stored on one inode.
pub(crate) fn check_set<'a>(
    xattrs: impl Iterator<Item = &'a Xattr> + Clone,
) -> Result<(), XattrProblem> {
    let mut list = 0;
    let mut size = format::XATTR_HEADER_SIZE;
    let mut names: Vec<&[u8]> = Vec::new();
    for xattr in xattrs {
        xattr.check()?;
        list += xattr.name.len() + 1;
        size += xattr.stored_size();
        names.push(&xattr.name);
    }
    if list > LIST_MAX {
        return Err(XattrProblem::ListLength(list));
    }
    if size > SET_MAX {
        return Err(XattrProblem::SetLength(size));
    }
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(XattrProblem::Duplicate(pair[0].into())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_split_at_the_prefixes_the_kernel_knows() {
        assert_eq!(split_name(b"user.a.b"), Some((1, &b"a.b"[..])));
        assert_eq!(split_name(b"system.posix_acl_access"), Some((2, &b""[..])));
        assert_eq!(split_name(b"system.posix_acl_default"), Some((3, &b""[..])));
        assert_eq!(
            split_name(b"trusted.overlay.opaque"),
            Some((4, &b"overlay.opaque"[..]))
        );
        assert_eq!(
            split_name(b"security.capability"),
            Some((6, &b"capability"[..]))
        );
        assert_eq!(split_name(b"system.nfs4_acl"), None);
        assert_eq!(split_name(b"system.posix_acl_access2"), None);
        assert_eq!(split_name(b"com.apple.quarantine"), None);
    }

    #[test]
    fn limits_of_attributes_are_the_kernels() {
        let long = |n: usize| [b"user.".as_slice(), &vec![b'x'; n]].concat();
        assert_eq!(Xattr::new(long(250), *b"").check(), Ok(()));
        assert!(matches!(
            Xattr::new(long(251), *b"").check(),
            Err(XattrProblem::NameLength(_))
        ));
        assert!(matches!(
            Xattr::new(long(0), *b"").check(),
            Err(XattrProblem::Name(_))
        ));
        assert!(matches!(
            Xattr::new(*b"user.a\0b", *b"").check(),
            Err(XattrProblem::Name(_))
        ));
        assert_eq!(Xattr::new(*b"user.a", vec![0; 65535]).check(), Ok(()));
        assert!(matches!(
            Xattr::new(*b"user.a", vec![0; 65536]).check(),
            Err(XattrProblem::ValueLength { length: 65536, .. })
        ));
    }

    #[test]
    fn sets_of_attributes_are_bounded_and_free_of_duplicates() {
        let a = Xattr::new(*b"user.a", *b"1");
        let b = Xattr::new(*b"user.a", *b"2");
        assert!(matches!(
            check_set([&a, &b].into_iter()),
            Err(XattrProblem::Duplicate(_))
        ));
        let many: Vec<_> = (0..300)
            .map(|i| Xattr::new(format!("user.{i:0250}").into_bytes(), *b""))
            .collect();
        assert!(matches!(
            check_set(many.iter()),
            Err(XattrProblem::ListLength(76800))
        ));
        assert_eq!(check_set(many[..256].iter()), Ok(()));
    }
}
