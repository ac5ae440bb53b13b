//! Visits everything in an image, and limits the cost of a visit.

use std::collections::HashSet;

use super::{Inode, Reader};
use crate::format::{COMPACT_SIZE, FileType};
use crate::source::ReadAt;
use crate::{Error, Result};

/// Prevents an image from claiming more metadata than it has bytes.
///
/// The format does not keep inodes from overlapping, or directories from sharing blocks: an image
/// of a megabyte could pretend to hold gigabytes of names or attributes. In an honest image inodes
/// are disjoint, so their sizes add up to less than the size of the image.
#[derive(Debug)]
pub(crate) struct Budget {
    left: u64,
}

impl Budget {
    pub(crate) fn new<R: ReadAt>(reader: &Reader<R>) -> Self {
        Self { left: reader.size }
    }

    /// Reduces the budget to `bytes` at most.
    pub(crate) fn at_most(self, bytes: u64) -> Self {
        Self {
            left: self.left.min(bytes),
        }
    }

    /// Accounts for an inode. The caller must account for each inode only once.
    pub(crate) fn take<R: ReadAt>(&mut self, reader: &Reader<R>, inode: &Inode) -> Result<()> {
        let body = match inode.kind {
            FileType::Directory | FileType::Symlink => inode.size,
            _ => reader.chunk_list_size(inode)?,
        };
        let cost = (COMPACT_SIZE as u64)
            .saturating_add(reader.xattrs_size(inode))
            .saturating_add(body);
        self.left = self.left.checked_sub(cost).ok_or(Error::Corrupt(
            "its inodes overlap, or add up to more than the image or a limit",
        ))?;
        Ok(())
    }
}

impl<R: ReadAt> Reader<R> {
    /// Calls `f` with the path and the inode of everything in the image: the root first (with the
    /// path `/`), every directory before its contents, in order of names. An inode with several
    /// names is visited several times.
    ///
    /// # Errors
    ///
    /// Those of corruption, including a directory that is reached twice, and the errors of `f`.
    pub fn walk(&self, mut f: impl FnMut(&[u8], &Inode) -> Result<()>) -> Result<()> {
        let mut budget = Budget::new(self);
        let mut seen = HashSet::new();
        let root = self.inode(self.root())?;
        f(b"/", &root)?;
        seen.insert(root.nid);
        budget.take(self, &root)?;
        // Entries still to visit, the next one last; each with the length of its parent's path.
        let mut pending = Vec::new();
        let mut path = Vec::new();
        let push_entries = |directory: &Inode, depth: usize, pending: &mut Vec<_>| {
            let first = pending.len();
            for entry in self.read_dir(directory)? {
                pending.push((entry, depth));
            }
            if let Some(new) = pending.get_mut(first..) {
                new.reverse();
            }
            Ok::<_, Error>(())
        };
        push_entries(&root, 0, &mut pending)?;
        while let Some((entry, depth)) = pending.pop() {
            path.truncate(depth);
            path.push(b'/');
            path.extend_from_slice(&entry.name);
            let inode = self.inode(entry.nid)?;
            if inode.kind != entry.kind {
                return Err(inode.corrupt("its type is not that of its directory entry"));
            }
            let first_time = seen.insert(inode.nid);
            if first_time {
                budget.take(self, &inode)?;
            }
            f(&path, &inode)?;
            if inode.kind == FileType::Directory {
                if !first_time {
                    return Err(inode.corrupt("it is a directory with several names"));
                }
                push_entries(&inode, path.len(), &mut pending)?;
            }
        }
        Ok(())
    }
}
