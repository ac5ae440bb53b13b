//! Names: how they come and go.

use std::sync::Arc;

use micabox_ground::lock;
use rustix::io::Errno;

use crate::Result;
use crate::clock::now;
use crate::directory::{NAME_MAX, check_free};
use crate::filesystem::Filesystem;
use crate::inode::{Inode, New, TARGET_MAX};
use micabox_file::Stat;

/// Most names of a file, as on ext4: the SDK's and other programs' archives hold no more of them.
pub(crate) const LINKS: u32 = 65_000;

impl Filesystem {
    /// Finds a name, and holds what it stands for.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENAMETOOLONG`, `ESTALE`; those of the lower, like all that reads a name.
    pub fn look_up(&self, directory: u64, name: &[u8]) -> Result<Stat> {
        if name.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let directory = self.inode(directory)?;
        let entries = self.entries(&directory)?;
        self.hold_child(&directory, entries.get(name).ok_or(Errno::NOENT)?)
    }

    /// Makes something new with a name, and holds it.
    ///
    /// # Errors
    /// `EEXIST`, `ENOENT` in a directory that was removed, `ENOSPC`, `EMLINK`, `ENAMETOOLONG`, `EINVAL`,
    /// `ENOTDIR`, `ESTALE`.
    pub fn make(&self, directory: u64, name: &[u8], new: &New<'_>) -> Result<Stat> {
        if new.target.len() > TARGET_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let directory = self.inode(directory)?;
        let mut entries = self.entries_mut(&directory)?;
        check_free(&entries, name)?;
        self.keep(&directory)?;
        let is_directory = new.kind == crate::FileKind::Directory;
        let inode = self.create(&directory, new, if is_directory { 2 } else { 1 })?;
        entries.insert(name, Arc::clone(&inode));
        let mut state = directory.state();
        state.links += u32::from(is_directory);
        state.modified(now());
        drop(state);
        Ok(inode.stat())
    }

    /// Makes a file without a name for a directory (`O_TMPFILE`), and holds it.
    ///
    /// # Errors
    /// `ENOSPC`, `ENOTDIR`, `ESTALE`.
    pub fn make_unnamed(&self, directory: u64, new: &New<'_>) -> Result<Stat> {
        let directory = self.inode(directory)?;
        if !directory.is_directory() {
            return Err(Errno::NOTDIR);
        }
        Ok(self.create(&directory, new, 0)?.stat())
    }

    /// Gives a file one more name, and holds it. Each name but the first takes an inode's room, as on
    /// tmpfs.
    ///
    /// # Errors
    /// Those of [`make`](Self::make); `EPERM` for a directory.
    pub fn link(&self, number: u64, directory: u64, name: &[u8]) -> Result<Stat> {
        let inode = self.inode(number)?;
        if inode.is_directory() {
            return Err(Errno::PERM);
        }
        let directory = self.inode(directory)?;
        let mut entries = self.entries_mut(&directory)?;
        check_free(&entries, name)?;
        self.keep(&directory)?;
        self.keep(&inode)?;
        let mut state = inode.state();
        if state.links >= LINKS {
            return Err(Errno::MLINK);
        }
        if state.links > 0 {
            self.room().take_inode()?;
            state.taken = state.taken.saturating_add(1);
        }
        let now = now();
        state.links += 1;
        state.ctime = now;
        drop(state);
        entries.insert(name, Arc::clone(&inode));
        directory.state().modified(now);
        Ok(inode.hold())
    }

    /// Removes the name of anything but a directory.
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR`, `ENOTDIR`, `ESTALE`.
    pub fn unlink(&self, directory: u64, name: &[u8]) -> Result<()> {
        let directory = self.inode(directory)?;
        let mut entries = self.entries_mut(&directory)?;
        let inode = self.child(&directory, entries.get(name).ok_or(Errno::NOENT)?)?;
        if inode.is_directory() {
            return Err(Errno::ISDIR);
        }
        entries.remove(name);
        let mut state = directory.state();
        self.keep_anyway(&directory, &mut state);
        state.modified(now());
        drop(state);
        drop(entries);
        self.lose_name(&inode);
        Ok(())
    }

    /// Takes one name from something that is not a directory, and frees it if that was the last.
    pub(crate) fn lose_name(&self, inode: &Inode) {
        let mut state = inode.state();
        state.links = state.links.saturating_sub(1);
        state.ctime = now();
        if state.links > 0 {
            self.keep_anyway(inode, &mut state);
            // Further names in the lower take nothing.
            if state.taken > 1 {
                state.taken -= 1;
                self.room().give_inodes(1);
            }
            return;
        }
        let is_gone = state.is_gone();
        drop(state);
        if is_gone {
            self.dispose(inode);
        }
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENOTEMPTY`, `ESTALE`.
    pub fn remove_directory(&self, directory: u64, name: &[u8]) -> Result<()> {
        let _moving = lock::read(&self.moving);
        let directory = self.inode(directory)?;
        let mut entries = self.entries_mut(&directory)?;
        let inode = self.child(&directory, entries.get(name).ok_or(Errno::NOENT)?)?;
        self.remove_if_empty(&inode)?;
        entries.remove(name);
        let mut state = directory.state();
        self.keep_anyway(&directory, &mut state);
        state.lose_directory();
        state.modified(now());
        drop(state);
        drop(entries);
        self.lose_directory(&inode);
        Ok(())
    }

    /// Takes both names of a directory that was removed.
    pub(crate) fn lose_directory(&self, inode: &Inode) {
        let mut state = inode.state();
        state.links = 0;
        state.ctime = now();
        let is_gone = state.is_gone();
        drop(state);
        if is_gone {
            self.dispose(inode);
        }
    }

    /// Marks a directory as removed, so that nothing is made in it, if it is empty.
    pub(crate) fn remove_if_empty(&self, inode: &Inode) -> Result<()> {
        let mut entries = self.entries_mut(inode)?;
        if !entries.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        entries.is_removed = true;
        Ok(())
    }
}
