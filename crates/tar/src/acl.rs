//! POSIX ACLs: their text form in archives (`SCHILY.acl.access`, as written by GNU tar, star and
//! bsdtar), and the extended attribute that stores them in Linux.

/// The reason why a text is not a usable ACL.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    /// A malformed entry.
    Malformed,
    /// A user or group given by name, whose ID can't be looked up.
    Name,
    /// An entry is missing or duplicated.
    Incomplete,
}

// From Linux's include/uapi/linux/posix_acl.h and posix_acl_xattr.h.
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
const UNDEFINED_ID: u32 = u32::MAX;
const VERSION: u32 = 2;

/// Returns the value of `system.posix_acl_access` or `…_default` for an ACL in text form: entries
/// such as `user:1000:rw-` separated by commas or newlines, `#` starting a comment, an ID possibly
/// repeated as a fourth field. All integers of the value are little-endian.
///
/// `None` for an ACL that is equivalent to the permission bits.
pub(crate) fn from_text(text: &[u8]) -> Result<Option<Vec<u8>>, Problem> {
    let mut entries = Vec::new();
    for line in text.split(|&byte| byte == b',' || byte == b'\n') {
        let before_comment = line.split(|&byte| byte == b'#').next().unwrap_or_default();
        let line = before_comment.trim_ascii();
        if !line.is_empty() {
            entries.push(entry(line)?);
        }
    }
    // The kernel requires order by tag and ID.
    entries.sort_unstable();
    if entries
        .windows(2)
        .any(|pair| (pair[0].0, pair[0].1) == (pair[1].0, pair[1].1))
    {
        return Err(Problem::Incomplete);
    }
    let has = |tag| entries.iter().any(|entry| entry.0 == tag);
    let named = has(USER) || has(GROUP);
    if !has(USER_OBJ) || !has(GROUP_OBJ) || !has(OTHER) || (named && !has(MASK)) {
        return Err(Problem::Incomplete);
    }
    if entries.len() == 3 {
        return Ok(None);
    }
    let mut value = VERSION.to_le_bytes().to_vec();
    for (tag, id, permissions) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    Ok(Some(value))
}

/// Returns the tag, ID and permissions of one entry.
fn entry(line: &[u8]) -> Result<(u16, u32, u16), Problem> {
    let mut fields = line.split(|&byte| byte == b':').map(<[u8]>::trim_ascii);
    let tag = fields.next().unwrap_or_default();
    let mut qualifier = fields.next().ok_or(Problem::Malformed)?;
    let mut permissions = fields.next();
    let id = fields.next();
    if permissions.is_none() && matches!(tag, b"mask" | b"m" | b"other" | b"o") {
        // star and Solaris leave the empty qualifier out.
        (qualifier, permissions) = (b"", Some(qualifier));
    }
    let permissions = permissions
        .and_then(parse_permissions)
        .ok_or(Problem::Malformed)?;
    let (own, named) = match tag {
        b"user" | b"u" => (USER_OBJ, Some(USER)),
        b"group" | b"g" => (GROUP_OBJ, Some(GROUP)),
        b"mask" | b"m" => (MASK, None),
        b"other" | b"o" => (OTHER, None),
        _ => return Err(Problem::Malformed),
    };
    match (qualifier, named) {
        (b"", _) => Ok((own, UNDEFINED_ID, permissions)),
        (_, None) => Err(Problem::Malformed),
        (name, Some(tag)) => {
            let number = |field: &[u8]| std::str::from_utf8(field).ok()?.parse().ok();
            let id = match id.and_then(number).or_else(|| number(name)) {
                Some(id) => id,
                // The only name with the same number on every system.
                None if name == b"root" => 0,
                None => return Err(Problem::Name),
            };
            Ok((tag, id, permissions))
        }
    }
}

/// Parses `rwx`, each letter possibly a dash, into the kernel's bits.
fn parse_permissions(text: &[u8]) -> Option<u16> {
    // Effective rights may follow as a comment, which has been removed already.
    let mut bits = 0;
    for &letter in text {
        bits |= match letter {
            b'r' => 4,
            b'w' => 2,
            b'x' => 1,
            b'-' => 0,
            _ => return None,
        };
    }
    (!text.is_empty()).then_some(bits)
}

/// Formats an access control list as text, owners and groups by number. `None` if the value does
/// not have the form of `getxattr(2)`.
pub(crate) fn to_text(value: &[u8]) -> Option<String> {
    let (version, entries) = value.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*version) != VERSION || !entries.len().is_multiple_of(8) {
        return None;
    }
    let mut text = String::new();
    for entry in entries.chunks_exact(8) {
        let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
        let (kind, id) = match u16::from_le_bytes([entry[0], entry[1]]) {
            USER_OBJ => ("user", String::new()),
            USER => ("user", id.to_string()),
            GROUP_OBJ => ("group", String::new()),
            GROUP => ("group", id.to_string()),
            MASK => ("mask", String::new()),
            OTHER => ("other", String::new()),
            _ => return None,
        };
        let permissions = u16::from_le_bytes([entry[2], entry[3]]);
        let letter = |bit, letter| if permissions & bit != 0 { letter } else { '-' };
        let (read, write, execute) = (letter(4, 'r'), letter(2, 'w'), letter(1, 'x'));
        text.push_str(&format!("{kind}:{id}:{read}{write}{execute}\n"));
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_every_archiver_is_read() {
        // As created by `setfacl -m u:1000:rw,g:5:r` on a file of mode 640.
        let expected = [
            &b"\x02\0\0\0"[..],
            b"\x01\0\x06\0\xff\xff\xff\xff",
            b"\x02\0\x06\0\xe8\x03\0\0",
            b"\x04\0\x04\0\xff\xff\xff\xff",
            b"\x08\0\x04\0\x05\0\0\0",
            b"\x10\0\x06\0\xff\xff\xff\xff",
            b"\x20\0\0\0\xff\xff\xff\xff",
        ]
        .concat();
        for text in [
            "user::rw-\nuser:1000:rw-\ngroup::r--\ngroup:5:r--\nmask::rw-\nother::---\n",
            "user::rw-,user:joe:rw-:1000,group::r--,group:tty:r--:5,mask::rw-,other::---",
            "u::rw-,g::r--,u:1000:rw-\t#effective:rw-,g:5:r--,mask:rw-,other:---",
        ] {
            assert_eq!(
                from_text(text.as_bytes()),
                Ok(Some(expected.clone())),
                "{text}"
            );
        }
        let text = to_text(&expected).unwrap();
        assert_eq!(from_text(text.as_bytes()), Ok(Some(expected)), "{text}");
    }

    #[test]
    fn permission_bits_alone_are_not_an_acl() {
        assert_eq!(from_text(b"user::rw-,group::r--,other::r--"), Ok(None));
    }

    #[test]
    fn an_acl_that_cannot_be_kept_is_named() {
        let base = "user::rwx,group::rwx,other::rwx,mask::rwx";
        let with = |entry: &str| from_text(format!("{base},{entry}").as_bytes());
        assert_eq!(with("user:joe:rwx"), Err(Problem::Name));
        assert!(with("user:root:rwx").is_ok());
        assert_eq!(with("user::rwx"), Err(Problem::Incomplete));
        for entry in [
            "user",
            "user:1",
            "user:1:rwq",
            "who:1:rwx",
            "other:1:rwx",
            "mask:",
        ] {
            assert_eq!(with(entry), Err(Problem::Malformed), "{entry}");
        }
        assert_eq!(from_text(b"user::rwx"), Err(Problem::Incomplete));
        assert_eq!(
            from_text(b"user::rwx,user:1:rwx,group::rwx,other::rwx"),
            Err(Problem::Incomplete)
        );
    }
}
