//! Extended attributes (xattr(7)).

pub(crate) mod set;

use rustix::io::Errno;

use crate::Result;
use crate::clock::now;
use crate::filesystem::Filesystem;
use crate::lists;
use set::{ACCESS, DEFAULT, NAME_MAX, SIZE_MAX, take};

/// Longest list of names (`linux/limits.h`).
const LIST_MAX: usize = 64 << 10;

/// Most bytes of a file's names and values together, which archives and EROFS images hold.
const ALL_MAX: usize = 128 << 10;

/// The namespaces of Linux; the kernel itself answers for the rest of `system.`.
const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
const LISTS: [&[u8]; 2] = [ACCESS, DEFAULT];

/// Whether an attribute may be there before it is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetMode {
    /// It may.
    Any,
    /// It must not (`XATTR_CREATE`).
    Create,
    /// It must (`XATTR_REPLACE`).
    Replace,
}

impl Filesystem {
    /// Sets an attribute. If `kill_group`, the set-group-id bit goes with a new access control list
    /// (`FUSE_SETXATTR_ACL_KILL_SGID`).
    ///
    /// # Errors
    /// `EEXIST`, `ENODATA`, `ERANGE`, `E2BIG`, `ENOSPC`, `ESTALE`; `EOPNOTSUPP` for a namespace that Linux does not
    /// have; `EINVAL` for a namespace alone, and for a value that is not a list.
    pub fn set_xattr(
        &self,
        number: u64,
        name: &[u8],
        value: &[u8],
        mode: SetMode,
        kill_group: bool,
    ) -> Result<()> {
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(Errno::RANGE);
        }
        let in_namespace = |space: &&[u8]| name.starts_with(space);
        if !LISTS.contains(&name) && !NAMESPACES.iter().any(in_namespace) {
            return Err(Errno::OPNOTSUPP);
        }
        if NAMESPACES.contains(&name) {
            return Err(Errno::INVAL);
        }
        if value.len() > SIZE_MAX {
            return Err(Errno::TOOBIG);
        }
        let inode = self.inode(number)?;
        self.keep(&inode)?;
        let mut state = inode.state();
        let others = state.xattrs.iter().filter(|(other, _)| &***other != name);
        let others = others.map(|(name, value)| name.len() + value.len());
        if others.sum::<usize>() + name.len() + value.len() > ALL_MAX {
            return Err(Errno::NOSPC);
        }
        match (mode, state.xattrs.contains_key(name)) {
            (SetMode::Create, true) => return Err(Errno::EXIST),
            (SetMode::Replace, false) => return Err(Errno::NODATA),
            (_, true) => {}
            (_, false) => {
                let names: usize = state.xattrs.keys().map(|name| name.len() + 1).sum();
                if names + name.len() + 1 > LIST_MAX {
                    return Err(Errno::NOSPC);
                }
            }
        }
        if name == ACCESS {
            lists::set_access(self.room(), &mut state, value, kill_group)?;
        } else {
            take(self.room(), &mut state.xattrs, name, value)?;
        }
        state.ctime = now();
        Ok(())
    }

    /// Returns an attribute's value.
    ///
    /// # Errors
    /// `ENODATA`, `ESTALE`.
    pub fn xattr(&self, number: u64, name: &[u8]) -> Result<Vec<u8>> {
        let inode = self.inode(number)?;
        let state = inode.state();
        let value = state.xattrs.get(name).ok_or(Errno::NODATA)?;
        Ok(value.to_vec())
    }

    /// Returns the names of all attributes, each with a zero byte after it.
    ///
    /// # Errors
    /// `ESTALE`.
    pub fn xattr_names(&self, number: u64) -> Result<Vec<u8>> {
        let inode = self.inode(number)?;
        let state = inode.state();
        Ok(state
            .xattrs
            .keys()
            .flat_map(|name| [name, &b"\0"[..]].concat())
            .collect())
    }

    /// Removes an attribute.
    ///
    /// # Errors
    /// `ENODATA`, `ESTALE`.
    pub fn remove_xattr(&self, number: u64, name: &[u8]) -> Result<()> {
        let inode = self.inode(number)?;
        let mut state = inode.state();
        if state.xattrs.contains_key(name) {
            self.keep_anyway(&inode, &mut state);
        }
        if !set::remove(self.room(), &mut state.xattrs, name) {
            // A file without a list has that of its permissions.
            let is_list = name == ACCESS || name == DEFAULT;
            return if is_list { Ok(()) } else { Err(Errno::NODATA) };
        }
        state.ctime = now();
        Ok(())
    }
}
