//! Lists directories.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::{Ext4, Ino};
use crate::FileKind;
use crate::cache::Kind;
use crate::device::BlockDevice;
use crate::error::{Errno, Place, Result};
use crate::format::directory::{Entries, Entry};
use crate::format::inode::{self, flags};

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The inode.
    pub ino: Ino,
    /// Its type, if the filesystem stores it with the name (feature filetype).
    pub kind: Option<FileKind>,
    /// The name.
    pub name: Box<[u8]>,
}

impl<D: BlockDevice> Ext4<D> {
    /// Returns all names in a directory except `.` and `..`, in no particular order. Memory grows
    /// with the directory's blocks. Directories do not share blocks, so all directories together
    /// are no larger than the filesystem.
    ///
    /// # Errors
    ///
    /// [`Errno::NotADirectory`], and damage.
    pub fn read_dir(&mut self, directory: Ino) -> Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        self.for_each_entry(directory, |entry| {
            if entry.name != b"." && entry.name != b".." {
                entries.push(DirEntry {
                    ino: entry.inode,
                    kind: entry.file_type.kind(),
                    name: entry.name.into(),
                });
            }
            true
        })?;
        Ok(entries)
    }

    /// Calls `each` with every entry in use, until it returns `false`.
    pub(crate) fn for_each_entry(
        &mut self,
        directory: Ino,
        mut each: impl FnMut(&Entry<'_>) -> bool,
    ) -> Result<()> {
        if self.directory_inode(directory)?.has(flags::INLINE_DATA) {
            return self.inline_entries(directory, |entry| {
                each(entry);
            });
        }
        let has_types = self.geometry.has_types;
        let mut logical = 0;
        while let Some((number, kind)) = self.directory_block(directory, &mut logical)? {
            self.directory_blocks
                .claim(number, directory, logical - 1)?;
            let block = self.blocks.read(&self.io, number, kind)?;
            for entry in Entries::new(block, has_types) {
                let entry = entry.map_err(|problem| Place::Block(number).corrupt(problem))?;
                if entry.inode != 0 && !each(&entry) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Returns a directory's inode.
    pub(crate) fn directory_inode(&mut self, ino: Ino) -> Result<&mut super::inode::Inode> {
        let inode = self.inode(ino)?;
        if !inode.is(inode::S_IFDIR) {
            return Err(Errno::NotADirectory.into());
        }
        if inode.has(flags::CASEFOLD) {
            return Err(crate::Error::Unsupported("a casefolded directory"));
        }
        Ok(inode)
    }

    /// Returns the next block of a directory from `logical` on, and sets `logical` to the block
    /// after it. Skips holes.
    pub(crate) fn directory_block(
        &mut self,
        directory: Ino,
        logical: &mut u32,
    ) -> Result<Option<(u64, Kind)>> {
        let blocks = self.directory_blocks(directory)?;
        while *logical < blocks {
            let mapping = self.map(directory, *logical)?;
            match mapping.data() {
                Some(physical) => {
                    let kind = self.directory_kind(directory, *logical)?;
                    *logical += 1;
                    return Ok(Some((physical, kind)));
                }
                None => *logical = logical.saturating_add(mapping.length.max(1)),
            }
        }
        Ok(None)
    }

    /// Returns the number of blocks of a directory.
    pub(crate) fn directory_blocks(&mut self, directory: Ino) -> Result<u32> {
        let size = self.inode(directory)?.raw.size();
        u32::try_from(self.geometry.blocks_for(size))
            .ok()
            .filter(|&blocks| u64::from(blocks) <= self.geometry.blocks_count)
            .ok_or(Place::Inode(directory).corrupt("the directory is larger than the filesystem"))
    }

    /// Returns the cache's kind of a directory block.
    pub(crate) fn directory_kind(&mut self, directory: Ino, logical: u32) -> Result<Kind> {
        let inode = self.inode(directory)?;
        Ok(Kind::Directory {
            seed: inode.seed,
            root: logical == 0 && inode.has(flags::INDEX),
        })
    }
}
