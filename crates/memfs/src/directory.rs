//! The entries of one directory.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use micabox_file::FileKind;
use rustix::io::Errno;

use crate::Result;
use crate::inode::Inode;

/// Most bytes of a name.
pub const NAME_MAX: usize = 255;

/// The places of `.` and `..`; entries come after them.
pub(crate) const SELF: u64 = 1;
pub(crate) const PARENT: u64 = 2;

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

    /// Returns the entries behind a place in their order, each with its place and name.
    pub(crate) fn behind(&self, place: u64) -> impl Iterator<Item = Result<(u64, &[u8], &Child)>> {
        let places = self
            .by_place
            .range((Bound::Excluded(place), Bound::Unbounded));
        places.map(|(&place, name)| {
            let entry = self.by_name.get(name).ok_or(Errno::IO)?;
            Ok((place, &**name, &entry.child))
        })
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

/// Returns whether a name may be given: it is neither empty nor too long, and leads nowhere else.
pub(crate) fn check(name: &[u8]) -> Result<()> {
    match name {
        b"" | b"." | b".." => Err(Errno::INVAL),
        _ if name.len() > NAME_MAX => Err(Errno::NAMETOOLONG),
        _ if name.contains(&b'/') || name.contains(&0) => Err(Errno::INVAL),
        _ => Ok(()),
    }
}

/// Fails where a name is taken, or where the directory has lost its own.
pub(crate) fn check_free(entries: &Directory, name: &[u8]) -> Result<()> {
    check(name)?;
    if entries.is_removed {
        return Err(Errno::NOENT);
    }
    match entries.get(name) {
        Some(_) => Err(Errno::EXIST),
        None => Ok(()),
    }
}
