//! The children of directories: found in memory, or made over files of the lower.

use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::sync::{Arc, RwLockReadGuard, RwLockWriteGuard};

use micabox_file::FileKind;
use rustix::io::Errno;

use crate::Result;
use crate::below::{add_lower, read};
use crate::directory::{Child, Directory};
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::number::number_of;
use micabox_file::Stat;

/// An inode, which stays as long as this does.
pub(crate) struct Held<'a> {
    files: &'a Filesystem,
    inode: Arc<Inode>,
    is_held: bool,
}

impl Held<'_> {
    /// Returns one more reference, for what keeps the inode by its name.
    pub(crate) fn inode(&self) -> Arc<Inode> {
        Arc::clone(&self.inode)
    }
}

impl Deref for Held<'_> {
    type Target = Inode;

    fn deref(&self) -> &Inode {
        &self.inode
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.is_held {
            self.files.forget(self.inode.number, 1);
        }
    }
}

impl Filesystem {
    /// Returns a directory's entries, to read them.
    pub(crate) fn entries<'a>(&self, inode: &'a Inode) -> Result<RwLockReadGuard<'a, Directory>> {
        let entries = inode.known_entries()?;
        if entries.is_complete {
            return Ok(entries);
        }
        drop(entries);
        drop(self.entries_mut(inode)?);
        inode.known_entries()
    }

    /// Returns a directory's entries, to change them.
    pub(crate) fn entries_mut<'a>(
        &self,
        inode: &'a Inode,
    ) -> Result<RwLockWriteGuard<'a, Directory>> {
        let mut entries = inode.known_entries_mut()?;
        if let (false, Some(lower), Some(below)) = (
            entries.is_complete,
            self.lower.as_deref(),
            self.below(inode.number),
        ) {
            add_lower(lower, below, &mut entries)?;
        }
        Ok(entries)
    }

    /// Returns a child of a directory.
    pub(crate) fn child(&self, directory: &Inode, child: &Child) -> Result<Held<'_>> {
        let (inode, is_held) = match child {
            Child::Made(inode) => (Arc::clone(inode), false),
            Child::Below(file, kind) => (self.find(directory, *file, *kind)?, true),
        };
        Ok(Held {
            files: self,
            inode,
            is_held,
        })
    }

    /// Returns a child of a directory if its inode is in memory.
    pub(crate) fn known_child(&self, child: &Child) -> Option<Arc<Inode>> {
        match child {
            Child::Made(inode) => Some(Arc::clone(inode)),
            Child::Below(file, _) => self.inode(number_of(*file).ok()?).ok(),
        }
    }

    /// Holds a child of a directory, and returns its attributes.
    pub(crate) fn hold_child(&self, directory: &Inode, child: &Child) -> Result<Stat> {
        match child {
            Child::Made(inode) => Ok(inode.hold()),
            Child::Below(file, kind) => Ok(self.find(directory, *file, *kind)?.stat()),
        }
    }

    /// Holds the inode of a file of the lower that was found in a directory.
    fn find(&self, directory: &Inode, file: u64, kind: FileKind) -> Result<Arc<Inode>> {
        let number = number_of(file)?;
        if let Some(inode) = self.inodes.hold(number) {
            return self.checked(directory, inode, kind);
        }
        let lower = self.lower.as_ref().ok_or(Errno::IO)?;
        if file == lower.root() {
            return Err(Errno::IO);
        }
        let inode = read(lower, file, number, directory.number, kind)?;
        inode.state().holds = 1;
        let inode = Arc::new(inode);
        directory.state().holds += 1;
        match self.inodes.insert_or_hold(&inode) {
            None => Ok(inode),
            Some(there) => {
                self.forget(directory.number, 1);
                self.checked(directory, there, kind)
            }
        }
    }

    /// Returns an inode that was held, if it is what the directory says. A directory has one name: else
    /// it could be in itself.
    fn checked(&self, directory: &Inode, inode: Arc<Inode>, kind: FileKind) -> Result<Arc<Inode>> {
        let is_elsewhere =
            inode.is_directory() && inode.parent.load(Ordering::Relaxed) != directory.number;
        if inode.kind != kind || is_elsewhere {
            self.forget(inode.number, 1);
            return Err(Errno::IO);
        }
        Ok(inode)
    }
}
