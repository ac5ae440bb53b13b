//! Inodes over files of the lower: made when they are looked up, kept once they are changed.

use std::collections::HashSet;
use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::sync::{Arc, RwLockReadGuard, RwLockWriteGuard};

use micabox_file::{FileKind, Timestamp};
use rustix::io::Errno;

use crate::Result;
use crate::attributes::Stat;
use crate::contents::SIZE_MAX;
use crate::directory::{Child, Directory};
use crate::filesystem::{Filesystem, ROOT};
use crate::inode::{Inode, State};
use crate::lower::Lower;
use crate::names::{TARGET_MAX, check};
use crate::xattr;

/// Returns the number of a file of the lower that is not its root. It is the same whenever the file is
/// looked up, and no inode that is made here has it.
pub(crate) fn number_of(file: u64) -> Result<u64> {
    match file {
        0..0x4000_0000_0000_0000 => Ok((file + 1) * 2),
        _ => Err(Errno::IO),
    }
}

/// Returns the file of the lower that has a number here; none for the root.
fn file_of(number: u64) -> Option<u64> {
    if number.is_multiple_of(2) {
        (number / 2).checked_sub(1)
    } else {
        None
    }
}

/// An inode, which stays as long as this does.
pub(crate) struct Held<'a> {
    files: &'a Filesystem,
    inode: Arc<Inode>,
    is_held: bool,
}

impl Held<'_> {
    /// Returns one more reference, for what keeps the inode by its name.
    pub(crate) fn inode(&self) -> Arc<Inode> {
        Arc::clone(&self.inode)
    }
}

impl Deref for Held<'_> {
    type Target = Inode;

    fn deref(&self) -> &Inode {
        &self.inode
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.is_held {
            self.files.forget(self.inode.number, 1);
        }
    }
}

impl Inode {
    /// Returns whether it is from the lower, and not its root.
    pub(crate) fn is_from_lower(&self) -> bool {
        self.number.is_multiple_of(2)
    }

    /// Ends the hold of the directory that it was found in; returns that, once.
    pub(crate) fn give_back(&self) -> Option<u64> {
        if !self.is_from_lower() {
            return None;
        }
        let directory = self.parent.swap(0, Ordering::Relaxed);
        (directory != 0).then_some(directory)
    }
}

impl Filesystem {
    /// Returns a directory's entries, to read them.
    pub(crate) fn entries<'a>(&self, inode: &'a Inode) -> Result<RwLockReadGuard<'a, Directory>> {
        let entries = inode.known_entries()?;
        if entries.is_complete {
            return Ok(entries);
        }
        drop(entries);
        drop(self.entries_mut(inode)?);
        inode.known_entries()
    }

    /// Returns a directory's entries, to change them.
    pub(crate) fn entries_mut<'a>(
        &self,
        inode: &'a Inode,
    ) -> Result<RwLockWriteGuard<'a, Directory>> {
        let mut entries = inode.known_entries_mut()?;
        if let (false, Some(lower), Some(below)) = (
            entries.is_complete,
            self.lower.as_deref(),
            self.below(inode.number),
        ) {
            add_lower(lower, below, &mut entries)?;
        }
        Ok(entries)
    }

    /// Returns a child of a directory.
    pub(crate) fn child(&self, directory: &Inode, child: &Child) -> Result<Held<'_>> {
        let (inode, is_held) = match child {
            Child::Made(inode) => (Arc::clone(inode), false),
            Child::Below(file, kind) => (self.find(directory, *file, *kind)?, true),
        };
        Ok(Held {
            files: self,
            inode,
            is_held,
        })
    }

    /// Returns a child of a directory if its inode is in memory.
    pub(crate) fn known_child(&self, child: &Child) -> Option<Arc<Inode>> {
        match child {
            Child::Made(inode) => Some(Arc::clone(inode)),
            Child::Below(file, _) => self.inode(number_of(*file).ok()?).ok(),
        }
    }

    /// Holds a child of a directory, and returns its attributes.
    pub(crate) fn hold_child(&self, directory: &Inode, child: &Child) -> Result<Stat> {
        match child {
            Child::Made(inode) => Ok(inode.hold()),
            Child::Below(file, kind) => Ok(self.find(directory, *file, *kind)?.stat()),
        }
    }

    /// Holds the inode of a file of the lower that was found in a directory.
    fn find(&self, directory: &Inode, file: u64, kind: FileKind) -> Result<Arc<Inode>> {
        let number = number_of(file)?;
        if let Some(inode) = self.inodes.hold(number) {
            return self.checked(directory, inode, kind);
        }
        let lower = self.lower.as_ref().ok_or(Errno::IO)?;
        if file == lower.root() {
            return Err(Errno::IO);
        }
        let inode = read(lower, file, number, directory.number, kind)?;
        inode.state().holds = 1;
        let inode = Arc::new(inode);
        directory.state().holds += 1;
        match self.inodes.insert_or_hold(&inode) {
            None => Ok(inode),
            Some(there) => {
                self.forget(directory.number, 1);
                self.checked(directory, there, kind)
            }
        }
    }

    /// Returns an inode that was held, if it is what the directory says. A directory has one name: else
    /// it could be in itself.
    fn checked(&self, directory: &Inode, inode: Arc<Inode>, kind: FileKind) -> Result<Arc<Inode>> {
        let is_elsewhere =
            inode.is_directory() && inode.parent.load(Ordering::Relaxed) != directory.number;
        if inode.kind != kind || is_elsewhere {
            self.forget(inode.number, 1);
            return Err(Errno::IO);
        }
        Ok(inode)
    }

    /// Keeps an inode, which is about to be changed, and takes room for what it has in memory. Its contents
    /// stay below.
    pub(crate) fn keep(&self, inode: &Inode) -> Result<()> {
        // Most inodes are not from a lower.
        if !inode.is_from_lower() && inode.number != ROOT {
            return Ok(());
        }
        let mut state = inode.state();
        if state.taken > 0 {
            return Ok(());
        }
        self.room().take_inode()?;
        if let Err(error) = self.room().take_bytes(bytes(inode, &state)) {
            self.room().give_inodes(1);
            return Err(error);
        }
        state.taken = 1;
        Ok(())
    }

    /// Keeps an inode for a removal, which must not fail: takes room beyond the limits.
    pub(crate) fn keep_anyway(&self, inode: &Inode, state: &mut State) {
        if state.taken == 0 {
            self.room().take_beyond(1, bytes(inode, state));
            state.taken = 1;
        }
    }
}

/// Returns what an inode of the lower takes beside its contents.
fn bytes(inode: &Inode, state: &State) -> u64 {
    let target = inode.target().map_or(0, <[u8]>::len) as u64;
    target + xattr::sum(&state.xattrs)
}

/// Adds what a directory has in the lower. Names that no directory can have, two that are the same, and
/// two of one directory, are damage.
fn add_lower(lower: &dyn Lower, directory: u64, entries: &mut Directory) -> Result<()> {
    let listed = lower.list(directory)?;
    let mut directories = HashSet::new();
    let mut found = Directory::new(true);
    for (name, file, kind) in listed {
        let is_again = kind == FileKind::Directory && !directories.insert(file);
        if check(&name).is_err() || found.get(&name).is_some() || is_again {
            return Err(Errno::IO);
        }
        // Only a whiteout has this number, and hides nothing in the lowest layer.
        if kind == FileKind::CharDevice && lower.stat(file)?.device == (0, 0) {
            continue;
        }
        found.add(name.into(), Child::Below(file, kind));
    }
    *entries = found;
    Ok(())
}

/// Reads a file of the lower.
pub(crate) fn read(
    lower: &Arc<dyn Lower>,
    file: u64,
    number: u64,
    parent: u64,
    kind: FileKind,
) -> Result<Inode> {
    let stat = lower.stat(file)?;
    if stat.kind != kind || stat.number != file || stat.size > SIZE_MAX {
        return Err(Errno::IO);
    }
    let target = match kind {
        FileKind::Symlink => lower.target(file)?,
        _ => Vec::new(),
    };
    let is_target = (1..=TARGET_MAX).contains(&target.len()) && !target.contains(&0);
    if kind == FileKind::Symlink && !is_target {
        return Err(Errno::IO);
    }
    let xattrs = lower.xattrs(file)?;
    if !xattrs
        .iter()
        .all(|(name, value)| xattr::is_valid(name, value))
    {
        return Err(Errno::IO);
    }
    let xattrs = xattrs
        .into_iter()
        .map(|(name, value)| (name.into(), value.into()));
    let time = |time: Timestamp| Timestamp {
        nanos: time.nanos.min(999_999_999),
        ..time
    };
    let fewest = if kind == FileKind::Directory { 2 } else { 1 };
    let state = State {
        mode: stat.mode & 0o7777,
        uid: stat.uid,
        gid: stat.gid,
        links: stat.links.max(fewest),
        holds: 0,
        taken: 0,
        atime: time(stat.atime),
        mtime: time(stat.mtime),
        ctime: time(stat.ctime),
        xattrs: xattrs.collect(),
    };
    let stat = Stat {
        born: time(stat.born),
        ..stat
    };
    Ok(Inode::over(number, lower, &stat, target, state, parent))
}

impl Filesystem {
    /// Returns the number that a file has in the lower, if it is from there.
    #[must_use]
    pub fn below(&self, number: u64) -> Option<u64> {
        match number {
            ROOT => self.lower.as_ref().map(|lower| lower.root()),
            _ => file_of(number),
        }
    }

    /// Returns the tree below.
    #[must_use]
    pub fn lower(&self) -> Option<&Arc<dyn Lower>> {
        self.lower.as_ref()
    }
}
