//! What a sandbox sees: its changes over what it is made from, for reading.

use std::collections::BTreeSet;

use micabox_ext4::{Errno, FileKind, Ino, Owner, Segment, Stat, Timestamp};

use super::{Disk, OPAQUE, ROOT, is_whiteout};
use crate::base::{Lower, LowerError, Node};

/// As many symbolic links as Linux follows.
const LINKS: usize = 40;

/// An upper layer over a lower one.
pub(crate) struct Merged {
    upper: Disk,
    lower: Lower,
}

/// Something that a sandbox sees.
#[derive(Clone, Debug)]
pub(crate) enum Entry {
    /// On the disk for changes.
    Upper(Stat),
    /// Below.
    Below(Node),
}

/// A directory: both of them, if both are there.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    upper: Option<Ino>,
    below: Option<Node>,
}

impl Directory {
    /// What no other directory has.
    pub(crate) fn identity(&self) -> (Option<Ino>, Option<u64>) {
        let below = self.below.as_ref().map(Node::number);
        (self.upper, below.filter(|_| self.upper.is_none()))
    }
}

/// A path's end.
#[derive(Clone, Debug)]
pub(crate) enum Found {
    Directory(Directory),
    Other(Entry),
}

/// Why a sandbox's files can't be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MergedError {
    #[error(transparent)]
    Upper(#[from] micabox_ext4::Error),
    #[error(transparent)]
    Lower(#[from] LowerError),
    #[error("there is no such file or directory")]
    Nothing,
    #[error("something on the way is no directory")]
    NotDirectory,
    #[error("too many symbolic links on the way")]
    Loop,
    #[error("a directory has several names")]
    Again,
    #[error("a file is shorter than its size")]
    Short,
}

type Result<T> = std::result::Result<T, MergedError>;

impl Entry {
    pub(crate) fn kind(&self) -> Option<FileKind> {
        match self {
            Self::Upper(stat) => stat.kind(),
            Self::Below(node) => Some(node.kind),
        }
    }

    pub(crate) fn owner(&self) -> Owner {
        let (permissions, uid, gid) = match self {
            Self::Upper(stat) => (stat.mode & 0o7777, stat.uid, stat.gid),
            Self::Below(node) => (node.permissions, node.uid, node.gid),
        };
        Owner {
            permissions,
            uid,
            gid,
        }
    }

    pub(crate) fn mtime(&self) -> Timestamp {
        match self {
            Self::Upper(stat) => stat.mtime,
            Self::Below(node) => node.mtime,
        }
    }

    pub(crate) fn size(&self) -> u64 {
        match self {
            Self::Upper(stat) => stat.size,
            Self::Below(node) => node.size,
        }
    }

    /// What all names of the same file have in common, if it has more than one.
    pub(crate) fn linked(&self) -> Option<(bool, u64)> {
        match self {
            Self::Upper(stat) => (stat.links > 1).then_some((true, stat.ino.into())),
            Self::Below(node) => node.linked.map(|number| (false, number)),
        }
    }
}

impl Merged {
    /// The upper layer in the directory `/root` of `upper` over `lower`.
    pub(crate) fn new(upper: Disk, lower: Lower) -> Self {
        Self { upper, lower }
    }

    fn root(&mut self) -> Result<Directory> {
        let upper = match self.upper.resolve(ROOT) {
            Ok(ino) => Some(ino),
            // A sandbox that never came up has no upper layer yet.
            Err(error) if error.errno() == Errno::NotFound => None,
            Err(error) => return Err(error.into()),
        };
        let below = Some(self.lower.root()?);
        Ok(Directory { upper, below })
    }

    /// The attributes of a directory.
    pub(crate) fn directory_entry(&mut self, directory: &Directory) -> Result<Entry> {
        match (directory.upper, &directory.below) {
            (Some(ino), _) => Ok(Entry::Upper(self.upper.stat(ino)?)),
            (None, Some(node)) => Ok(Entry::Below(node.clone())),
            (None, None) => Err(MergedError::Nothing),
        }
    }

    /// What a directory has at a name.
    pub(crate) fn lookup(&mut self, directory: &Directory, name: &[u8]) -> Result<Option<Found>> {
        let upper = match directory.upper {
            None => None,
            Some(ino) => match self.upper.lookup(ino, name) {
                Ok(ino) => Some(self.upper.stat(ino)?),
                Err(error) if error.errno() == Errno::NotFound => None,
                Err(error) => return Err(error.into()),
            },
        };
        let mut below = || match &directory.below {
            Some(directory) => self.lower.lookup(directory, name),
            None => Ok(None),
        };
        let Some(stat) = upper else {
            return Ok(below()?.map(|node| match node.kind {
                FileKind::Directory => Found::Directory(Directory {
                    upper: None,
                    below: Some(node),
                }),
                _ => Found::Other(Entry::Below(node)),
            }));
        };
        if is_whiteout(&stat) {
            return Ok(None);
        }
        if stat.kind() != Some(FileKind::Directory) {
            return Ok(Some(Found::Other(Entry::Upper(stat))));
        }
        let below = below()?.filter(|node| node.kind == FileKind::Directory);
        let is_opaque = match self.upper.xattr(stat.ino, OPAQUE) {
            Ok(value) => value == b"y",
            Err(error) if error.errno() == Errno::NoAttribute => false,
            Err(error) => return Err(error.into()),
        };
        Ok(Some(Found::Directory(Directory {
            upper: Some(stat.ino),
            below: below.filter(|_| !is_opaque),
        })))
    }

    /// The names in a directory, in the order of their bytes; those of what is gone as well.
    pub(crate) fn names(&mut self, directory: &Directory) -> Result<Vec<Box<[u8]>>> {
        let mut names = BTreeSet::new();
        if let Some(below) = &directory.below {
            names.extend(self.lower.names(below)?);
        }
        if let Some(ino) = directory.upper {
            let entries = self.upper.read_dir(ino)?.into_iter();
            names.extend(entries.map(|entry| entry.name));
        }
        Ok(names.into_iter().collect())
    }

    /// What is at a path, with symbolic links on the way followed as in the sandbox; one at its
    /// end only if `follow`, or if the path says that it is a directory.
    pub(crate) fn find(&mut self, path: &[u8], follow: bool) -> Result<Found> {
        let follow = follow || path.ends_with(b"/") || path.ends_with(b"/.");
        let mut names: Vec<Vec<u8>> = split(path).map(<[u8]>::to_vec).collect();
        names.reverse();
        let mut places = vec![self.root()?];
        let mut links = 0;
        while let Some(name) = names.pop() {
            if name == b".." {
                places.truncate(places.len().saturating_sub(1).max(1));
                continue;
            }
            let place = places.last().cloned().ok_or(MergedError::Nothing)?;
            let entry = match self.lookup(&place, &name)?.ok_or(MergedError::Nothing)? {
                Found::Directory(directory) => {
                    places.push(directory);
                    continue;
                }
                Found::Other(entry) => entry,
            };
            let is_last = names.is_empty();
            if entry.kind() != Some(FileKind::Symlink) || is_last && !follow {
                return match is_last && (!follow || !path.ends_with(b"/")) {
                    true => Ok(Found::Other(entry)),
                    false => Err(MergedError::NotDirectory),
                };
            }
            links += 1;
            if links > LINKS {
                return Err(MergedError::Loop);
            }
            let target = self.read_link(&entry)?;
            if target.starts_with(b"/") {
                places.truncate(1);
            }
            names.extend(split(&target).rev().map(<[u8]>::to_vec));
        }
        let place = places.pop().ok_or(MergedError::Nothing)?;
        Ok(Found::Directory(place))
    }

    /// Reads from a file: how many bytes, 0 at its end.
    pub(crate) fn read(&mut self, file: &Entry, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        Ok(match file {
            Entry::Upper(stat) => self.upper.read(stat.ino, offset, buffer)?,
            Entry::Below(node) => self.lower.read(node, offset, buffer)?,
        })
    }

    /// The parts of a file that are no holes, ascending.
    pub(crate) fn segments(&mut self, file: &Entry) -> Result<Vec<Segment>> {
        Ok(match file {
            Entry::Upper(stat) => self.upper.segments(stat.ino)?,
            Entry::Below(node) => self.lower.segments(node)?,
        })
    }

    /// The target of a symbolic link.
    pub(crate) fn read_link(&mut self, link: &Entry) -> Result<Vec<u8>> {
        Ok(match link {
            Entry::Upper(stat) => self.upper.read_link(stat.ino)?,
            Entry::Below(node) => self.lower.read_link(node)?,
        })
    }
}

/// The names in a path.
fn split(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    let names = path.split(|byte| *byte == b'/');
    names.filter(|name| !name.is_empty() && *name != b".")
}
