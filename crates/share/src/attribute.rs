//! Names of extended attributes, inside and outside.
//!
//! An ordinary share has the attributes of users, but for the record of an owner. A share that is
//! the upper layer of the guest's overlay must take all that the overlay copies up, and keep it where
//! a process without privileges can:
//!
//! | inside | outside |
//! |---|---|
//! | `trusted.overlay.NAME` | `user.overlay.NAME`, which overlayfs reads with its option `userxattr` |
//! | `user.NAME` | the same, if nothing else in this table is kept under that name |
//! | any other `NAME` | `user.micabox.NAME` |

use std::borrow::Cow;
use std::ffi::{CStr, CString};

use rustix::io::Errno;

use crate::owner::RECORD;

/// overlayfs's own attributes (`OVL_XATTR_TRUSTED_PREFIX` and `OVL_XATTR_USER_PREFIX` in
/// `fs/overlayfs/overlayfs.h`).
const TRUSTED_OVERLAY: &[u8] = b"trusted.overlay.";
const USER_OVERLAY: &[u8] = b"user.overlay.";

/// Where attributes are kept that a user could not set.
const KEPT: &[u8] = b"user.micabox.";

const USER: &[u8] = b"user.";

/// Whether overlayfs itself uses the attribute.
pub(crate) fn is_overlays(name: &CStr) -> bool {
    name.to_bytes().starts_with(TRUSTED_OVERLAY)
}

/// Returns the name outside of the attribute that is called `name` inside.
///
/// # Errors
/// `EOPNOTSUPP` if the share has no such attributes: they mean something to the host's kernel, or
/// need privileges there.
pub(crate) fn outside(name: &CStr, is_upper: bool) -> Result<Cow<'_, CStr>, Errno> {
    let bytes = name.to_bytes();
    let renamed = match bytes {
        bytes if bytes.starts_with(USER) && !is_taken(bytes, is_upper) => {
            return Ok(Cow::Borrowed(name));
        }
        _ if !is_upper => return Err(Errno::NOTSUP),
        bytes => match bytes.strip_prefix(TRUSTED_OVERLAY) {
            Some(rest) => [USER_OVERLAY, rest].concat(),
            None => [KEPT, bytes].concat(),
        },
    };
    CString::new(renamed)
        .map(Cow::Owned)
        .map_err(|_| Errno::INVAL)
}

/// Returns the name inside of the attribute that is called `name` outside; none if the guest does not
/// see it.
pub(crate) fn inside(name: &[u8], is_upper: bool) -> Option<Cow<'_, [u8]>> {
    if name.starts_with(USER) && !is_taken(name, is_upper) {
        return Some(Cow::Borrowed(name));
    }
    if !is_upper {
        return None;
    }
    if let Some(rest) = name.strip_prefix(USER_OVERLAY) {
        return Some(Cow::Owned([TRUSTED_OVERLAY, rest].concat()));
    }
    // Only names that `outside` would give it: nothing has two names.
    let kept = name.strip_prefix(KEPT)?;
    let is_other = !kept.starts_with(TRUSTED_OVERLAY) && !kept.is_empty();
    let has_own = kept.starts_with(USER) && !is_taken(kept, is_upper);
    (is_other && !has_own).then_some(Cow::Borrowed(kept))
}

/// Whether the share keeps something else under a name of users.
fn is_taken(name: &[u8], is_upper: bool) -> bool {
    name == RECORD || is_upper && (name.starts_with(USER_OVERLAY) || name.starts_with(KEPT))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there(name: &CStr, is_upper: bool) -> Result<Vec<u8>, Errno> {
        outside(name, is_upper).map(|name| name.to_bytes().to_vec())
    }

    #[test]
    fn an_ordinary_share_has_the_attributes_of_users_only() {
        assert_eq!(there(c"user.a", false), Ok(b"user.a".to_vec()));
        assert_eq!(
            there(c"user.overlay.opaque", false),
            Ok(b"user.overlay.opaque".to_vec())
        );
        for name in [
            c"user.containers.override_stat",
            c"trusted.overlay.opaque",
            c"security.capability",
            c"system.posix_acl_access",
        ] {
            assert_eq!(there(name, false), Err(Errno::NOTSUP));
            assert_eq!(inside(name.to_bytes(), false), None);
        }
    }

    #[test]
    fn an_upper_has_all_attributes_each_under_a_name_of_its_own() {
        let names = [
            (c"user.a", &b"user.a"[..]),
            (c"trusted.overlay.opaque", b"user.overlay.opaque"),
            (c"user.overlay.opaque", b"user.micabox.user.overlay.opaque"),
            (c"user.micabox.a", b"user.micabox.user.micabox.a"),
            (
                c"user.containers.override_stat",
                b"user.micabox.user.containers.override_stat",
            ),
            (c"security.capability", b"user.micabox.security.capability"),
            (c"trusted.a", b"user.micabox.trusted.a"),
        ];
        for (name, kept) in names {
            assert_eq!(there(name, true), Ok(kept.to_vec()));
            assert_eq!(inside(kept, true).as_deref(), Some(name.to_bytes()));
        }
    }

    #[test]
    fn what_the_host_made_under_a_name_of_ours_is_not_seen() {
        for name in [
            &b"user.containers.override_stat"[..],
            b"user.micabox.",
            b"user.micabox.user.a",
            b"user.micabox.trusted.overlay.opaque",
            b"security.selinux",
        ] {
            assert_eq!(inside(name, true), None);
        }
    }
}
