//! The filesystem while it is open.
//!
//! One struct, [`Ext4`], whose operations are spread over the modules here by subject. Data
//! flows downwards: operations on names use directories, which use files' block maps, which use
//! the allocator; all of them change blocks in the cache of metadata, and [`commit`] takes them
//! from there to the log and into place.

mod allocate;
mod attributes;
mod bitmap;
mod budget;
mod commit;
mod directory;
mod extents;
mod fallocate;
mod geometry;
mod grow;
mod htree;
mod indirect;
mod inline;
mod inode;
mod inode_alloc;
mod io;
mod journal;
mod map;
mod names;
mod open;
mod options;
mod orphan_list;
mod orphans;
mod path;
mod read;
mod read_dir;
mod rename;
mod replay;
mod stat;
mod truncate;
mod write;
mod writeback;
mod xattr_read;
mod xattr_write;

use alloc::vec::Vec;

pub use attributes::SetAttributes;
pub use fallocate::Fallocate;
pub(crate) use geometry::Geometry;
pub(crate) use io::Io;
pub use names::Owner;
pub use options::Options;
pub use read_dir::DirEntry;
pub use rename::Rename;
pub use stat::{Stat, Statistics};
pub use xattr_write::SetXattr;

use crate::cache::{Blocks, Key, Lru, Pages};
use crate::error::{Error, Place, Result};
use crate::format::group::GroupDescriptor;
use crate::format::superblock::Superblock;
use crate::narrow::saturate32;
use micabox_file::Timestamp;

/// An inode's number. The root directory's is 2.
pub type Ino = u32;

/// The root directory.
pub const ROOT: Ino = crate::format::superblock::ROOT_INODE;

/// A name in a directory, as a key.
#[derive(Debug, Hash, PartialEq, Eq)]
struct OwnedName {
    directory: Ino,
    name: alloc::boxed::Box<[u8]>,
}

/// A name in a directory, borrowed.
#[derive(Hash)]
struct Name<'a> {
    directory: Ino,
    name: &'a [u8],
}

impl Key<OwnedName> for OwnedName {
    fn is(&self, key: &OwnedName) -> bool {
        self == key
    }
}

impl Key<OwnedName> for Name<'_> {
    fn is(&self, key: &OwnedName) -> bool {
        self.directory == key.directory && *self.name == *key.name
    }
}

/// A group while the filesystem is open.
#[derive(Debug)]
struct Group {
    descriptor: GroupDescriptor,
    /// The descriptor differs from the one in the block cache.
    dirty: bool,
    /// The block bitmap, once it was needed.
    blocks: Option<bitmap::BlockBitmap>,
    /// The inode bitmap, once it was needed.
    inodes: Option<bitmap::InodeBitmap>,
    /// No run of free blocks is longer; a guess from above.
    longest_run: u32,
    /// Where to look first for blocks of files that have none.
    cursor: u32,
}

/// An open ext4 filesystem.
///
/// Whoever has it is root: permissions are kept, not enforced. One operation at a time; what it
/// changes is in memory until [`Ext4::sync`], [`Ext4::close`] or a full cache.
#[derive(Debug)]
pub struct Ext4<D> {
    io: Io<D>,
    geometry: Geometry,
    options: Options,
    superblock: Superblock,
    groups: Vec<Group>,
    /// Numbers of groups whose descriptors or bitmaps changed in the running transaction.
    dirty_groups: Vec<u32>,
    blocks: Blocks,
    pages: Pages,
    inodes: Lru<u32, inode::Inode>,
    /// Inodes changed by the running transaction.
    dirty_inodes: Vec<u32>,
    names: Lru<OwnedName, Ino>,
    journal: Option<journal::Journal>,
    transaction: commit::Transaction,
    orphans: orphan_list::OrphanList,
    directory_blocks: budget::DirectoryBlocks,
    free_blocks: u64,
    free_inodes: u32,
    /// Blocks that changed pages will need.
    reserved: u64,
    generation: u32,
    access: Access,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
    /// An error came between memory and disk.
    Stopped,
}

impl<D> Ext4<D> {
    /// The superblock, as far as it is not kept elsewhere while the filesystem is open: free
    /// counts and times are those of the last commit.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Bytes in a block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        saturate32(self.geometry.block_size)
    }

    fn now(&self) -> Timestamp {
        (self.options.clock)()
    }

    fn group(&self, group: u32) -> Result<&Group> {
        self.groups
            .get(group as usize)
            .ok_or(Place::Group(group).corrupt("no such group"))
    }

    fn group_mut(&mut self, group: u32) -> Result<&mut Group> {
        self.groups
            .get_mut(group as usize)
            .ok_or(Place::Group(group).corrupt("no such group"))
    }

    fn dirty_group(&mut self, number: u32) -> Result<&mut Group> {
        let group = self
            .groups
            .get_mut(number as usize)
            .ok_or(Place::Group(number).corrupt("no such group"))?;
        if !group.dirty {
            group.dirty = true;
            self.dirty_groups.push(number);
        }
        Ok(group)
    }

    /// Remembers that an operation failed between two halves of a change.
    fn stop_on<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result
            && self.access == Access::Write
            && matches!(error, Error::Corrupt { .. } | Error::Device(_))
        {
            self.access = Access::Stopped;
        }
        result
    }
}
