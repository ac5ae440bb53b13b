//! Reads and writes extended attributes and access control lists in an archive's records.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};

use crate::{Records, acl, pax, printable};

/// The reason why a member's attributes can't be kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum XattrError {
    /// In a record whose name and value are both encoded, one of them is malformed.
    #[error("the extended header's `{0}` is not encoded as libarchive does it")]
    Encoding(String),
    /// Linux's `XATTR_NAME_MAX`.
    #[error("extended attribute \"{0}\" has a name longer than 255 bytes")]
    NameLength(String),
    /// A namespace without a name, or a NUL byte.
    #[error("extended attribute \"{0}\" has an invalid name")]
    Name(String),
    /// Linux's `XATTR_SIZE_MAX`.
    #[error("extended attribute \"{name}\" has a value of {length} bytes; 65535 is the most")]
    ValueLength {
        /// The attribute.
        name: String,
        /// Its value's length in bytes.
        length: usize,
    },
    /// The attributes exceed [`crate::Limits::xattr_size`].
    #[error("exceeds `xattr-size`")]
    TooLarge,
}

/// A member's extended attributes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Xattrs {
    /// Full names and values, no name twice, in order of the names.
    pub kept: Vec<(Vec<u8>, Vec<u8>)>,
    /// How many attributes were left out.
    pub dropped: u64,
}

/// Linux's `XATTR_NAME_MAX`, prefix included.
const NAME_MAX: usize = 255;
/// Maximum length of a value in bytes: one less than Linux's `XATTR_SIZE_MAX`, which EROFS can't
/// hold.
const VALUE_MAX: usize = 65535;
/// The namespaces of Linux, besides the two names of access control lists.
const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
/// An access control list in the form of `setxattr(2)`.
pub(crate) const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
/// The access control list that a directory passes on to new files in it.
pub(crate) const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";

/// libarchive omits the padding; other writers of its records include it.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

impl Records {
    /// Returns the attributes in the records, of at most `most` bytes. Left out are attributes of
    /// namespaces that Linux doesn't have (mostly macOS's), access control lists that give users by
    /// name instead of number, and malformed lists.
    ///
    /// `SCHILY.xattr.*` (GNU tar, star, Go) has the plain value, `LIBARCHIVE.xattr.*` (bsdtar,
    /// which writes both) the same encoded, `SCHILY.acl.*` an access control list as text. The
    /// first form takes precedence over the others.
    ///
    /// # Errors
    ///
    /// [`XattrError`]; no attribute is kept then.
    pub fn xattrs(&self, most: u64) -> Result<Xattrs, XattrError> {
        let mut found = Found {
            xattrs: BTreeMap::new(),
            dropped: 0,
            size: 0,
            most,
        };
        for (key, value) in self.iter() {
            if let Some(encoded) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
                let error = || XattrError::Encoding(printable(key));
                let name = percent_decode(encoded).ok_or_else(error)?;
                found.set(&name, &BASE64.decode(value).map_err(|_| error())?)?;
            }
        }
        for (key, value) in self.iter() {
            let name = match key {
                b"SCHILY.acl.access" => ACL_ACCESS,
                b"SCHILY.acl.default" => ACL_DEFAULT,
                _ => continue,
            };
            match acl::from_text(value) {
                Ok(Some(value)) => found.set(name, &value)?,
                Ok(None) => {}
                // Docker and containerd leave out every list of this kind, GNU tar those that it
                // can't interpret.
                Err(_) => found.dropped += 1,
            }
        }
        for (key, value) in self.iter() {
            if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                found.set(name, value)?;
            }
        }
        Ok(Xattrs {
            kept: found.xattrs.into_iter().collect(),
            dropped: found.dropped,
        })
    }
}

struct Found {
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    dropped: u64,
    /// Size in bytes of names and values so far.
    size: u64,
    most: u64,
}

impl Found {
    fn set(&mut self, name: &[u8], value: &[u8]) -> Result<(), XattrError> {
        self.size += (name.len() + value.len()) as u64;
        if self.size > self.most {
            return Err(XattrError::TooLarge);
        }
        if !is_known(name) {
            // Same as Docker and containerd where the kernel returns ENOTSUP.
            self.dropped += 1;
            return Ok(());
        }
        check(name, value)?;
        self.xattrs.insert(name.to_vec(), value.to_vec());
        Ok(())
    }
}

/// Whether Linux has the name's namespace.
fn is_known(name: &[u8]) -> bool {
    let has = |prefix: &&[u8]| name.starts_with(prefix);
    NAMESPACES.iter().any(has) || name == ACL_ACCESS || name == ACL_DEFAULT
}

/// Whether a file can have an attribute of a known namespace.
fn check(name: &[u8], value: &[u8]) -> Result<(), XattrError> {
    if name.len() > NAME_MAX {
        return Err(XattrError::NameLength(printable(name)));
    }
    if NAMESPACES.contains(&name) || name.contains(&0) {
        return Err(XattrError::Name(printable(name)));
    }
    if value.len() > VALUE_MAX {
        return Err(XattrError::ValueLength {
            name: printable(name),
            length: value.len(),
        });
    }
    Ok(())
}

/// Adds the records of an extended attribute.
pub(crate) fn put(records: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    let is_plain = !name.contains(&b'=');
    if !is_plain || value.is_empty() {
        let key = [b"LIBARCHIVE.xattr.", &*percent_encoded(name)].concat();
        pax::put(records, &key, BASE64.encode(value).as_bytes());
    }
    if is_plain {
        pax::put(records, &[b"SCHILY.xattr.", name].concat(), value);
    }
    // GNU tar accepts access control lists only as text.
    let key: &[u8] = match name {
        ACL_ACCESS => b"SCHILY.acl.access",
        ACL_DEFAULT => b"SCHILY.acl.default",
        _ => return,
    };
    if let Some(text) = acl::to_text(value) {
        pax::put(records, key, text.as_bytes());
    }
}

/// Encodes a name in printable ASCII without `=`, like libarchive's `url_encode`.
fn percent_encoded(name: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(name.len());
    for &byte in name {
        match byte {
            b'%' | b'=' | ..33 | 127.. => {
                encoded.extend_from_slice(format!("%{byte:02X}").as_bytes());
            }
            _ => encoded.push(byte),
        }
    }
    encoded
}

/// Decodes `%2F`; all other bytes stand for themselves.
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

    fn xattrs(pairs: &[(&str, &[u8])], most: u64) -> Result<Xattrs, XattrError> {
        let mut records = Records::default();
        for (key, value) in pairs {
            records.push(key.as_bytes(), value);
        }
        records.xattrs(most)
    }

    #[test]
    fn both_encodings_give_one_attribute() {
        let xattrs = xattrs(
            &[
                ("SCHILY.xattr.user.plain", b"a=\n\0b"),
                ("SCHILY.xattr.user.empty", b""),
                ("LIBARCHIVE.xattr.user.plain", b"AAAA"),
                ("LIBARCHIVE.xattr.user.100%25%3d", b"AP8"),
                ("LIBARCHIVE.xattr.user.padded", b"AP8="),
                ("LIBARCHIVE.xattr.com.apple.quarantine", b"AP8="),
                ("path", b"x"),
            ],
            1000,
        )
        .unwrap();
        let pairs = [
            ("user.100%=", &b"\0\xff"[..]),
            ("user.empty", b""),
            ("user.padded", b"\0\xff"),
            ("user.plain", b"a=\n\0b"),
        ];
        let expected = pairs.map(|(name, value)| (name.as_bytes().to_vec(), value.to_vec()));
        assert_eq!((xattrs.kept, xattrs.dropped), (expected.to_vec(), 1));
    }

    #[test]
    fn an_acl_that_makes_no_sense_is_left_out() {
        for text in [&b"user::rwx"[..], b"no ACL", b"user:1:rwq", b"\xff"] {
            let xattrs = xattrs(&[("SCHILY.acl.access", text)], 99).unwrap();
            assert_eq!(
                (xattrs.kept.len(), xattrs.dropped),
                (0, 1),
                "{}",
                text.escape_ascii()
            );
        }
    }

    #[test]
    fn malformed_attributes_are_an_error() {
        let error = |key: &str, value: &[u8]| xattrs(&[(key, value)], 99).is_err();
        assert!(error("LIBARCHIVE.xattr.user.a", b"!"));
        assert!(error("LIBARCHIVE.xattr.user.%4", b"AA"));
        assert!(error("SCHILY.xattr.user.", b"x"));
        assert!(error("SCHILY.xattr.user.a", &[0; 100]));
    }

    #[test]
    fn names_and_values_as_long_as_linux_has_them() {
        let fits = |name: usize, value: usize| {
            let key = format!("SCHILY.xattr.user.{}", "x".repeat(name - 5));
            xattrs(&[(&key, &vec![0; value])], 1 << 20).is_ok()
        };
        assert!(fits(255, 65535));
        assert!(!fits(256, 1));
        assert!(!fits(10, 65536));
    }

    #[test]
    fn names_are_encoded_as_libarchive_does_it() {
        assert_eq!(percent_encoded(b"user.a=b c%\xff"), b"user.a%3Db%20c%25%FF");
    }
}
