//! Extended attributes and ACLs as archives carry them.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use micabox_erofs::{Xattr, XattrProblem, overlay};

use super::acl;
use super::tar::Records;

/// Why an entry's attributes can't be kept.
#[derive(Debug, thiserror::Error)]
pub(super) enum Problem {
    #[error("the extended header's `{0}` is not encoded as libarchive does it")]
    Encoding(String),
    #[error(transparent)]
    Xattr(#[from] XattrProblem),
    #[error("exceeds `xattr-size`")]
    TooLarge,
}

/// libarchive leaves the padding out; others who write its records don't.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The attributes that `records` give, no name twice, and how many were left out: those of
/// namespaces that Linux doesn't have (macOS's, mostly), ACLs that name users instead of
/// numbering them, and malformed ones.
///
/// `SCHILY.xattr.*` (GNU tar, star, Go) has the plain value, `LIBARCHIVE.xattr.*` (bsdtar,
/// which writes both) the same encoded, `SCHILY.acl.*` an ACL as text. The first beats the
/// others. An archive's own `trusted.overlay.*` is escaped, so that it can't pass for a
/// marker of ours.
pub(super) fn from_records(records: &Records, most: u64) -> Result<(Vec<Xattr>, u64), Problem> {
    let mut found = Found {
        xattrs: BTreeMap::new(),
        dropped: 0,
        size: 0,
        most,
    };
    for (key, value) in records.iter() {
        if let Some(encoded) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
            let error = || Problem::Encoding(super::error::printable(key));
            let name = percent_decode(encoded).ok_or_else(error)?;
            found.set(&name, &BASE64.decode(value).map_err(|_| error())?)?;
        }
    }
    for (key, value) in records.iter() {
        let name: &[u8] = match key {
            b"SCHILY.acl.access" => b"system.posix_acl_access",
            b"SCHILY.acl.default" => b"system.posix_acl_default",
            _ => continue,
        };
        match acl::from_text(value) {
            Ok(Some(value)) => found.set(name, &value)?,
            Ok(None) => {}
            // Docker and containerd leave every ACL of this kind out, GNU tar those that it
            // can't make sense of.
            Err(_) => found.dropped += 1,
        }
    }
    for (key, value) in records.iter() {
        if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
            found.set(name, value)?;
        }
    }
    let xattrs = found
        .xattrs
        .into_iter()
        .map(|(name, value)| Xattr { name, value });
    Ok((xattrs.collect(), found.dropped))
}

struct Found {
    xattrs: BTreeMap<Arc<[u8]>, Arc<[u8]>>,
    dropped: u64,
    /// Bytes of names and values so far.
    size: u64,
    most: u64,
}

impl Found {
    fn set(&mut self, name: &[u8], value: &[u8]) -> Result<(), Problem> {
        self.size += (name.len() + value.len()) as u64;
        if self.size > self.most {
            return Err(Problem::TooLarge);
        }
        let xattr = Xattr::new(overlay::escape_xattr_name(name), value);
        match xattr.check() {
            Ok(()) => {
                self.xattrs.insert(xattr.name, xattr.value);
            }
            // What Docker and containerd do where the kernel answers ENOTSUP.
            Err(XattrProblem::Namespace(_)) => self.dropped += 1,
            Err(problem) => return Err(problem.into()),
        }
        Ok(())
    }
}

/// What a directory has after `newer` were set on it too: the newer value of each.
pub(super) fn union(older: Vec<Xattr>, newer: Vec<Xattr>) -> Vec<Xattr> {
    let both = older
        .into_iter()
        .chain(newer)
        .map(|xattr| (xattr.name, xattr.value));
    let both: BTreeMap<_, _> = both.collect();
    both.into_iter()
        .map(|(name, value)| Xattr { name, value })
        .collect()
}

/// Memory that attributes take until the layer is finished: the bytes once in the tree and,
/// with those of shared ones, once more while they are encoded.
pub(super) fn memory(xattrs: &[Xattr]) -> u64 {
    const EACH: u64 = 128;
    let bytes = |xattr: &Xattr| 2 * (xattr.name.len() + xattr.value.len()) as u64;
    xattrs.iter().map(|xattr| EACH + bytes(xattr)).sum()
}

/// Undoes `%2F`; everything else stands for itself.
fn percent_decode(text: &[u8]) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.iter();
    while let Some(&byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let mut digit = || char::from(*bytes.next()?).to_digit(16);
                (digit()? * 16 + digit()?) as u8
            }
            _ => byte,
        });
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(pairs: &[(&str, &[u8])]) -> Records {
        let mut records = Records::default();
        for (key, value) in pairs {
            records.push(key.as_bytes(), value);
        }
        records
    }

    fn names_and_values(xattrs: &[Xattr]) -> Vec<(&str, &[u8])> {
        xattrs
            .iter()
            .map(|x| (std::str::from_utf8(&x.name).unwrap(), &*x.value))
            .collect()
    }

    #[test]
    fn both_encodings_give_one_attribute() {
        let (xattrs, dropped) = from_records(
            &records(&[
                ("SCHILY.xattr.user.plain", b"a=\n\0b"),
                ("SCHILY.xattr.user.empty", b""),
                ("LIBARCHIVE.xattr.user.plain", b"AAAA"),
                ("LIBARCHIVE.xattr.user.100%25%3d", b"AP8"),
                ("LIBARCHIVE.xattr.user.padded", b"AP8="),
                ("LIBARCHIVE.xattr.com.apple.quarantine", b"AP8="),
                ("path", b"x"),
            ]),
            1000,
        )
        .unwrap();
        assert_eq!(
            names_and_values(&xattrs),
            [
                ("user.100%=", &b"\0\xff"[..]),
                ("user.empty", b""),
                ("user.padded", b"\0\xff"),
                ("user.plain", b"a=\n\0b"),
            ]
        );
        assert_eq!(dropped, 1);
    }

    #[test]
    fn markers_of_overlayfs_are_escaped() {
        let (xattrs, _) = from_records(
            &records(&[("SCHILY.xattr.trusted.overlay.opaque", b"y")]),
            99,
        )
        .unwrap();
        assert_eq!(
            names_and_values(&xattrs),
            [("trusted.overlay.overlay.opaque", &b"y"[..])]
        );
    }

    #[test]
    fn an_acl_that_makes_no_sense_is_left_out() {
        for text in [&b"user::rwx"[..], b"no ACL", b"user:1:rwq", b"\xff"] {
            let (xattrs, dropped) =
                from_records(&records(&[("SCHILY.acl.access", text)]), 99).unwrap();
            assert_eq!((xattrs.len(), dropped), (0, 1), "{}", text.escape_ascii());
        }
    }

    #[test]
    fn what_cannot_be_kept_is_an_error() {
        let error = |key: &str, value: &[u8]| from_records(&records(&[(key, value)]), 99).is_err();
        assert!(error("LIBARCHIVE.xattr.user.a", b"!"));
        assert!(error("LIBARCHIVE.xattr.user.%4", b"AA"));
        assert!(error("SCHILY.xattr.user.", b"x"));
        assert!(error("SCHILY.xattr.user.a", &[0; 100]));
    }
}
