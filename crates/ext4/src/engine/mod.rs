//! The engine of an open filesystem.
//!
//! The operations of one struct, [`Ext4`], are spread over the modules here by subject. Data flows
//! downwards: operations on names use directories, which use files' block maps, which use the
//! allocator. All of them change blocks in the metadata cache, and [`commit`] writes those to the
//! log and into place.

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
mod log_blocks;
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
use micabox_file::Timestamp;
use micabox_file::narrow::saturate32;

/// An inode's number. The root directory is inode 2.
pub type Ino = u32;

/// The root directory's inode.
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

/// A block group of an open filesystem.
#[derive(Debug)]
struct Group {
    descriptor: GroupDescriptor,
    /// Whether the descriptor differs from the one in the block cache.
    dirty: bool,
    /// The block bitmap, once loaded.
    blocks: Option<bitmap::BlockBitmap>,
    /// The inode bitmap, once loaded.
    inodes: Option<bitmap::InodeBitmap>,
    /// An upper bound of the length of the group's runs of free blocks.
    longest_run: u32,
    /// Where the search starts for blocks of files that have none.
    cursor: u32,
}

/// An open ext4 filesystem.
///
/// The caller acts as root: permissions are stored, not enforced. Operations run one at a time;
/// their changes are in memory until [`Ext4::sync`], [`Ext4::close`] or a full cache.
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
    /// Number of blocks that changed pages will need.
    reserved: u64,
    generation: u32,
    access: Access,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
    /// An error left memory and disk inconsistent.
    Stopped,
}

impl<D> Ext4<D> {
    /// Returns the superblock, except for what is kept elsewhere while the filesystem is open: free
    /// counts and times are those of the last commit.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Returns the block size in bytes.
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

    /// Records that an operation failed in the middle of a change.
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
