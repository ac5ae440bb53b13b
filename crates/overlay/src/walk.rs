//! Walks both layers, name by name.

use std::collections::HashSet;

use micabox_ext4::Ino;

use crate::upper::Upper;
use crate::view::{Directory, Slot, View, ViewError};

/// The names that a walk visits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Changes: names with an entry in the upper layer, or in a directory of it that hides the
    /// lower layer.
    Changes,
    /// Visible names.
    Seen,
}

/// A step of a walk.
#[derive(Clone, Debug)]
pub struct Step {
    /// The layers' entries at the name.
    pub slot: Slot,
    /// Whether it is a directory that was visited under another name, which only damage explains.
    /// The walk does not enter it.
    pub again: bool,
}

/// A directory that is being walked.
struct Level {
    /// Length of its path, with a slash at the end.
    path: usize,
    directory: Directory,
    /// Names that are still to be visited, the next one last, with the upper layer's inodes.
    names: Vec<(Box<[u8]>, Option<Ino>)>,
}

/// A walk over a directory's tree, each directory before its entries, names in the order of their
/// bytes. Memory: one path, the names in the directories on it, and an identifier of each visited
/// directory.
pub struct Walk {
    scope: Scope,
    visited: HashSet<(Option<Ino>, Option<u64>)>,
    path: Vec<u8>,
    levels: Vec<Level>,
    /// The directory of the last step, whose entries come next.
    next: Option<Directory>,
}

impl Walk {
    /// Starts a walk over the entries of `directory`, whose path is `path`.
    pub fn new(scope: Scope, directory: Directory, path: &[u8]) -> Self {
        Self {
            scope,
            visited: HashSet::from([directory.identity()]),
            path: path.to_vec(),
            levels: Vec::new(),
            next: Some(directory),
        }
    }

    /// Returns the path of the last step, which begins with the starting directory's path.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// Returns the last name of that path, and the number of directories between the starting
    /// directory and it.
    pub fn name(&self) -> (&[u8], usize) {
        let start = self.levels.last().map_or(0, |level| level.path);
        let name = self.path.get(start..).unwrap_or_default();
        (name, self.levels.len().saturating_sub(1))
    }

    /// Returns the next step; `None` at the end.
    ///
    /// # Errors
    /// [`ViewError`].
    pub fn next<U: Upper>(&mut self, view: &mut View<U>) -> Result<Option<Step>, ViewError> {
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

    fn level<U: Upper>(
        &mut self,
        view: &mut View<U>,
        directory: Directory,
    ) -> Result<Level, ViewError> {
        let below_too = directory.hidden == (self.scope == Scope::Changes);
        let names = view.names(&directory, below_too)?;
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
