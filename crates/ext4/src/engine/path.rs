//! Resolves paths.

use alloc::vec::Vec;

use super::{Ext4, Ino, ROOT};
use crate::device::BlockDevice;
use crate::error::{Errno, Result};
use crate::format::inode;

/// Maximum number of symbolic links followed in a path, as in Linux.
const MAX_SYMLINKS: u32 = 40;

impl<D: BlockDevice> Ext4<D> {
    /// Returns the inode at a path from the filesystem's root. Follows symbolic links, including
    /// the last component; they can't lead out of the filesystem.
    ///
    /// # Errors
    ///
    /// [`Errno::NotFound`], [`Errno::NotADirectory`], [`Errno::TooManySymlinks`], and damage,
    /// with the path.
    pub fn resolve(&mut self, path: &[u8]) -> Result<Ino> {
        self.walk(path, true).map_err(|error| error.at(path))
    }

    /// Returns the inode at a path; if it is a symbolic link, the link itself.
    ///
    /// # Errors
    ///
    /// Those of [`Ext4::resolve`].
    pub fn resolve_no_follow(&mut self, path: &[u8]) -> Result<Ino> {
        self.walk(path, false).map_err(|error| error.at(path))
    }

    /// Returns the directory that has, or would have, a path's last component, and that component.
    ///
    /// # Errors
    ///
    /// Those of [`Ext4::resolve`], and [`Errno::Invalid`] for a path without a name at its end.
    pub fn resolve_parent<'a>(&mut self, path: &'a [u8]) -> Result<(Ino, &'a [u8])> {
        let end = path
            .iter()
            .rposition(|&byte| byte != b'/')
            .map_or(0, |last| last + 1);
        let trimmed = path.get(..end).unwrap_or_default();
        let start = trimmed
            .iter()
            .rposition(|&byte| byte == b'/')
            .map_or(0, |slash| slash + 1);
        let (directory, name) = trimmed.split_at(start);
        if name.is_empty() || name == b"." || name == b".." {
            return Err(crate::Error::from(Errno::Invalid).at(path));
        }
        Ok((self.resolve(directory)?, name))
    }

    fn walk(&mut self, path: &[u8], follow_last: bool) -> Result<Ino> {
        let mut at = ROOT;
        let mut symlinks = 0;
        // The remaining parts of the path, the next part last.
        let mut rest: Vec<Vec<u8>> = Vec::new();
        let mut current: &[u8] = path;
        let mut held;
        loop {
            let skip = current
                .iter()
                .position(|&byte| byte != b'/')
                .unwrap_or(current.len());
            current = current.get(skip..).unwrap_or_default();
            if current.is_empty() {
                match rest.pop() {
                    Some(more) => {
                        held = more;
                        current = &held;
                        continue;
                    }
                    None => return Ok(at),
                }
            }
            let end = current
                .iter()
                .position(|&byte| byte == b'/')
                .unwrap_or(current.len());
            let (name, after) = current.split_at(end);
            let next = self.lookup(at, name)?;
            let is_last = after.is_empty() && rest.is_empty();
            if self.inode(next)?.is(inode::S_IFLNK) && (follow_last || !is_last) {
                symlinks += 1;
                if symlinks > MAX_SYMLINKS {
                    return Err(Errno::TooManySymlinks.into());
                }
                let target = self.read_link(next)?;
                if target.is_empty() {
                    return Err(Errno::NotFound.into());
                }
                if target.starts_with(b"/") {
                    at = ROOT;
                }
                if !after.is_empty() {
                    rest.push(after.to_vec());
                }
                held = target;
                current = &held;
                continue;
            }
            at = next;
            // A slash at the end requires a directory.
            if !after.is_empty() && !self.inode(at)?.is(inode::S_IFDIR) {
                return Err(Errno::NotADirectory.into());
            }
            current = after;
        }
    }
}
