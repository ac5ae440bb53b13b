//! The metadata of an image while it is in memory: inodes, and directories that name them.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use micabox_file::Timestamp;
use micabox_file::narrow::saturate32;

use crate::xattr::Xattr;
use crate::{Error, Result};

/// The metadata that every kind of inode has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata {
    /// Permission, set-id and sticky bits (07777). Other bits are ignored.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time.
    pub mtime: Timestamp,
    /// Extended attributes in any order, without duplicate names.
    pub xattrs: Vec<Xattr>,
}

/// Position of a regular file's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Data {
    /// Consecutive, from this block on. Without meaning for an empty file.
    Contiguous {
        /// Number of the first block.
        block: u32,
    },
    /// In pieces of equal size; some may be holes.
    Chunked(Box<Chunks>),
}

/// The pieces of a sparse file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunks {
    /// A piece has 2^`bits` blocks; 0 to 31.
    pub bits: u8,
    /// First block of each piece, or [`Chunks::HOLE`]. The last piece ends with the file.
    pub blocks: Box<[u32]>,
}

impl Chunks {
    /// The piece that reads as zeros and occupies nothing.
    pub const HOLE: u32 = u32::MAX;
}

/// The type of an inode, with what only this type has.
#[derive(Debug, Clone)]
pub enum Kind {
    /// A directory and its entries.
    Directory(Directory),
    /// A regular file.
    File {
        /// Length in bytes.
        size: u64,
        /// Where the bytes are.
        data: Data,
    },
    /// A symbolic link and its target, 1 to 4095 bytes without NUL.
    Symlink(Box<[u8]>),
    /// A character device; the number is in the form of [`crate::format::encode_device`].
    CharDevice(u32),
    /// A block device; the number is in the form of [`crate::format::encode_device`].
    BlockDevice(u32),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

impl Kind {
    /// A regular file without contents.
    pub const EMPTY_FILE: Self = Self::File {
        size: 0,
        data: Data::Contiguous { block: 0 },
    };

    /// Creates a directory without entries.
    pub fn directory() -> Self {
        Self::Directory(Directory::default())
    }
}

/// The entries of a directory; [`Tree`] has the functions that change them.
#[derive(Debug, Clone, Default)]
pub struct Directory {
    pub(crate) entries: BTreeMap<Box<[u8]>, InodeId>,
    pub(crate) parent: Option<InodeId>,
}

/// One inode of a [`Tree`].
#[derive(Debug, Clone)]
pub struct Inode {
    /// Owner, mode, time, attributes.
    pub meta: Metadata,
    /// Its type.
    pub kind: Kind,
    /// Number of names; for a directory 2 plus its subdirectories.
    pub nlink: u32,
}

impl Inode {
    /// Whether this is a directory.
    pub fn is_directory(&self) -> bool {
        matches!(self.kind, Kind::Directory(_))
    }
}

/// Identifies an inode within its [`Tree`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InodeId(pub(crate) u32);

impl InodeId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// A directory tree in memory; takes about 250 bytes per inode including its name.
///
/// Inodes are added first and then linked under a name; an inode with several names is linked
/// several times. IDs are valid as long as the tree; an inode that has no name any more is not
/// written.
#[derive(Debug, Clone)]
pub struct Tree {
    inodes: Vec<Inode>,
    /// Names and values of attributes, stored once: many inodes have the same.
    strings: HashSet<Arc<[u8]>>,
}

impl Tree {
    /// Creates a tree of one empty directory.
    pub fn new(root: Metadata) -> Self {
        Self {
            inodes: vec![Inode {
                meta: root,
                kind: Kind::directory(),
                nlink: 2,
            }],
            strings: HashSet::new(),
        }
    }

    /// Returns the root directory.
    pub fn root(&self) -> InodeId {
        InodeId(0)
    }

    /// Returns the number of inodes ever added, including the root.
    pub fn len(&self) -> usize {
        self.inodes.len()
    }

    /// Always false: a tree has a root.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Adds an inode without a name. Its attributes share memory with equal ones of inodes added
    /// earlier.
    ///
    /// # Panics
    ///
    /// On the 2^32nd inode, which takes some 400 GB of memory to reach.
    pub fn add(&mut self, mut meta: Metadata, kind: Kind) -> InodeId {
        for xattr in &mut meta.xattrs {
            self.share(&mut xattr.name);
            self.share(&mut xattr.value);
        }
        let id = InodeId(u32::try_from(self.inodes.len()).expect("less than 2^32 inodes"));
        let nlink = if matches!(kind, Kind::Directory(_)) {
            2
        } else {
            0
        };
        self.inodes.push(Inode { meta, kind, nlink });
        id
    }

    fn share(&mut self, string: &mut Arc<[u8]>) {
        match self.strings.get(string) {
            Some(shared) => *string = Arc::clone(shared),
            None => {
                self.strings.insert(Arc::clone(string));
            }
        }
    }

    /// Gives `inode` the name `name` in `directory`, and returns the inode that had the name
    /// before. The previous inode keeps its contents and may be linked elsewhere.
    ///
    /// # Errors
    ///
    /// [`Error::Name`] for an invalid name, [`Error::NotADirectory`] if `directory` is not a
    /// directory, [`Error::DirectoryLinkedTwice`] for a second name of a directory. The tree is
    /// unchanged after an error.
    pub fn link(
        &mut self,
        directory: InodeId,
        name: &[u8],
        inode: InodeId,
    ) -> Result<Option<InodeId>> {
        check_name(name)?;
        if !self.inode(directory).is_directory() {
            return Err(Error::NotADirectory { name: name.into() });
        }
        if self.lookup(directory, name) == Some(inode) {
            return Ok(Some(inode));
        }
        let is_directory = match &self.inode(inode).kind {
            Kind::Directory(d) if d.parent.is_some() || inode == self.root() => {
                return Err(Error::DirectoryLinkedTwice { name: name.into() });
            }
            Kind::Directory(_) => true,
            _ => false,
        };

        let replaced = self.unlink(directory, name);
        let target = self.inode_mut(inode);
        if let Kind::Directory(d) = &mut target.kind {
            d.parent = Some(directory);
        } else {
            target.nlink = target.nlink.saturating_add(1);
        }
        let parent = self.inode_mut(directory);
        if is_directory {
            parent.nlink = parent.nlink.saturating_add(1);
        }
        if let Kind::Directory(d) = &mut parent.kind {
            d.entries.insert(name.into(), inode);
        }
        Ok(replaced)
    }

    /// Removes a name and returns the inode that had it. The inode keeps its contents and may be
    /// linked again.
    pub fn unlink(&mut self, directory: InodeId, name: &[u8]) -> Option<InodeId> {
        let Kind::Directory(d) = &mut self.inode_mut(directory).kind else {
            return None;
        };
        let inode = d.entries.remove(name)?;
        let target = self.inode_mut(inode);
        if let Kind::Directory(d) = &mut target.kind {
            d.parent = None;
            let parent = self.inode_mut(directory);
            parent.nlink = parent.nlink.saturating_sub(1);
        } else {
            target.nlink = target.nlink.saturating_sub(1);
        }
        Some(inode)
    }

    /// Returns the inode with this name.
    pub fn lookup(&self, directory: InodeId, name: &[u8]) -> Option<InodeId> {
        match &self.inode(directory).kind {
            Kind::Directory(d) => d.entries.get(name).copied(),
            _ => None,
        }
    }

    /// Returns the inode with this ID.
    ///
    /// # Panics
    ///
    /// If the ID belongs to another tree.
    pub fn inode(&self, id: InodeId) -> &Inode {
        &self.inodes[id.index()]
    }

    /// Returns the inode with this ID, for changes. Only [`Tree::link`] and [`Tree::unlink`] change
    /// a directory's entries.
    ///
    /// # Panics
    ///
    /// If the ID belongs to another tree.
    pub fn inode_mut(&mut self, id: InodeId) -> &mut Inode {
        &mut self.inodes[id.index()]
    }

    /// Returns the directory that holds this one; `None` for the root, for an unlinked directory
    /// and for inodes other than directories.
    pub fn parent(&self, directory: InodeId) -> Option<InodeId> {
        match &self.inode(directory).kind {
            Kind::Directory(d) => d.parent,
            _ => None,
        }
    }

    /// Returns the entries of a directory, in ascending order of their names as raw bytes, without
    /// `.` and `..`. Empty if the inode is not a directory.
    pub fn entries(&self, directory: InodeId) -> impl Iterator<Item = (&[u8], InodeId)> {
        let entries = match &self.inode(directory).kind {
            Kind::Directory(d) => Some(&d.entries),
            _ => None,
        };
        entries
            .into_iter()
            .flatten()
            .map(|(name, &inode)| (&**name, inode))
    }

    /// Gives an empty directory all its entries, in ascending order of their names. Names must have
    /// been checked and directories must not be linked yet.
    pub(crate) fn fill(&mut self, directory: InodeId, entries: Vec<(Box<[u8]>, InodeId)>) {
        let mut subdirectories = 0u32;
        for &(_, id) in &entries {
            let inode = self.inode_mut(id);
            if let Kind::Directory(d) = &mut inode.kind {
                d.parent = Some(directory);
                subdirectories += 1;
            } else {
                inode.nlink = inode.nlink.saturating_add(1);
            }
        }
        let inode = self.inode_mut(directory);
        inode.nlink = inode.nlink.saturating_add(subdirectories);
        if let Kind::Directory(d) = &mut inode.kind {
            d.entries = entries.into_iter().collect();
        }
    }

    /// Removes all names from a directory.
    pub(crate) fn clear(&mut self, directory: InodeId) {
        let names: Vec<Box<[u8]>> = self.entries(directory).map(|(n, _)| n.into()).collect();
        for name in names {
            self.unlink(directory, &name);
        }
    }

    /// Takes a directory's entries out without unlinking them.
    pub(crate) fn take_entries(&mut self, directory: InodeId) -> BTreeMap<Box<[u8]>, InodeId> {
        match &mut self.inode_mut(directory).kind {
            Kind::Directory(d) => std::mem::take(&mut d.entries),
            _ => BTreeMap::new(),
        }
    }

    /// Takes the metadata and the kind out of an inode, for good.
    pub(crate) fn take(&mut self, id: InodeId) -> (Metadata, Kind) {
        let meta = self.take_metadata(id);
        let kind = std::mem::replace(&mut self.inode_mut(id).kind, Kind::Fifo);
        (meta, kind)
    }

    /// Takes the metadata out of an inode, for good.
    pub(crate) fn take_metadata(&mut self, id: InodeId) -> Metadata {
        let meta = &mut self.inode_mut(id).meta;
        let xattrs = std::mem::take(&mut meta.xattrs);
        Metadata { xattrs, ..*meta }
    }

    /// Returns the IDs of all inodes ever added.
    pub(crate) fn ids(&self) -> impl Iterator<Item = InodeId> + use<> {
        (0..saturate32(self.inodes.len())).map(InodeId)
    }

    /// Sets the link counts of all inodes except directories: as given by inode, but never below
    /// the number of names.
    pub(crate) fn set_link_counts(&mut self, counts: &[u32]) {
        self.count_links();
        for (inode, &count) in self.inodes.iter_mut().zip(counts) {
            if !inode.is_directory() {
                inode.nlink = inode.nlink.max(count);
            }
        }
    }

    /// Returns, by inode, whether it is a directory that can be reached from the root.
    pub(crate) fn reachable_directories(&self) -> Vec<bool> {
        let mut reachable = vec![false; self.inodes.len()];
        let mut pending = vec![self.root()];
        while let Some(directory) = pending.pop() {
            reachable[directory.index()] = true;
            pending.extend(
                self.entries(directory)
                    .map(|(_, id)| id)
                    .filter(|&id| self.inode(id).is_directory()),
            );
        }
        reachable
    }

    /// Returns one absolute path of an inode, for messages.
    pub(crate) fn path_of(&self, wanted: InodeId) -> Vec<u8> {
        let reachable = self.reachable_directories();
        let holds = |directory: &InodeId, id| self.entries(*directory).any(|(_, held)| held == id);
        let mut names: Vec<&[u8]> = Vec::new();
        let mut id = wanted;
        while id != self.root() {
            let parent = self.parent(id).or_else(|| {
                self.ids()
                    .filter(|directory| reachable[directory.index()])
                    .find(|directory| holds(directory, id))
            });
            let Some(parent) = parent else {
                return b"(not linked)".to_vec();
            };
            names.extend(
                self.entries(parent)
                    .find_map(|(name, held)| (held == id).then_some(name)),
            );
            id = parent;
            if names.len() > self.len() {
                // A cycle of directories without a root.
                return b"(not linked)".to_vec();
            }
        }
        let mut path = Vec::new();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        path
    }

    /// Sets every link count from the entries that can be reached from the root: entries below an
    /// unlinked directory have counted until now.
    pub(crate) fn count_links(&mut self) {
        let mut counts = vec![0u32; self.inodes.len()];
        let mut pending = vec![self.root()];
        while let Some(directory) = pending.pop() {
            counts[directory.index()] += 2;
            for (_, inode) in self.entries(directory) {
                if self.inode(inode).is_directory() {
                    counts[directory.index()] = counts[directory.index()].saturating_add(1);
                    pending.push(inode);
                } else {
                    counts[inode.index()] = counts[inode.index()].saturating_add(1);
                }
            }
        }
        for (inode, count) in self.inodes.iter_mut().zip(counts) {
            inode.nlink = count;
        }
    }
}

/// Whether `name` can name a directory entry on Linux.
fn check_name(name: &[u8]) -> Result<()> {
    let reason = match name {
        [] => "it is empty",
        b"." | b".." => "it is reserved",
        _ if name.len() > crate::format::NAME_MAX => "it is longer than 255 bytes",
        _ if name.contains(&b'/') => "it contains a slash",
        _ if name.contains(&0) => "it contains a NUL byte",
        _ => return Ok(()),
    };
    Err(Error::Name {
        name: name.into(),
        reason,
    })
}
