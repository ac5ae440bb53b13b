//! Owners inside of files that all have one owner outside.
//!
//! The record is an extended attribute in the format of containers/storage and fuse-overlayfs
//! (`user.containers.override_stat`: `UID:GID:0MODE`), which Podman's tools read too. A file has a
//! record if its owner inside is not the share's, or if it has set-id bits or the sticky bit, which
//! no file gets outside. The kernel allows such attributes for files and directories only, so
//! symbolic links, sockets and FIFOs always show the share's owner.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{FileType, Stat, XattrFlags, getxattr, setxattr};
use rustix::io::Errno;

use crate::shown::Shown;

/// The record's name.
pub(crate) const RECORD: &[u8] = b"user.containers.override_stat";

/// The bits of a mode that only the record has: set-id bits and the sticky bit.
pub(crate) const SPECIAL: u32 = 0o7000;

/// The bits of a mode that the file itself has.
pub(crate) const PLAIN: u32 = 0o777;

/// The longest record that is read.
const LONGEST: usize = 64;

/// A user and a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ids {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// Returns the path of an open file, relative to the process's own descriptors, which are the
/// server's working directory. It leads to the file, whatever has its names now.
pub(crate) fn path(file: &OwnedFd) -> CString {
    CString::new(file.as_raw_fd().to_string()).unwrap_or_default()
}

/// Returns whether a file of this type can have a record.
pub(crate) fn can_record(kind: FileType) -> bool {
    matches!(kind, FileType::RegularFile | FileType::Directory)
}

/// Returns what the guest sees of a file, if files without a record belong to `owner`.
pub(crate) fn shown(file: &OwnedFd, stat: &Stat, owner: Ids) -> Shown {
    let found = can_record(FileType::from_raw_mode(stat.st_mode))
        .then(|| read(file))
        .flatten();
    match found {
        Some((ids, mode)) => Shown {
            uid: ids.uid,
            gid: ids.gid,
            mode: stat.st_mode & !SPECIAL | mode & SPECIAL,
        },
        None => Shown {
            uid: owner.uid,
            gid: owner.gid,
            mode: stat.st_mode,
        },
    }
}

/// Makes the guest see `shown` of a file, whose own permissions are set already.
///
/// # Errors
/// `EPERM` if the file can't have the record that this takes. A symbolic link, a socket or a FIFO
/// stays as it is.
pub(crate) fn show(file: &OwnedFd, shown: Shown, owner: Ids) -> Result<(), Errno> {
    if !can_record(FileType::from_raw_mode(shown.mode)) {
        return Ok(());
    }
    let ids = Ids {
        uid: shown.uid,
        gid: shown.gid,
    };
    let needs_none = ids == owner && shown.mode & SPECIAL == 0;
    if needs_none && read(file).is_none() {
        return Ok(());
    }
    let text = format!("{}:{}:0{:o}", ids.uid, ids.gid, shown.mode & 0o7777);
    match setxattr(path(file), RECORD, text.as_bytes(), XattrFlags::empty()) {
        Err(Errno::NOTSUP) if needs_none => Ok(()),
        Err(Errno::NOTSUP) => Err(Errno::PERM),
        result => result,
    }
}

fn read(file: &OwnedFd) -> Option<(Ids, u32)> {
    let mut text = [0; LONGEST];
    let length = getxattr(path(file), RECORD, &mut text[..]).ok()?;
    parse(text.get(..length)?)
}

fn parse(record: &[u8]) -> Option<(Ids, u32)> {
    let mut fields = std::str::from_utf8(record).ok()?.split(':');
    let uid = fields.next()?.parse().ok()?;
    let gid = fields.next()?.parse().ok()?;
    let mode = u32::from_str_radix(fields.next()?, 8).ok()?;
    Some((Ids { uid, gid }, mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_others_are_read() {
        let ids = |uid, gid| Ids { uid, gid };
        assert_eq!(parse(b"0:0:0755"), Some((ids(0, 0), 0o755)));
        // Newer versions of Podman append the type.
        assert_eq!(
            parse(b"1000:100:04755:file"),
            Some((ids(1000, 100), 0o4755))
        );
        for wrong in [
            &b""[..],
            b"0:0",
            b"a:0:0755",
            b"-1:0:0755",
            b"0:0:0999",
            b"\xff:0:0",
        ] {
            assert_eq!(parse(wrong), None);
        }
    }
}
