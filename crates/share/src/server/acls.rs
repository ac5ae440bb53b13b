//! Access control lists of an upper layer. The guest's kernel applies them; to keep them and a file's
//! permission bits as one is a filesystem's task (`FUSE_POSIX_ACL`).

use std::ffi::CStr;
use std::os::fd::OwnedFd;

use micabox_file::acl::Acl;
use rustix::fs::{AtFlags, CWD, Mode, Stat, XattrFlags, chmodat, getxattr, removexattr, setxattr};
use rustix::io::Errno;

use super::Server;
use crate::attribute::outside;
use crate::owner::{PLAIN, path};
use crate::shown::Shown;

/// The lists of a file, and of what is made in a directory.
pub(super) const ACCESS: &CStr = c"system.posix_acl_access";
const DEFAULT: &CStr = c"system.posix_acl_default";

/// Longest value (`XATTR_SIZE_MAX`).
const LONGEST: usize = 64 << 10;

/// What a new file gets.
#[derive(Debug)]
pub(super) struct New {
    /// Permission, set-id and sticky bits.
    pub(super) mode: u32,
    access: Option<Acl>,
    default: Option<Acl>,
}

impl New {
    /// Something with these bits and without lists.
    pub(super) fn plain(mode: u32) -> Self {
        Self {
            mode,
            access: None,
            default: None,
        }
    }
}

impl Server {
    /// Returns what something new in `directory` gets, whose maker asks for the bits of `mode` and whose
    /// umask is `umask`.
    pub(super) fn new_file(
        &self,
        directory: &OwnedFd,
        mode: u32,
        umask: u32,
        is_directory: bool,
    ) -> Result<New, Errno> {
        let mode = mode & 0o7777;
        let default = if self.is_upper {
            list(directory, DEFAULT)?
        } else {
            None
        };
        let Some(default) = default else {
            return Ok(New::plain(mode & !(umask & PLAIN)));
        };
        let access = default.inherited(mode);
        Ok(New {
            mode: mode & !PLAIN | access.mode(),
            access: Some(access).filter(|access| !access.is_minimal()),
            default: is_directory.then_some(default),
        })
    }

    /// Gives a new file its lists.
    pub(super) fn give_lists(&self, file: &OwnedFd, new: &New) -> Result<(), Errno> {
        for (name, list) in [(ACCESS, &new.access), (DEFAULT, &new.default)] {
            if let Some(list) = list {
                set_list(file, name, list)?;
            }
        }
        Ok(())
    }

    /// Sets the list of a file, and its permission bits with it.
    pub(super) fn set_access(
        &self,
        file: &OwnedFd,
        stat: &Stat,
        mut shown: Shown,
        value: &[u8],
    ) -> Result<(), Errno> {
        let list = Acl::parse(value).ok_or(Errno::INVAL)?;
        if list.is_minimal() {
            match removexattr(path(file), &*outside(ACCESS, true)?) {
                Err(Errno::NODATA) => {}
                result => result?,
            }
        } else {
            set_list(file, ACCESS, &list)?;
        }
        shown.mode = shown.mode & !PLAIN | list.mode();
        self.show(file, stat, shown)?;
        let plain = Mode::from_raw_mode(list.mode());
        chmodat(CWD, path(file), plain, AtFlags::empty())
    }

    /// Makes a file's list, if it has one, follow its new permission bits.
    pub(super) fn follow_mode(&self, file: &OwnedFd, mode: u32) -> Result<(), Errno> {
        match list(file, ACCESS)? {
            Some(list) => set_list(file, ACCESS, &list.with_mode(mode)),
            None => Ok(()),
        }
    }
}

fn set_list(file: &OwnedFd, name: &CStr, list: &Acl) -> Result<(), Errno> {
    let name = outside(name, true)?;
    setxattr(path(file), &*name, &list.value(), XattrFlags::empty())
}

fn list(file: &OwnedFd, name: &CStr) -> Result<Option<Acl>, Errno> {
    let name = outside(name, true)?;
    // Most files have none, and are asked with little room.
    let mut value = vec![0; 256];
    let length = match getxattr(path(file), &*name, value.as_mut_slice()) {
        Err(Errno::RANGE) => {
            value.resize(LONGEST, 0);
            getxattr(path(file), &*name, value.as_mut_slice())
        }
        result => result,
    };
    match length {
        Ok(length) => Ok(value.get(..length).and_then(Acl::parse)),
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(None),
        Err(error) => Err(error),
    }
}
