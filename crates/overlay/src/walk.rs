//! A walk over both layers, name by name.

use std::collections::{BTreeMap, HashSet};

use micabox_ext4::{BlockDevice, DirEntry, Ino};

use crate::view::{Directory, Slot, View, ViewError};

/// The names that a walk visits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Those at which the upper layer says something: it has something there, or its directory
    /// hides what is below.
    Changes,
    /// Those at which something is seen.
    Seen,
}

/// A name on a walk.
#[derive(Clone, Debug)]
pub struct Step {
    /// What the layers have there.
    pub slot: Slot,
    /// It is a directory that was there before under another name, as only damage explains.
    /// The walk does not go into it.
    pub again: bool,
}

/// A directory that is being gone through.
struct Level {
    /// Length of its path, with a slash at the end.
    path: usize,
    directory: Directory,
    /// Names to go through, the last one first, with the upper layer's inodes.
    names: Vec<(Box<[u8]>, Option<Ino>)>,
}

/// A walk over all that is in a directory, each directory before what is in it, names in the
/// order of their bytes. It holds one path and the names of the directories on it, however many
/// there are, and a number for each directory.
pub struct Walk {
    scope: Scope,
    visited: HashSet<(Option<Ino>, Option<u64>)>,
    path: Vec<u8>,
    levels: Vec<Level>,
    /// The directory that the last step led to, whose names come next.
    next: Option<Directory>,
}

impl Walk {
    /// A walk over what is in `directory`, whose path is `path`.
    pub fn new(scope: Scope, directory: Directory, path: &[u8]) -> Self {
        Self {
            scope,
            visited: HashSet::from([directory.identity()]),
            path: path.to_vec(),
            levels: Vec::new(),
            next: Some(directory),
        }
    }

    /// The path of the last step, below the one that the walk began with.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// The last name of that path, and how many directories are between it and the one that the
    /// walk began with.
    pub fn name(&self) -> (&[u8], usize) {
        let start = self.levels.last().map_or(0, |level| level.path);
        let name = self.path.get(start..).unwrap_or_default();
        (name, self.levels.len().saturating_sub(1))
    }

    /// The next step.
    ///
    /// # Errors
    /// [`ViewError`].
    pub fn next<D: BlockDevice>(&mut self, view: &mut View<D>) -> Result<Option<Step>, ViewError> {
        if let Some(directory) = self.next.take() {
            let level = self.level(view, directory)?;
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
            self.path.extend_from_slice(&name);
            let slot = view.slot_of(&level.directory, &name, ino)?;
            if self.scope == Scope::Seen && slot.seen().is_none() {
                continue;
            }
            let directory = slot.directory();
            let visited = directory.as_ref().map(Directory::identity);
            let again = visited.is_some_and(|identity| !self.visited.insert(identity));
            self.next = directory.filter(|_| !again);
            return Ok(Some(Step { slot, again }));
        }
    }

    fn level<D: BlockDevice>(
        &mut self,
        view: &mut View<D>,
        directory: Directory,
    ) -> Result<Level, ViewError> {
        let mut names = BTreeMap::new();
        let below_too = directory.hidden == (self.scope == Scope::Changes);
        if let Some(below) = directory.below.as_ref().filter(|_| below_too) {
            let below = view.lower.names(below)?.into_iter();
            names.extend(below.map(|name| (name, None)));
        }
        if let Some(ino) = directory.upper {
            let entries = view.upper.read_dir(ino)?.into_iter();
            names.extend(entries.map(|DirEntry { name, ino, .. }| (name, Some(ino))));
        }
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        Ok(Level {
            path: self.path.len(),
            directory,
            names: names.into_iter().rev().collect(),
        })
    }
}
