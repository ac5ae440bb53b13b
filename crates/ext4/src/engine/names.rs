//! Creates and removes names: files, directories, links, devices.

use super::directory::{check_name, clear_entries};
use super::inode_alloc::NewInode;
use super::{Ext4, Ino};
use crate::FileKind;
use crate::device::BlockDevice;
use crate::error::{Errno, Place, Result};
use crate::format::directory::{self, FileType, MAX_LINKS};
use crate::format::features::ro_compat;
use crate::format::inode::{self, RawInode, flags};

/// Ownership and permissions of a new inode. Set-gid bits and default access control lists of the
/// directory are not inherited; a caller that acts for users applies them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// Permissions with set-uid, set-gid and sticky bit: the lower 12 bits.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl Owner {
    /// Returns ownership by root.
    #[must_use]
    pub fn root(permissions: u16) -> Self {
        Self {
            permissions,
            uid: 0,
            gid: 0,
        }
    }
}

/// Number of blocks that a change of a directory may need: an index that splits at each level.
const DIRECTORY_BLOCKS: u64 = 8;

impl<D: BlockDevice> Ext4<D> {
    /// Creates an empty file.
    ///
    /// # Errors
    ///
    /// [`Errno::Exists`], [`Errno::NotADirectory`], [`Errno::NameTooLong`], [`Errno::NoSpace`],
    /// and damage.
    pub fn create(&mut self, parent: Ino, name: &[u8], owner: Owner) -> Result<Ino> {
        self.add_new(parent, name, FileKind::File, owner, |_, _| Ok(()))
    }

    /// Creates a device, FIFO, socket or empty file. `device` is the major and minor number.
    ///
    /// # Errors
    ///
    /// Those of [`Ext4::create`], and [`Errno::Invalid`] for a directory or symbolic link.
    pub fn mknod(
        &mut self,
        parent: Ino,
        name: &[u8],
        kind: FileKind,
        device: (u32, u32),
        owner: Owner,
    ) -> Result<Ino> {
        if matches!(kind, FileKind::Directory | FileKind::Symlink) {
            return Err(Errno::Invalid.into());
        }
        self.add_new(parent, name, kind, owner, |filesystem, ino| {
            if matches!(kind, FileKind::CharDevice | FileKind::BlockDevice) {
                let bytes = inode::encode_device(device.0, device.1);
                let block = &mut filesystem.inode_mut(ino)?.raw.block;
                if let Some(place) = block.get_mut(..bytes.len()) {
                    place.copy_from_slice(&bytes);
                }
            }
            Ok(())
        })
    }

    /// Creates a symbolic link.
    ///
    /// # Errors
    ///
    /// Those of [`Ext4::create`], [`Errno::NotFound`] for an empty target and
    /// [`Errno::NameTooLong`] for a target that does not fit in a block.
    pub fn symlink(
        &mut self,
        parent: Ino,
        name: &[u8],
        target: &[u8],
        owner: Owner,
    ) -> Result<Ino> {
        if target.is_empty() {
            return Err(Errno::NotFound.into());
        }
        if target.len() >= self.geometry.block_size.min(4096) || target.contains(&0) {
            return Err(Errno::NameTooLong.into());
        }
        let owner = Owner {
            permissions: 0o777,
            ..owner
        };
        self.add_new(parent, name, FileKind::Symlink, owner, |filesystem, ino| {
            let raw = &mut filesystem.inode_mut(ino)?.raw;
            if target.len() < raw.block.len() {
                raw.flags &= !flags::EXTENTS;
                raw.block = RawInode::default().block;
                raw.set_size(target.len() as u64);
                if let Some(place) = raw.block.get_mut(..target.len()) {
                    place.copy_from_slice(target);
                }
                return Ok(());
            }
            filesystem.write_pages(ino, 0, target)
        })
    }

    /// Creates an empty directory.
    ///
    /// # Errors
    ///
    /// Those of [`Ext4::create`], and [`Errno::TooManyLinks`].
    pub fn mkdir(&mut self, parent: Ino, name: &[u8], owner: Owner) -> Result<Ino> {
        self.check_links(parent)?;
        self.add_new(
            parent,
            name,
            FileKind::Directory,
            owner,
            |filesystem, ino| {
                let room = filesystem.geometry.directory_room();
                let has_checksums = filesystem.geometry.has_checksums;
                let (_, block, kind) = filesystem.append_directory_block(ino)?;
                let bytes = filesystem.blocks.write(&filesystem.io, block, kind)?;
                clear_entries(bytes, room, has_checksums);
                directory::put_entry(bytes, 0, 12, ino, FileType::Directory as u8, b".");
                directory::put_entry(
                    bytes,
                    12,
                    room - 12,
                    parent,
                    FileType::Directory as u8,
                    b"..",
                );
                filesystem.inode_mut(ino)?.raw.links_count = 2;
                filesystem.add_subdirectory(parent)
            },
        )
    }

    /// Adds a name for a new inode, which `finish` completes.
    fn add_new(
        &mut self,
        parent: Ino,
        name: &[u8],
        kind: FileKind,
        owner: Owner,
        finish: impl FnOnce(&mut Self, Ino) -> Result<()>,
    ) -> Result<Ino> {
        self.begin()?;
        self.check_new_name(parent, name)?;
        self.make_room(DIRECTORY_BLOCKS)?;
        if self.available_blocks() < DIRECTORY_BLOCKS {
            return Err(Errno::NoSpace.into());
        }
        let mode = kind.mode() | (owner.permissions & !inode::S_IFMT);
        let new = NewInode {
            mode,
            uid: owner.uid,
            gid: owner.gid,
        };
        let ino = self.allocate_inode(parent, new)?;
        let result = self.finish_new(parent, name, mode, ino, finish);
        if result.is_err() {
            // No other operation knows the inode yet.
            let evicted = self.abandon_inode(ino);
            self.stop_on(evicted)?;
        }
        self.stop_on(result)
    }

    fn finish_new(
        &mut self,
        parent: Ino,
        name: &[u8],
        mode: u16,
        ino: Ino,
        finish: impl FnOnce(&mut Self, Ino) -> Result<()>,
    ) -> Result<Ino> {
        self.inode_mut(ino)?.raw.links_count = 1;
        self.add_entry(parent, name, ino, FileType::from_mode(mode))?;
        if let Err(error) = finish(self, ino) {
            if let Some(found) = self.find_entry(parent, name)? {
                self.remove_entry(parent, name, found)?;
            }
            return Err(error);
        }
        Ok(ino)
    }

    fn abandon_inode(&mut self, ino: Ino) -> Result<()> {
        self.inode_mut(ino)?.raw.links_count = 0;
        self.evict(ino)
    }

    /// Checks that a directory can get a new name.
    fn check_new_name(&mut self, parent: Ino, name: &[u8]) -> Result<()> {
        check_name(name)?;
        let directory = self.directory_inode(parent)?;
        if directory.raw.links_count == 0 {
            return Err(Errno::NotFound.into());
        }
        if directory.has(flags::IMMUTABLE) {
            return Err(Errno::NotPermitted.into());
        }
        match self.find(parent, name)? {
            Some(_) => Err(Errno::Exists.into()),
            None => Ok(()),
        }
    }

    /// Checks that a directory can have one more subdirectory.
    pub(crate) fn check_links(&mut self, parent: Ino) -> Result<()> {
        let links = u32::from(self.directory_inode(parent)?.raw.links_count);
        if links >= MAX_LINKS - 1 && !self.superblock.has_ro_compat(ro_compat::DIR_NLINK) {
            return Err(Errno::TooManyLinks.into());
        }
        Ok(())
    }

    /// Counts one more subdirectory of a directory; a count that is too large becomes 1.
    pub(crate) fn add_subdirectory(&mut self, parent: Ino) -> Result<()> {
        let indexed = self.inode(parent)?.has(flags::INDEX);
        let raw = &mut self.inode_mut(parent)?.raw;
        if raw.links_count != 1 || !indexed {
            raw.links_count = raw.links_count.saturating_add(1);
            if u32::from(raw.links_count) >= MAX_LINKS {
                raw.links_count = 1;
            }
        }
        Ok(())
    }

    /// Counts one subdirectory less of a directory.
    pub(crate) fn remove_subdirectory(&mut self, parent: Ino) -> Result<()> {
        let raw = &mut self.inode_mut(parent)?.raw;
        if raw.links_count > 2 {
            raw.links_count -= 1;
        }
        Ok(())
    }

    /// Adds a name for an existing file.
    ///
    /// # Errors
    ///
    /// [`Errno::Exists`], [`Errno::NotPermitted`] for a directory or an immutable file,
    /// [`Errno::TooManyLinks`], those of [`Ext4::create`], and damage.
    pub fn link(&mut self, ino: Ino, parent: Ino, name: &[u8]) -> Result<()> {
        self.begin()?;
        self.check_new_name(parent, name)?;
        self.make_room(DIRECTORY_BLOCKS)?;
        let inode = self.inode(ino)?;
        if inode.is(inode::S_IFDIR) || inode.has(flags::IMMUTABLE) || inode.has(flags::APPEND) {
            return Err(Errno::NotPermitted.into());
        }
        if u32::from(inode.raw.links_count) >= MAX_LINKS {
            return Err(Errno::TooManyLinks.into());
        }
        if inode.raw.links_count == 0 {
            return Err(Errno::NotFound.into());
        }
        let file_type = FileType::from_mode(inode.raw.mode);
        let result = self.add_entry(parent, name, ino, file_type);
        self.stop_on(result)?;
        self.inode_mut(ino)?.raw.links_count += 1;
        self.touch_inode(ino)
    }

    /// Removes a name of anything except a directory. The inode is freed if it has no other name
    /// and is not held.
    ///
    /// # Errors
    ///
    /// [`Errno::NotFound`], [`Errno::IsADirectory`], [`Errno::NotPermitted`] for an immutable
    /// file, and damage.
    pub fn unlink(&mut self, parent: Ino, name: &[u8]) -> Result<()> {
        self.begin()?;
        let ino = self.lookup(parent, name)?;
        let inode = self.inode(ino)?;
        if inode.is(inode::S_IFDIR) {
            return Err(Errno::IsADirectory.into());
        }
        if inode.has(flags::IMMUTABLE) || inode.has(flags::APPEND) {
            return Err(Errno::NotPermitted.into());
        }
        let result = self.unlink_inode(parent, name, ino);
        self.stop_on(result)
    }

    fn unlink_inode(&mut self, parent: Ino, name: &[u8], ino: Ino) -> Result<()> {
        self.remove_name(parent, name)?;
        self.drop_link(ino)
    }

    /// Removes an entry.
    pub(crate) fn remove_name(&mut self, parent: Ino, name: &[u8]) -> Result<()> {
        if self.inode(parent)?.has(flags::INLINE_DATA) {
            self.expand_inline_directory(parent)?;
        }
        let found = self
            .find_entry(parent, name)?
            .ok_or(Place::Inode(parent).corrupt("the directory lost a name"))?;
        self.remove_entry(parent, name, found)
    }

    /// Counts one name less of an inode; without names, the inode is freed as soon as it is not
    /// held.
    pub(crate) fn drop_link(&mut self, ino: Ino) -> Result<()> {
        self.touch_inode(ino)?;
        let inode = self.inode_mut(ino)?;
        inode.raw.links_count = inode.raw.links_count.saturating_sub(1);
        if inode.raw.links_count > 0 {
            return Ok(());
        }
        if inode.opens > 0 {
            self.add_orphan(ino)
        } else {
            self.evict(ino)
        }
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    ///
    /// [`Errno::NotFound`], [`Errno::NotADirectory`], [`Errno::NotEmpty`], [`Errno::Invalid`] for
    /// `.`, [`Errno::Busy`] for the root, and damage.
    pub fn rmdir(&mut self, parent: Ino, name: &[u8]) -> Result<()> {
        self.begin()?;
        match name {
            b"." => return Err(Errno::Invalid.into()),
            b".." => return Err(Errno::NotEmpty.into()),
            _ => {}
        }
        let ino = self.lookup(parent, name)?;
        if ino == super::ROOT {
            return Err(Errno::Busy.into());
        }
        self.directory_inode(ino)?;
        if !self.is_empty(ino)? {
            return Err(Errno::NotEmpty.into());
        }
        let result = self.rmdir_inode(parent, name, ino);
        self.stop_on(result)
    }

    fn rmdir_inode(&mut self, parent: Ino, name: &[u8], ino: Ino) -> Result<()> {
        self.remove_name(parent, name)?;
        self.drop_directory(parent, ino)
    }

    /// Updates the link counts after an empty directory lost its name, and frees the directory
    /// unless it is held.
    pub(crate) fn drop_directory(&mut self, parent: Ino, ino: Ino) -> Result<()> {
        self.forget_name(ino, b"..");
        self.remove_subdirectory(parent)?;
        let inode = self.inode_mut(ino)?;
        inode.raw.links_count = 0;
        if inode.opens > 0 {
            self.add_orphan(ino)
        } else {
            self.evict(ino)
        }
    }
}
