//! Reads directories.

use super::{Inode, Reader};
use crate::format::{self, DIRENT_SIZE, FileType, NAME_MAX};
use crate::source::ReadAt;
use crate::{BLOCK_SIZE, Result};

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The name: 1 to 255 bytes without slash or NUL, neither `.` nor `..`.
    pub name: Box<[u8]>,
    /// Number of the inode.
    pub nid: u64,
    /// Type of the inode, as stored in the entry.
    pub kind: FileType,
}

impl<R: ReadAt> Reader<R> {
    /// Returns all entries of a directory, in ascending order of their names as raw bytes, without
    /// `.` and `..`.
    ///
    /// # Errors
    ///
    /// [`crate::Error::CorruptInode`] if anything is out of order, or if `directory` is not a
    /// directory.
    pub fn read_dir(&self, directory: &Inode) -> Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        self.for_each_entry(directory, |name, nid, kind| {
            entries.push(DirEntry {
                name: name.into(),
                nid,
                kind,
            });
            Ok(())
        })?;
        Ok(entries)
    }

    /// Returns the entry with this name. `.` and `..` are not found.
    ///
    /// # Errors
    ///
    /// Those of [`Reader::read_dir`] for the blocks that the search reads.
    pub fn lookup(&self, directory: &Inode, name: &[u8]) -> Result<Option<DirEntry>> {
        check_is_directory(directory)?;
        if matches!(name, b"." | b"..") {
            return Ok(None);
        }
        // The last block whose first name is not above the wanted one.
        let mut block = Block::default();
        let mut low = 0;
        let mut high = directory.size.div_ceil(BLOCK_SIZE);
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            block.read(self, directory, middle)?;
            if block.first_name(directory)? <= name {
                low = middle;
            } else {
                high = middle;
            }
        }
        if high == 0 {
            return Ok(None);
        }
        block.read(self, directory, low)?;
        let mut found = None;
        block.for_each(directory, &mut Vec::new(), &mut |entry, nid, kind| {
            if entry == name {
                found = Some(DirEntry {
                    name: entry.into(),
                    nid,
                    kind,
                });
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Calls `f` for each entry except `.` and `..`, without allocating for each.
    ///
    /// # Errors
    ///
    /// Those of [`Reader::read_dir`], and those of `f`.
    pub fn for_each_entry(
        &self,
        directory: &Inode,
        mut f: impl FnMut(&[u8], u64, FileType) -> Result<()>,
    ) -> Result<()> {
        self.for_each_dirent(directory, |name, nid, kind| match name {
            b"." | b".." => Ok(()),
            _ => f(name, nid, kind),
        })
    }

    /// Does the same as [`Reader::for_each_entry`], including `.` and `..`.
    pub(crate) fn for_each_dirent(
        &self,
        directory: &Inode,
        mut f: impl FnMut(&[u8], u64, FileType) -> Result<()>,
    ) -> Result<()> {
        check_is_directory(directory)?;
        let mut block = Block::default();
        let mut previous = Vec::new();
        for number in 0..directory.size.div_ceil(BLOCK_SIZE) {
            block.read(self, directory, number)?;
            block.for_each(directory, &mut previous, &mut f)?;
        }
        Ok(())
    }
}

fn check_is_directory(inode: &Inode) -> Result<()> {
    match inode.kind {
        FileType::Directory => Ok(()),
        _ => Err(inode.corrupt("it is used as a directory but is not one")),
    }
}

/// One block of a directory.
#[derive(Default)]
struct Block {
    bytes: Vec<u8>,
}

impl Block {
    fn read<R: ReadAt>(&mut self, reader: &Reader<R>, dir: &Inode, number: u64) -> Result<()> {
        let start = number * BLOCK_SIZE;
        let length = dir.size.saturating_sub(start).min(BLOCK_SIZE) as usize;
        self.bytes.resize(length, 0);
        match reader.read(dir, start, &mut self.bytes)? {
            read if read == length => Ok(()),
            _ => Err(dir.corrupt("a directory block can't be read")),
        }
    }

    /// Returns the number of entries in the block: the first name starts where the entries end.
    fn count(&self, directory: &Inode) -> Result<usize> {
        let entries = match self.bytes.get(..DIRENT_SIZE) {
            Some(first) => usize::from(format::decode_dirent(first).1),
            None => 0,
        };
        if entries == 0 || entries >= self.bytes.len() || !entries.is_multiple_of(DIRENT_SIZE) {
            return Err(directory.corrupt("a directory block has no valid entry count"));
        }
        Ok(entries / DIRENT_SIZE)
    }

    /// Returns entry `index` of `count`: name, inode number, type number.
    fn entry(&self, directory: &Inode, index: usize, count: usize) -> Result<(&[u8], u64, u8)> {
        let at = index * DIRENT_SIZE;
        let dirent = self.bytes.get(at..).unwrap_or_default();
        let (nid, from, kind) = format::decode_dirent(dirent);
        let to = if index + 1 < count {
            let next = self.bytes.get(at + DIRENT_SIZE..).unwrap_or_default();
            usize::from(format::decode_dirent(next).1)
        } else {
            self.bytes.len()
        };
        let from = usize::from(from);
        let name = match self.bytes.get(from..to) {
            Some(name) if from >= count * DIRENT_SIZE => name,
            _ => return Err(directory.corrupt("a directory entry's name lies outside its block")),
        };
        // Zeros fill the block after its last name.
        let name = match name.iter().position(|&byte| byte == 0) {
            Some(end) if index + 1 == count => &name[..end],
            _ => name,
        };
        if name.is_empty() || name.len() > NAME_MAX || name.iter().any(|b| matches!(b, 0 | b'/')) {
            return Err(directory.corrupt("a directory entry has an invalid name"));
        }
        Ok((name, nid, kind))
    }

    fn first_name(&self, directory: &Inode) -> Result<&[u8]> {
        let count = self.count(directory)?;
        Ok(self.entry(directory, 0, count)?.0)
    }

    /// Calls `f` for each entry. `previous` is the last name of the previous block, and becomes the
    /// last name of this one.
    fn for_each(
        &self,
        directory: &Inode,
        previous: &mut Vec<u8>,
        f: &mut impl FnMut(&[u8], u64, FileType) -> Result<()>,
    ) -> Result<()> {
        let count = self.count(directory)?;
        let mut last: &[u8] = previous;
        for index in 0..count {
            let (name, nid, kind) = self.entry(directory, index, count)?;
            if name <= last {
                return Err(directory.corrupt("directory entries are not in ascending order"));
            }
            last = name;
            let kind = FileType::of_number(kind)
                .ok_or_else(|| directory.corrupt("a directory entry has an unknown type"))?;
            f(name, nid, kind)?;
        }
        let last = last.to_vec();
        *previous = last;
        Ok(())
    }
}
