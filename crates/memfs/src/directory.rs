//! The entries of one directory.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use micabox_file::FileKind;
use rustix::io::Errno;

use crate::Result;
use crate::attributes::Stat;
use crate::below::number_of;
use crate::filesystem::Filesystem;
use crate::inode::Inode;

/// The places of `.` and `..`; entries come after them.
const SELF: u64 = 1;
const PARENT: u64 = 2;

/// A directory's entries.
#[derive(Debug)]
pub(crate) struct Directory {
    by_name: HashMap<Arc<[u8]>, Entry>,
    /// In the order in which they were made. A place is never used again, so that reading goes on where it
    /// stopped, whatever comes and goes.
    by_place: BTreeMap<u64, Arc<[u8]>>,
    last: u64,
    /// Whether the entries of the lower's directory are among them.
    pub(crate) is_complete: bool,
    /// Whether it has lost its name: nothing is made in it any more.
    pub(crate) is_removed: bool,
}

/// What a name stands for.
#[derive(Clone, Debug)]
pub(crate) enum Child {
    /// An inode that has this name since it was made or moved.
    Made(Arc<Inode>),
    /// A file that has this name in the lower, by its number there. Its inode may not be in memory.
    Below(u64, FileKind),
}

#[derive(Debug)]
struct Entry {
    child: Child,
    place: u64,
}

impl Directory {
    pub(crate) fn new(is_complete: bool) -> Self {
        Self {
            by_name: HashMap::new(),
            by_place: BTreeMap::new(),
            last: PARENT,
            is_complete,
            is_removed: false,
        }
    }

    pub(crate) fn get(&self, name: &[u8]) -> Option<&Child> {
        self.by_name.get(name).map(|entry| &entry.child)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Adds an entry. The name is free.
    pub(crate) fn insert(&mut self, name: &[u8], inode: Arc<Inode>) {
        self.add(name.into(), Child::Made(inode));
    }

    /// Does the same with any child.
    pub(crate) fn add(&mut self, name: Arc<[u8]>, child: Child) {
        self.last += 1;
        let place = self.last;
        self.by_place.insert(place, Arc::clone(&name));
        self.by_name.insert(name, Entry { child, place });
    }

    /// Replaces what a name stands for; the entry keeps its place.
    pub(crate) fn replace(&mut self, name: &[u8], inode: Arc<Inode>) {
        if let Some(entry) = self.by_name.get_mut(name) {
            entry.child = Child::Made(inode);
        }
    }

    /// Gives an entry another name, which is free. It keeps its place: a listing that goes on meanwhile
    /// would otherwise meet what is renamed again, and might never end.
    pub(crate) fn rename(&mut self, name: &[u8], new_name: &[u8], inode: Arc<Inode>) {
        if let Some(Entry { place, .. }) = self.by_name.remove(name) {
            let new_name: Arc<[u8]> = new_name.into();
            self.by_place.insert(place, Arc::clone(&new_name));
            let child = Child::Made(inode);
            self.by_name.insert(new_name, Entry { child, place });
        }
    }

    pub(crate) fn remove(&mut self, name: &[u8]) {
        if let Some(entry) = self.by_name.remove(name) {
            self.by_place.remove(&entry.place);
        }
        // A directory that was large and is empty takes nothing.
        if self.by_name.is_empty() {
            self.by_name = HashMap::new();
        }
    }
}

/// An entry that is listed.
#[derive(Clone, Copy, Debug)]
pub struct Listed<'a> {
    /// The inode's number.
    pub number: u64,
    /// Its kind.
    pub kind: FileKind,
    /// Where listing goes on behind the entry.
    pub after: u64,
    /// The entry's name; also `.` and `..`.
    pub name: &'a [u8],
}

impl Filesystem {
    /// Lists a directory from a place on, 0 at first, until `take` returns false. `take` gets a function
    /// that holds the entry's inode and returns its attributes, except for `.` and `..`. Entries that
    /// are made or removed meanwhile are listed or not; all others are listed once.
    ///
    /// # Errors
    /// `ENOTDIR`, `ESTALE`, those of the lower.
    pub fn list(
        &self,
        directory: u64,
        after: u64,
        mut take: impl FnMut(Listed<'_>, Option<&dyn Fn() -> Result<Stat>>) -> bool,
    ) -> Result<()> {
        let inode = self.inode(directory)?;
        let entries = self.entries(&inode)?;
        let parent = inode.parent.load(Ordering::Relaxed);
        for (place, name, number) in [(SELF, &b"."[..], directory), (PARENT, b"..", parent)] {
            let listed = Listed {
                number,
                kind: FileKind::Directory,
                after: place,
                name,
            };
            if after < place && !take(listed, None) {
                return Ok(());
            }
        }
        let from = Bound::Excluded(after.max(PARENT));
        for (&place, name) in entries.by_place.range((from, Bound::Unbounded)) {
            let child = &entries.by_name.get(name).ok_or(Errno::IO)?.child;
            let (number, kind) = match child {
                Child::Made(inode) => (inode.number, inode.kind),
                Child::Below(file, kind) => (number_of(*file)?, *kind),
            };
            let listed = Listed {
                number,
                kind,
                after: place,
                name,
            };
            if !take(listed, Some(&|| self.hold_child(&inode, child))) {
                break;
            }
        }
        Ok(())
    }
}
