//! Finds, adds and removes names in directories.

use super::{Ext4, Ino, Name, OwnedName};
use crate::cache::Kind;
use crate::device::BlockDevice;
use crate::error::{Errno, Place, Result};
use crate::format::directory::{self, Entries, FileType};
use crate::format::extent::Extent;
use crate::format::fields;
use crate::format::inode::flags;

/// The location of a name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    pub(crate) ino: Ino,
    /// The directory's block.
    pub(crate) block: u64,
    pub(crate) kind: Kind,
    /// Offset in the block of the entry, and of the entry before it.
    pub(crate) offset: usize,
    pub(crate) before: Option<usize>,
}

impl<D: BlockDevice> Ext4<D> {
    /// Returns the inode of a name in a directory; `.` and `..` are names too.
    ///
    /// # Errors
    ///
    /// [`Errno::NotFound`], [`Errno::NotADirectory`], [`Errno::NameTooLong`], and damage.
    pub fn lookup(&mut self, directory: Ino, name: &[u8]) -> Result<Ino> {
        self.find(directory, name)?.ok_or(Errno::NotFound.into())
    }

    /// Returns the inode of a name, if the name exists.
    pub(crate) fn find(&mut self, directory: Ino, name: &[u8]) -> Result<Option<Ino>> {
        if let Some(&mut ino) = self.names.get(&Name { directory, name }) {
            return Ok(Some(ino));
        }
        check_name(name)?;
        self.directory_inode(directory)?;
        if name == b"." {
            return Ok(Some(directory));
        }
        let ino = if self.inode(directory)?.has(flags::INLINE_DATA) {
            self.find_inline(directory, name)?
        } else {
            self.find_entry(directory, name)?.map(|found| found.ino)
        };
        if let Some(ino) = ino {
            self.geometry
                .inode_group(ino)
                .ok_or(Place::Inode(directory).corrupt("an entry for an inode that cannot be"))?;
            self.remember_name(directory, name, ino);
        }
        Ok(ino)
    }

    fn find_inline(&mut self, directory: Ino, name: &[u8]) -> Result<Option<Ino>> {
        if name == b".." {
            return self.inline_parent(directory).map(Some);
        }
        let mut found = None;
        self.inline_entries(directory, |entry| {
            if entry.name == name {
                found = Some(entry.inode);
            }
        })?;
        Ok(found)
    }

    pub(crate) fn remember_name(&mut self, directory: Ino, name: &[u8], ino: Ino) {
        let bound = self.options.name_cache;
        if self.names.len() >= bound + bound / 16 {
            self.names.shrink(bound, |_| true);
        }
        self.names.insert(
            OwnedName {
                directory,
                name: name.into(),
            },
            ino,
        );
    }

    pub(crate) fn forget_name(&mut self, directory: Ino, name: &[u8]) {
        self.names.remove(&Name { directory, name });
    }

    /// Finds a name in a directory with blocks.
    pub(crate) fn find_entry(&mut self, directory: Ino, name: &[u8]) -> Result<Option<Found>> {
        if self.inode(directory)?.has(flags::INDEX) && name != b".." {
            return self.find_indexed(directory, name);
        }
        let mut logical = 0;
        while let Some((block, kind)) = self.directory_block(directory, &mut logical)? {
            if let Some(found) = self.find_in_block(block, kind, name)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Finds a name in a block.
    pub(crate) fn find_in_block(
        &mut self,
        block: u64,
        kind: Kind,
        name: &[u8],
    ) -> Result<Option<Found>> {
        let has_types = self.geometry.has_types;
        let bytes = self.blocks.read(&self.io, block, kind)?;
        let mut before = None;
        for entry in Entries::new(bytes, has_types) {
            let entry = entry.map_err(|problem| Place::Block(block).corrupt(problem))?;
            if entry.inode != 0 && entry.name == name {
                return Ok(Some(Found {
                    ino: entry.inode,
                    block,
                    kind,
                    offset: entry.offset,
                    before,
                }));
            }
            before = Some(entry.offset);
        }
        Ok(None)
    }

    /// Adds a name that the directory does not have yet.
    pub(crate) fn add_entry(
        &mut self,
        directory: Ino,
        name: &[u8],
        ino: Ino,
        file_type: FileType,
    ) -> Result<()> {
        if self.inode(directory)?.has(flags::INLINE_DATA) {
            self.expand_inline_directory(directory)?;
        }
        if self.inode(directory)?.has(flags::INDEX) {
            if self.geometry.has_index {
                self.add_indexed(directory, name, ino, file_type)?;
                return self.touch_directory(directory, name, ino);
            }
            // Without the feature the index is not kept up to date.
            self.inode_mut(directory)?.raw.flags &= !flags::INDEX;
            self.restore_linear(directory)?;
        }
        let blocks = self.directory_blocks(directory)?;
        let mut logical = self.inode(directory)?.room_hint.min(blocks);
        let mut last = 0;
        while let Some((block, kind)) = self.directory_block(directory, &mut logical)? {
            if self.insert_entry(block, kind, name, ino, file_type)? {
                self.inode(directory)?.room_hint = logical - 1;
                return self.touch_directory(directory, name, ino);
            }
            last = logical - 1;
        }
        if blocks == 1 && self.geometry.has_index {
            self.make_index(directory)?;
            self.add_indexed(directory, name, ino, file_type)?;
        } else {
            let (logical, block, kind) = self.append_directory_block(directory)?;
            self.insert_entry(block, kind, name, ino, file_type)?;
            self.inode(directory)?.room_hint = logical.max(last);
        }
        self.touch_directory(directory, name, ino)
    }

    fn touch_directory(&mut self, directory: Ino, name: &[u8], ino: Ino) -> Result<()> {
        self.remember_name(directory, name, ino);
        self.touch(directory)
    }

    /// Sets the time of the last change of the contents to the current time.
    pub(crate) fn touch(&mut self, ino: Ino) -> Result<()> {
        let (time, extra) = self.geometry.encode_time(self.now());
        let raw = &mut self.inode_mut(ino)?.raw;
        (raw.mtime, raw.mtime_extra) = (time, extra);
        (raw.ctime, raw.ctime_extra) = (time, extra);
        Ok(())
    }

    /// Sets the time of the last change of the inode to the current time.
    pub(crate) fn touch_inode(&mut self, ino: Ino) -> Result<()> {
        let (time, extra) = self.geometry.encode_time(self.now());
        let raw = &mut self.inode_mut(ino)?.raw;
        (raw.ctime, raw.ctime_extra) = (time, extra);
        Ok(())
    }

    /// Adds an entry to a block of entries, if it fits.
    pub(crate) fn insert_entry(
        &mut self,
        number: u64,
        kind: Kind,
        name: &[u8],
        ino: Ino,
        file_type: FileType,
    ) -> Result<bool> {
        let has_types = self.geometry.has_types;
        let room = self.geometry.directory_room();
        let needed = directory::entry_size(name.len());
        let bytes = self.blocks.read(&self.io, number, kind)?;
        let mut place = None;
        for entry in Entries::new(bytes, has_types) {
            let entry = entry.map_err(|problem| Place::Block(number).corrupt(problem))?;
            if entry.offset >= room {
                break;
            }
            let used = if entry.inode == 0 {
                0
            } else {
                directory::entry_size(entry.name.len())
            };
            if entry.length - used >= needed {
                place = Some((entry.offset, entry.length, used));
                break;
            }
        }
        let Some((offset, length, used)) = place else {
            return Ok(false);
        };
        let block = self.blocks.write(&self.io, number, kind)?;
        if used > 0 {
            let stored = directory::encode_length(used, block.len());
            fields::put(block, offset + 4, stored);
        }
        let byte = if has_types { file_type as u8 } else { 0 };
        directory::put_entry(block, offset + used, length - used, ino, byte, name);
        Ok(true)
    }

    /// Removes an entry.
    pub(crate) fn remove_entry(&mut self, directory: Ino, name: &[u8], found: Found) -> Result<()> {
        let block = self.blocks.write(&self.io, found.block, found.kind)?;
        let size = block.len();
        let length =
            |block: &[u8], offset| directory::decode_length(fields::get(block, offset + 4), size);
        match found.before {
            Some(before) => {
                let joined = length(block, before) + length(block, found.offset);
                fields::put(block, before + 4, directory::encode_length(joined, size));
            }
            None => fields::put(block, found.offset, 0u32),
        }
        self.inode(directory)?.room_hint = 0;
        self.forget_name(directory, name);
        self.touch(directory)
    }

    /// Points an entry to another inode.
    pub(crate) fn replace_entry(
        &mut self,
        directory: Ino,
        name: &[u8],
        found: Found,
        ino: Ino,
        file_type: FileType,
    ) -> Result<()> {
        let has_types = self.geometry.has_types;
        let block = self.blocks.write(&self.io, found.block, found.kind)?;
        fields::put(block, found.offset, ino);
        if has_types {
            fields::put(block, found.offset + 7, file_type as u8);
        }
        self.touch_directory(directory, name, ino)
    }

    /// Adds an empty block to a directory.
    pub(crate) fn append_directory_block(&mut self, directory: Ino) -> Result<(u32, u64, Kind)> {
        let logical = self.directory_blocks(directory)?;
        let goal = match logical.checked_sub(1) {
            Some(last) => self
                .map(directory, last)?
                .physical
                .map_or(0, |block| block + 1),
            None => self.goal_of(directory),
        };
        if self.available_blocks() < 8 {
            return Err(Errno::NoSpace.into());
        }
        let (physical, _) = self.allocate_blocks(goal, 1)?;
        self.insert_extent(
            directory,
            Extent {
                logical,
                length: 1,
                physical,
                unwritten: false,
            },
        )?;
        self.add_blocks(directory, 1)?;
        let size = (u64::from(logical) + 1) << self.geometry.block_bits;
        self.inode_mut(directory)?.raw.set_size(size);
        let kind = self.directory_kind(directory, logical)?;
        let has_checksums = self.geometry.has_checksums;
        let room = self.geometry.directory_room();
        let block = self.blocks.fresh(physical, kind)?;
        clear_entries(block, room, has_checksums);
        Ok((logical, physical, kind))
    }

    /// Whether a directory has no names but `.` and `..`.
    pub(crate) fn is_empty(&mut self, directory: Ino) -> Result<bool> {
        let mut empty = true;
        self.for_each_entry(directory, |entry| {
            empty = entry.name == b"." || entry.name == b"..";
            empty
        })?;
        Ok(empty)
    }
}

/// Clears a block of entries: leaves one free entry, and the one for the checksum.
pub(crate) fn clear_entries(block: &mut [u8], room: usize, has_checksums: bool) {
    block.fill(0);
    directory::put_entry(block, 0, room, 0, 0, b"");
    if has_checksums {
        directory::put_tail(block);
    }
}

/// Checks that a name is valid.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() {
        return Err(Errno::NotFound.into());
    }
    if name.len() > directory::MAX_NAME {
        return Err(Errno::NameTooLong.into());
    }
    if name.contains(&b'/') || name.contains(&0) {
        return Err(Errno::Invalid.into());
    }
    Ok(())
}
