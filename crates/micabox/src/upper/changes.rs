//! What a disk says of an image: the difference, as `docker diff` shows it.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::path::Path;

use micabox_ext4::{DirEntry, Ext4, FileKind, Ino, Stat};

use super::scratch::Scratch;
use super::{ROOT, open};
use crate::base::{Lower, LowerError, Node};
use crate::{Base, Error};

/// overlayfs's mark on a directory that hides everything of its name below.
pub(crate) const OPAQUE: &[u8] = b"trusted.overlay.opaque";

/// One path that is not as the image has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// In which way.
    pub kind: ChangeKind,
    /// Where: absolute, bytes as Linux has them.
    pub path: Vec<u8>,
}

/// How a path differs from the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// The image has nothing there.
    Added,
    /// It is another one, has other contents or attributes, or has changes below it.
    Changed,
    /// It is gone, and all below it.
    Deleted,
}

impl fmt::Display for ChangeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Added => "A",
            Self::Changed => "C",
            Self::Deleted => "D",
        })
    }
}

/// A directory that is being compared.
struct Level {
    /// Length of its path, with a slash at the end.
    path: usize,
    /// What the image has there, if that is a directory.
    below: Option<Node>,
    /// Nothing of the image shines through.
    opaque: bool,
    /// Names to go through, the last one first: on the disk, or only in the image.
    names: Vec<(Box<[u8]>, Option<Ino>)>,
}

/// Everything in which the disk differs from `base`, each directory before what is in it,
/// names in the order of their bytes.
pub(crate) fn changes(disk: &Path, base: &Base) -> Result<Vec<Change>, Error> {
    let mut comparison = Comparison {
        lower: base.lower()?,
        upper: open(disk)?,
        visited: HashSet::new(),
        found: Vec::new(),
    };
    let result = comparison.run();
    result.map_err(|problem| match problem {
        Problem::Lower(error) => Error::ImageFile {
            path: base.metadata_path(),
            problem: error.to_string(),
        },
        Problem::Disk(error) => Error::Disk {
            what: "reading",
            path: disk.to_owned(),
            problem: error.to_string(),
        },
    })?;
    Ok(comparison.found)
}

enum Problem {
    Lower(LowerError),
    Disk(micabox_ext4::Error),
}

impl From<LowerError> for Problem {
    fn from(error: LowerError) -> Self {
        Self::Lower(error)
    }
}

impl From<micabox_ext4::Error> for Problem {
    fn from(error: micabox_ext4::Error) -> Self {
        Self::Disk(error)
    }
}

struct Comparison {
    lower: Lower,
    upper: Ext4<Scratch>,
    /// Directories: a damaged disk could have them in a circle.
    visited: HashSet<Ino>,
    found: Vec<Change>,
}

impl Comparison {
    fn run(&mut self) -> Result<(), Problem> {
        // A sandbox that never came up has no upper layer yet.
        let root = match self.upper.resolve(ROOT) {
            Err(error) if error.errno() == micabox_ext4::Errno::NotFound => return Ok(()),
            result => result?,
        };
        let mut path = b"/".to_vec();
        let below = self.lower.root()?;
        let mut levels = vec![self.level(path.len(), root, Some(below), false)?];
        while let Some(level) = levels.last_mut() {
            path.truncate(level.path);
            let Some((name, ino)) = level.names.pop() else {
                levels.pop();
                continue;
            };
            let (below, opaque) = (level.below.clone(), level.opaque);
            path.extend_from_slice(&name);
            let below = match below {
                Some(directory) => self.lower.lookup(&directory, &name)?,
                None => None,
            };
            let Some(ino) = ino else {
                self.add(ChangeKind::Deleted, &path);
                continue;
            };
            let stat = self.upper.stat(ino)?;
            if is_whiteout(&stat) {
                if below.is_some() {
                    self.add(ChangeKind::Deleted, &path);
                }
                continue;
            }
            self.add(
                match below {
                    Some(_) => ChangeKind::Changed,
                    None => ChangeKind::Added,
                },
                &path,
            );
            if stat.kind() == Some(FileKind::Directory) && self.visited.insert(ino) {
                let below = below.filter(|node| node.kind == FileKind::Directory);
                path.push(b'/');
                levels.push(self.level(path.len(), ino, below, opaque)?);
            }
        }
        Ok(())
    }

    fn level(
        &mut self,
        path: usize,
        directory: Ino,
        below: Option<Node>,
        opaque: bool,
    ) -> Result<Level, Problem> {
        let opaque = opaque || is_opaque(&mut self.upper, directory)?;
        let mut names = BTreeMap::new();
        if let Some(below) = below.as_ref().filter(|_| opaque) {
            let below = self.lower.names(below)?.into_iter();
            names.extend(below.map(|name| (name, None)));
        }
        let entries = self.upper.read_dir(directory)?.into_iter();
        names.extend(entries.map(|DirEntry { name, ino, .. }| (name, Some(ino))));
        Ok(Level {
            path,
            below,
            opaque,
            names: names.into_iter().rev().collect(),
        })
    }

    fn add(&mut self, kind: ChangeKind, path: &[u8]) {
        self.found.push(Change {
            kind,
            path: path.to_vec(),
        });
    }
}

/// Whether it stands for "nothing here": a character device with the number 0, 0.
pub(crate) fn is_whiteout(stat: &Stat) -> bool {
    stat.kind() == Some(FileKind::CharDevice) && stat.device == (0, 0)
}

/// Whether nothing of the layers below is seen in a directory.
pub(super) fn is_opaque(
    upper: &mut Ext4<Scratch>,
    directory: Ino,
) -> Result<bool, micabox_ext4::Error> {
    match upper.xattr(directory, OPAQUE) {
        Ok(value) => Ok(value == b"y"),
        Err(error) if error.errno() == micabox_ext4::Errno::NoAttribute => Ok(false),
        Err(error) => Err(error),
    }
}
