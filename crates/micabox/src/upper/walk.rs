//! Everything that a disk says of what it is over, name by name.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;

use micabox_ext4::device::ReadOnly;
use micabox_ext4::{DirEntry, Errno, Ext4, FileKind, Ino, Stat};

use super::ROOT;
use crate::base::{Lower, LowerError, Node};

/// overlayfs's mark on a directory that hides everything of its name below.
pub(crate) const OPAQUE: &[u8] = b"trusted.overlay.opaque";

/// A disk for changes, or a copy of one, that is read only. Its journal is replayed in memory.
pub(crate) type Disk = Ext4<ReadOnly<File>>;

/// Why it can't be walked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WalkError {
    #[error(transparent)]
    Lower(#[from] LowerError),
    #[error(transparent)]
    Disk(#[from] micabox_ext4::Error),
}

/// A name at which a disk says something.
#[derive(Debug)]
pub(crate) struct Step {
    /// What the disk has there. `None`: nothing, but its directory hides what is below.
    pub(crate) upper: Option<Stat>,
    /// What is below.
    pub(crate) below: Option<Node>,
    /// Nothing of what is below shines through in its directory anyway.
    pub(crate) hidden: bool,
    /// It is a directory that hides all that is below it.
    pub(crate) opaque: bool,
    /// It is a directory that was there before under another name, as only damage explains.
    /// The walk does not go into it.
    pub(crate) again: bool,
}

/// A directory that is being gone through.
struct Level {
    /// Length of its path, with a slash at the end.
    path: usize,
    /// What is below there, if that is a directory.
    below: Option<Node>,
    /// Nothing of that shines through.
    hidden: bool,
    /// Names to go through, the last one first: on the disk, or only below.
    names: Vec<(Box<[u8]>, Option<Ino>)>,
}

/// A walk over a disk, each directory before what is in it, names in the order of their bytes.
/// It holds one path and the names of the directories on it, however many there are.
pub(crate) struct Walk {
    pub(crate) disk: Disk,
    lower: Lower,
    visited: HashSet<Ino>,
    path: Vec<u8>,
    levels: Vec<Level>,
    /// The directory that the last step led to, whose names come next.
    next: Option<(Ino, Option<Node>, bool)>,
}

impl Walk {
    /// A walk over `disk`, and its first step, which leads to the upper layer's root. `None`:
    /// a sandbox that never came up has no upper layer yet.
    pub(crate) fn start(
        mut disk: Disk,
        mut lower: Lower,
    ) -> Result<Option<(Self, Step)>, WalkError> {
        let root = match disk.resolve(ROOT) {
            Err(error) if error.errno() == Errno::NotFound => return Ok(None),
            result => result?,
        };
        let stat = disk.stat(root)?;
        let opaque = is_opaque(&mut disk, root)?;
        let below = lower.root()?;
        let walk = Self {
            disk,
            lower,
            visited: HashSet::from([root]),
            path: Vec::new(),
            levels: Vec::new(),
            next: Some((root, Some(below.clone()), opaque)),
        };
        let step = Step {
            upper: Some(stat),
            below: Some(below),
            hidden: false,
            opaque,
            again: false,
        };
        Ok(Some((walk, step)))
    }

    /// The path of the last step, without a slash before it: empty for the root.
    pub(crate) fn path(&self) -> &[u8] {
        &self.path
    }

    /// The last name of that path, and how many directories it is below the root.
    pub(crate) fn name(&self) -> (&[u8], usize) {
        let start = self.levels.last().map_or(0, |level| level.path);
        let name = self.path.get(start..).unwrap_or_default();
        (name, self.levels.len().saturating_sub(1))
    }

    /// The next step.
    pub(crate) fn next(&mut self) -> Result<Option<Step>, WalkError> {
        if let Some((directory, below, hidden)) = self.next.take() {
            let level = self.level(directory, below, hidden)?;
            self.levels.push(level);
        }
        loop {
            let Some(level) = self.levels.last_mut() else {
                return Ok(None);
            };
            self.path.truncate(level.path);
            let Some((name, ino)) = level.names.pop() else {
                self.levels.pop();
                continue;
            };
            let hidden = level.hidden;
            self.path.extend_from_slice(&name);
            let below = match &level.below {
                Some(directory) => self.lower.lookup(directory, &name)?,
                None => None,
            };
            return self.step(ino, below, hidden).map(Some);
        }
    }

    fn step(
        &mut self,
        ino: Option<Ino>,
        below: Option<Node>,
        hidden: bool,
    ) -> Result<Step, WalkError> {
        let mut step = Step {
            upper: None,
            below,
            hidden,
            opaque: false,
            again: false,
        };
        let Some(ino) = ino else {
            return Ok(step);
        };
        let stat = self.disk.stat(ino)?;
        if stat.kind() == Some(FileKind::Directory) {
            step.opaque = is_opaque(&mut self.disk, ino)?;
            step.again = !self.visited.insert(ino);
            if !step.again {
                let below = step.below.clone();
                let below = below.filter(|node| node.kind == FileKind::Directory);
                self.next = Some((ino, below, hidden || step.opaque));
            }
        }
        step.upper = Some(stat);
        Ok(step)
    }

    fn level(
        &mut self,
        directory: Ino,
        below: Option<Node>,
        hidden: bool,
    ) -> Result<Level, WalkError> {
        let mut names = BTreeMap::new();
        if let Some(below) = below.as_ref().filter(|_| hidden) {
            let below = self.lower.names(below)?.into_iter();
            names.extend(below.map(|name| (name, None)));
        }
        let entries = self.disk.read_dir(directory)?.into_iter();
        names.extend(entries.map(|DirEntry { name, ino, .. }| (name, Some(ino))));
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        Ok(Level {
            path: self.path.len(),
            below,
            hidden,
            names: names.into_iter().rev().collect(),
        })
    }
}

/// Whether it stands for "nothing here": a character device with the number 0, 0.
pub(crate) fn is_whiteout(stat: &Stat) -> bool {
    stat.kind() == Some(FileKind::CharDevice) && stat.device == (0, 0)
}

/// Whether nothing of the layers below is seen in a directory.
fn is_opaque(disk: &mut Disk, directory: Ino) -> Result<bool, micabox_ext4::Error> {
    match disk.xattr(directory, OPAQUE) {
        Ok(value) => Ok(value == b"y"),
        Err(error) if error.errno() == Errno::NoAttribute => Ok(false),
        Err(error) => Err(error),
    }
}
