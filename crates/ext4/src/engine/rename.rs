//! Renames files and directories.

use super::{Ext4, Ino, ROOT};
use crate::device::BlockDevice;
use crate::error::{Errno, Place, Result};
use crate::format::directory::FileType;
use crate::format::inode::{self, flags};

/// What to do if the new name exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rename {
    /// Replace the existing file or directory.
    Replace,
    /// Fail with [`Errno::Exists`].
    NoReplace,
    /// Exchange the two.
    Exchange,
}

/// One side of a rename.
#[derive(Debug, Clone, Copy)]
struct Side<'a> {
    parent: Ino,
    name: &'a [u8],
    ino: Ino,
    is_directory: bool,
    file_type: FileType,
}

impl<D: BlockDevice> Ext4<D> {
    /// Renames a file or directory; atomic with respect to crashes.
    ///
    /// # Errors
    ///
    /// [`Errno::NotFound`], [`Errno::Exists`], [`Errno::IsADirectory`], [`Errno::NotADirectory`],
    /// [`Errno::NotEmpty`], [`Errno::Invalid`] for a directory into itself, [`Errno::Busy`] for
    /// the root, [`Errno::TooManyLinks`], [`Errno::NoSpace`], and damage.
    pub fn rename(
        &mut self,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        how: Rename,
    ) -> Result<()> {
        self.begin()?;
        if [name, new_name]
            .iter()
            .any(|name| matches!(*name, b"." | b".."))
        {
            return Err(Errno::Busy.into());
        }
        self.make_room(16)?;
        let old = self.side(parent, name)?.ok_or(Errno::NotFound)?;
        super::directory::check_name(new_name)?;
        if self.directory_inode(new_parent)?.raw.links_count == 0 {
            return Err(Errno::NotFound.into());
        }
        let new = self.side(new_parent, new_name)?;
        if old.is_directory && self.is_within(new_parent, old.ino)? {
            return Err(Errno::Invalid.into());
        }
        let result = match (how, new) {
            (Rename::NoReplace, Some(_)) => Err(Errno::Exists.into()),
            (Rename::Exchange, None) => Err(Errno::NotFound.into()),
            (Rename::Exchange, Some(new)) => {
                if new.is_directory && self.is_within(parent, new.ino)? {
                    return Err(Errno::Invalid.into());
                }
                self.exchange(old, new)
            }
            (Rename::Replace, Some(new)) if new.ino == old.ino => Ok(()),
            (Rename::Replace, Some(new)) => self.replace(old, new),
            (_, None) => self.move_name(old, new_parent, new_name),
        };
        self.stop_on(result)
    }

    fn side<'a>(&mut self, parent: Ino, name: &'a [u8]) -> Result<Option<Side<'a>>> {
        let Some(ino) = self.find(parent, name)? else {
            return Ok(None);
        };
        let inode = self.inode(ino)?;
        if inode.has(flags::IMMUTABLE) || inode.has(flags::APPEND) {
            return Err(Errno::NotPermitted.into());
        }
        Ok(Some(Side {
            parent,
            name,
            ino,
            is_directory: inode.is(inode::S_IFDIR),
            file_type: FileType::from_mode(inode.raw.mode),
        }))
    }

    /// Returns whether `directory` is `ancestor` or lies below it.
    fn is_within(&mut self, directory: Ino, ancestor: Ino) -> Result<bool> {
        let mut at = directory;
        // More steps than inodes mean a cycle.
        for _ in 0..self.geometry.inodes_count {
            if at == ancestor {
                return Ok(true);
            }
            if at == ROOT {
                return Ok(false);
            }
            at = self.lookup(at, b"..")?;
        }
        Err(Place::Inode(directory).corrupt("the directory is not below the root"))
    }

    fn move_name(&mut self, old: Side<'_>, new_parent: Ino, new_name: &[u8]) -> Result<()> {
        let moves = old.is_directory && old.parent != new_parent;
        if moves {
            self.check_links(new_parent)?;
        }
        if self.available_blocks() < 8 {
            return Err(Errno::NoSpace.into());
        }
        self.add_entry(new_parent, new_name, old.ino, old.file_type)?;
        self.remove_name(old.parent, old.name)?;
        if moves {
            self.set_parent(old.ino, new_parent)?;
            self.remove_subdirectory(old.parent)?;
            self.add_subdirectory(new_parent)?;
        }
        self.touch_inode(old.ino)
    }

    fn replace(&mut self, old: Side<'_>, new: Side<'_>) -> Result<()> {
        match (old.is_directory, new.is_directory) {
            (false, true) => return Err(Errno::IsADirectory.into()),
            (true, false) => return Err(Errno::NotADirectory.into()),
            (true, true) if !self.is_empty(new.ino)? => return Err(Errno::NotEmpty.into()),
            _ => {}
        }
        self.point(new, old.ino, old.file_type)?;
        self.remove_name(old.parent, old.name)?;
        self.touch_inode(old.ino)?;
        if !old.is_directory {
            return self.drop_link(new.ino);
        }
        if old.parent != new.parent {
            self.set_parent(old.ino, new.parent)?;
            self.remove_subdirectory(old.parent)?;
            self.add_subdirectory(new.parent)?;
        }
        self.drop_directory(new.parent, new.ino)
    }

    fn exchange(&mut self, old: Side<'_>, new: Side<'_>) -> Result<()> {
        self.point(new, old.ino, old.file_type)?;
        self.point(old, new.ino, new.file_type)?;
        if old.parent != new.parent {
            for (side, to) in [(old, new.parent), (new, old.parent)] {
                if side.is_directory {
                    self.set_parent(side.ino, to)?;
                }
            }
            match (old.is_directory, new.is_directory) {
                (true, false) => {
                    self.remove_subdirectory(old.parent)?;
                    self.add_subdirectory(new.parent)?;
                }
                (false, true) => {
                    self.remove_subdirectory(new.parent)?;
                    self.add_subdirectory(old.parent)?;
                }
                _ => {}
            }
        }
        self.touch_inode(old.ino)?;
        self.touch_inode(new.ino)
    }

    /// Points a name to another inode.
    fn point(&mut self, side: Side<'_>, ino: Ino, file_type: FileType) -> Result<()> {
        if self.inode(side.parent)?.has(flags::INLINE_DATA) {
            self.expand_inline_directory(side.parent)?;
        }
        let found = self
            .find_entry(side.parent, side.name)?
            .ok_or(Place::Inode(side.parent).corrupt("the directory lost a name"))?;
        self.replace_entry(side.parent, side.name, found, ino, file_type)
    }

    /// Changes the parent of a directory.
    fn set_parent(&mut self, directory: Ino, parent: Ino) -> Result<()> {
        if self.inode(directory)?.has(flags::INLINE_DATA) {
            self.forget_name(directory, b"..");
            let block = &mut self.inode_mut(directory)?.raw.block;
            crate::format::fields::put(block, 0, parent);
            return Ok(());
        }
        let found = self
            .find_entry(directory, b"..")?
            .ok_or(Place::Inode(directory).corrupt("the directory has no \"..\""))?;
        let mtime = {
            let raw = &self.inode(directory)?.raw;
            (raw.mtime, raw.mtime_extra)
        };
        self.replace_entry(directory, b"..", found, parent, FileType::Directory)?;
        // The directory's contents did not change, so its time must not.
        let raw = &mut self.inode_mut(directory)?.raw;
        (raw.mtime, raw.mtime_extra) = mtime;
        Ok(())
    }
}
