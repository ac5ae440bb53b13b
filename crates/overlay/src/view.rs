//! The merged view of both layers: looks up names and paths.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;

use micabox_ext4::device::ReadOnly;
use micabox_ext4::{Ext4, FileKind, Ino, Options, Owner, Segment, Stat, Timestamp};
use serde::{Deserialize, Serialize};

use crate::lower::{Lower, LowerError, Node};
use crate::path::{Loop, Way, through_links};
use crate::upper::{Upper, UpperError};
use crate::words::{self, OPAQUE};

/// A disk with an upper layer, opened read-only. Its journal is replayed in memory.
pub type Disk = Ext4<ReadOnly<File>>;

/// Opens a disk read-only; no machine may be writing to it. The file doesn't change. Disks that
/// are marked as having errors can be read as well.
///
/// # Errors
/// Those of [`Ext4::open_read_only`].
pub fn open(disk: File) -> Result<Disk, micabox_ext4::Error> {
    Ext4::open_read_only(ReadOnly(disk), Options::default())
}

/// An upper layer over a lower one.
pub struct View<U> {
    pub(crate) upper: U,
    pub(crate) lower: Arc<Lower>,
}

/// A visible file.
#[derive(Clone, Debug)]
pub enum Entry {
    /// In the upper layer.
    Upper(Stat),
    /// In the lower layer.
    Below(Node),
}

/// The entries of both layers at a name.
#[derive(Clone, Debug)]
pub struct Slot {
    /// The upper layer's entry, which may be a whiteout.
    pub upper: Option<Stat>,
    /// The lower layer's entry, visible or not.
    pub below: Option<Node>,
    /// Whether all of the lower layer is hidden in the parent directory.
    pub hidden: bool,
    /// Whether the entry is an opaque directory of the upper layer.
    pub opaque: bool,
}

/// A visible directory: of one layer, or of both.
#[derive(Clone, Debug)]
pub struct Directory {
    pub(crate) upper: Option<Ino>,
    pub(crate) below: Option<Node>,
    /// Whether all of `below` is hidden.
    pub(crate) hidden: bool,
}

/// Result of resolving a path.
#[derive(Clone, Debug)]
pub enum Found {
    /// A directory.
    Directory(Directory),
    /// Not a directory.
    Other(Entry),
}

/// Kind of file that a path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PathKind {
    /// There is no file.
    Nothing,
    /// A directory.
    Directory,
    /// Not a directory.
    Other,
}

/// Why the layers can't be read.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// The upper layer can't be read.
    #[error(transparent)]
    Upper(#[from] UpperError),
    /// The lower layer can't be read.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// No file exists at a path.
    #[error("no such file or directory")]
    Nothing,
    /// A path leads through a file that isn't a directory.
    #[error("a component of the path is not a directory")]
    NotDirectory,
    /// A path leads through more symbolic links than Linux follows.
    #[error("too many symbolic links in the path")]
    Loop,
}

impl From<Loop> for ViewError {
    fn from(_: Loop) -> Self {
        Self::Loop
    }
}

/// Names and values of extended attributes.
pub(crate) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

type Result<T, E = ViewError> = std::result::Result<T, E>;

impl Entry {
    /// Returns the kind of file; `None` only for an inode on a damaged disk.
    pub fn kind(&self) -> Option<FileKind> {
        match self {
            Self::Upper(stat) => stat.kind(),
            Self::Below(node) => Some(node.stat.kind),
        }
    }

    /// Returns permissions and owner.
    pub fn owner(&self) -> Owner {
        let (permissions, uid, gid) = match self {
            Self::Upper(stat) => (stat.mode & 0o7777, stat.uid, stat.gid),
            Self::Below(node) => (node.stat.mode, node.stat.uid, node.stat.gid),
        };
        Owner {
            permissions,
            uid,
            gid,
        }
    }

    /// Returns the time of the last change of the contents.
    pub fn mtime(&self) -> Timestamp {
        match self {
            Self::Upper(stat) => stat.mtime,
            Self::Below(node) => node.stat.mtime,
        }
    }

    /// Returns the size of a regular file in bytes.
    pub fn size(&self) -> u64 {
        match self {
            Self::Upper(stat) => stat.size,
            Self::Below(node) => node.stat.size,
        }
    }

    /// Returns the major and minor number of a device.
    pub fn device(&self) -> (u32, u32) {
        match self {
            Self::Upper(stat) => stat.device,
            Self::Below(node) => node.stat.device,
        }
    }

    /// Returns an identifier that all names of the file share, if it has more than one.
    pub fn linked(&self) -> Option<(bool, u64)> {
        match self {
            Self::Upper(stat) => (stat.links > 1).then_some((true, stat.ino.into())),
            Self::Below(node) => node.linked().map(|number| (false, number)),
        }
    }
}

impl Slot {
    /// Returns whether the upper layer's entry is a whiteout.
    pub fn is_whiteout(&self) -> bool {
        self.upper.as_ref().is_some_and(words::is_whiteout)
    }

    /// Returns the visible entry.
    pub fn seen(&self) -> Option<Entry> {
        match &self.upper {
            Some(_) if self.is_whiteout() => None,
            Some(stat) => Some(Entry::Upper(*stat)),
            None if self.hidden => None,
            None => self.below.clone().map(Entry::Below),
        }
    }

    /// Returns the visible directory, if the entry is one.
    pub fn directory(&self) -> Option<Directory> {
        let is_directory = |node: &&Node| node.stat.kind == FileKind::Directory;
        let below = self.below.as_ref().filter(is_directory).cloned();
        match &self.upper {
            Some(stat) => (stat.kind() == Some(FileKind::Directory)).then_some(Directory {
                upper: Some(stat.ino),
                below,
                hidden: self.hidden || self.opaque,
            }),
            None if self.hidden || below.is_none() => None,
            None => Some(Directory {
                upper: None,
                below,
                hidden: false,
            }),
        }
    }
}

impl Directory {
    /// Returns whether the directory is in the upper layer.
    pub fn is_upper(&self) -> bool {
        self.upper.is_some()
    }

    /// Makes a directory of the lower layer alone.
    pub fn below(node: Node) -> Self {
        Self {
            upper: None,
            below: Some(node),
            hidden: false,
        }
    }

    /// Returns the directory of the lower layer that shows through.
    pub fn seen_below(&self) -> Option<&Node> {
        self.below.as_ref().filter(|_| !self.hidden)
    }

    /// Returns an identifier that no other directory has: its number in the upper layer, or else in the
    /// lower one.
    pub fn identity(&self) -> (Option<Ino>, Option<u64>) {
        let below = self.below.as_ref().map(Node::number);
        (self.upper, below.filter(|_| self.upper.is_none()))
    }
}

impl<U: Upper> View<U> {
    /// Combines the upper layer in `upper` with `lower`.
    pub fn new(upper: U, lower: impl Into<Arc<Lower>>) -> Self {
        let lower = lower.into();
        Self { upper, lower }
    }

    /// Returns the root. It has no upper layer if the sandbox never started. Like Linux, ignores
    /// an opaque mark on it.
    ///
    /// # Errors
    /// [`ViewError`].
    pub fn root(&mut self) -> Result<Directory> {
        Ok(Directory {
            upper: self.upper.layer()?,
            below: Some(self.lower.root()?),
            hidden: false,
        })
    }

    /// Returns a file of the upper layer by its number there.
    ///
    /// # Errors
    /// [`ViewError`].
    pub fn upper_entry(&mut self, ino: Ino) -> Result<Entry> {
        Ok(Entry::Upper(self.upper.attributes(ino)?))
    }

    /// Returns the attributes of a directory.
    ///
    /// # Errors
    /// [`ViewError`].
    pub fn entry(&mut self, directory: &Directory) -> Result<Entry> {
        match (directory.upper, &directory.below) {
            (Some(ino), _) => Ok(Entry::Upper(self.upper.attributes(ino)?)),
            (None, Some(node)) => Ok(Entry::Below(node.clone())),
            (None, None) => Err(ViewError::Nothing),
        }
    }

    /// Returns the entries of both layers at a name in a directory.
    ///
    /// # Errors
    /// [`ViewError`].
    pub fn slot(&mut self, directory: &Directory, name: &[u8]) -> Result<Slot> {
        let upper = match directory.upper {
            Some(ino) => self.upper.entry(ino, name)?,
            None => None,
        };
        self.slot_of(directory, name, upper)
    }

    /// [`View::slot`] for a known inode of the upper layer.
    pub(crate) fn slot_of(
        &mut self,
        directory: &Directory,
        name: &[u8],
        upper: Option<Ino>,
    ) -> Result<Slot> {
        let below = match &directory.below {
            Some(below) => self
                .lower
                .lookup(below, name)?
                .filter(|node| !node.is_whiteout()),
            None => None,
        };
        let upper = upper.map(|ino| self.upper.attributes(ino)).transpose()?;
        let opaque = match &upper {
            Some(stat) if stat.kind() == Some(FileKind::Directory) => self.is_opaque(stat.ino)?,
            _ => false,
        };
        Ok(Slot {
            upper,
            below,
            hidden: directory.hidden,
            opaque,
        })
    }

    /// Returns a directory's names with what both layers have there, in the order of their bytes:
    /// those that are visible.
    ///
    /// # Errors
    /// [`ViewError`].
    pub fn list(&mut self, directory: &Directory) -> Result<Vec<(Box<[u8]>, Slot)>> {
        let names = self.names(directory, !directory.hidden)?;
        let mut seen = Vec::with_capacity(names.len());
        for (name, upper) in names {
            let slot = self.slot_of(directory, &name, upper)?;
            if slot.seen().is_some() {
                seen.push((name, slot));
            }
        }
        Ok(seen)
    }

    /// Returns the names in a directory of the upper layer, with their inodes there, and, if
    /// `below_too`, of the lower one.
    pub(crate) fn names(
        &mut self,
        directory: &Directory,
        below_too: bool,
    ) -> Result<BTreeMap<Box<[u8]>, Option<Ino>>> {
        let mut names = BTreeMap::new();
        if let Some(below) = directory.below.as_ref().filter(|_| below_too) {
            let below = self.lower.entries(below)?.into_iter();
            names.extend(below.map(|entry| (entry.name, None)));
        }
        if let Some(ino) = directory.upper {
            let entries = self.upper.entries(ino)?.into_iter();
            names.extend(entries.map(|(name, ino)| (name, Some(ino))));
        }
        Ok(names)
    }

    /// Returns whether a directory of the upper layer is opaque.
    fn is_opaque(&mut self, directory: Ino) -> Result<bool> {
        let value = self.upper.attribute(directory, OPAQUE)?;
        Ok(value.is_some_and(|value| value == words::YES))
    }

    /// Resolves a path. Symbolic links before its end are followed as in the sandbox; one at its
    /// end is followed only if `follow`, or if the path ends with a slash, `.` or `..`.
    ///
    /// # Errors
    /// [`ViewError`].
    pub fn find(&mut self, path: &[u8], follow: bool) -> Result<Found> {
        let mut way = Way::new(self.root()?, path);
        while let Some(name) = way.next() {
            let slot = self.slot(way.place(), &name)?;
            if let Some(directory) = slot.directory() {
                way.enter(directory);
                continue;
            }
            let entry = slot.seen().ok_or(ViewError::Nothing)?;
            if entry.kind() == Some(FileKind::Symlink) && (follow || !way.is_last()) {
                way.follow(&self.read_link(&entry)?)?;
            } else if way.is_last() {
                return Ok(Found::Other(entry));
            } else {
                return Err(ViewError::NotDirectory);
            }
        }
        Ok(Found::Directory(way.place().clone()))
    }

    /// Returns the kind of file at a path, with all symbolic links followed.
    ///
    /// # Errors
    /// [`ViewError`].
    pub fn path_kind(&mut self, path: &[u8]) -> Result<PathKind> {
        match self.find(path, true) {
            Ok(Found::Directory(_)) => Ok(PathKind::Directory),
            Ok(Found::Other(_)) => Ok(PathKind::Other),
            Err(ViewError::Nothing) => Ok(PathKind::Nothing),
            Err(error) => Err(error),
        }
    }

    /// Returns where a path leads, all symbolic links at its end followed, also one that dangles: a path whose
    /// last name is none.
    ///
    /// # Errors
    /// [`ViewError`].
    pub fn through_links(&mut self, path: &[u8]) -> Result<Vec<u8>> {
        through_links(path, |path| match self.find(path, false) {
            Ok(Found::Other(entry)) if entry.kind() == Some(FileKind::Symlink) => {
                self.read_link(&entry).map(Some)
            }
            Ok(_) | Err(ViewError::Nothing) => Ok(None),
            Err(error) => Err(error),
        })
    }

    /// Reads from a file. Returns the number of bytes, 0 at its end.
    ///
    /// # Errors
    /// [`ViewError`].
    pub fn read(&mut self, file: &Entry, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        Ok(match file {
            Entry::Upper(stat) => self.upper.read_at(stat.ino, offset, buffer)?,
            Entry::Below(node) => self.lower.read(node, offset, buffer)?,
        })
    }

    /// Returns the parts of a file that are not holes, ascending.
    ///
    /// # Errors
    /// [`ViewError`].
    pub fn segments(&mut self, file: &Entry) -> Result<Vec<Segment>> {
        Ok(match file {
            Entry::Upper(stat) => self.upper.data(stat.ino)?,
            Entry::Below(node) => self.lower.segments(node)?,
        })
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// [`ViewError`].
    pub fn read_link(&mut self, link: &Entry) -> Result<Vec<u8>> {
        Ok(match link {
            Entry::Upper(stat) => self.upper.target(stat.ino)?,
            Entry::Below(node) => self.lower.read_link(node)?,
        })
    }

    /// Returns names and values of extended attributes, including overlayfs's own.
    ///
    /// # Errors
    /// [`ViewError`].
    pub fn xattrs(&mut self, entry: &Entry) -> Result<Xattrs> {
        Ok(match entry {
            Entry::Upper(stat) => {
                let mut xattrs = Xattrs::new();
                for name in self.upper.attribute_names(stat.ino)? {
                    let value = self.upper.attribute(stat.ino, &name)?;
                    xattrs.extend(value.map(|value| (name.into_vec(), value)));
                }
                xattrs
            }
            Entry::Below(node) => self.lower.xattrs(node)?,
        })
    }
}
