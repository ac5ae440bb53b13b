//! The filesystem: its inodes, its room, and how inodes go.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

use micabox_file::FileKind;
use rustix::io::Errno;

use crate::clock::now;
use crate::inode::{Inode, New, State};
use crate::lists;
use crate::lower::Lower;
use crate::number::{ROOT, file_of};
use crate::room::{Limits, Room, Usage};
use crate::table::Table;
use crate::xattr::set;
use crate::{Result, below};

/// A filesystem in memory. All operations may run side by side.
///
/// It checks no permissions: the kernel does, with the attributes that it gets.
///
/// What returns a [`Stat`](crate::Stat) of a name also *holds* its inode: it stays, with or without
/// a name, until [`forget`](Self::forget) has given back each hold.
#[derive(Debug)]
pub struct Filesystem {
    pub(crate) inodes: Table,
    room: Room,
    pub(crate) lower: Option<Arc<dyn Lower>>,
    /// Taken by what locks two directories: shared if one is in the other, alone otherwise. So they
    /// may be locked in any order.
    pub(crate) moving: RwLock<()>,
}

impl Filesystem {
    /// Makes a filesystem whose root has these permissions and this owner.
    #[must_use]
    pub fn new(limits: Limits, mode: u16, uid: u32, gid: u32) -> Self {
        let files = Self::empty(limits, None);
        let new = New::directory(mode, uid, gid);
        let root = Inode::new(files.inodes.number(), &new, fresh(&new, 2), ROOT);
        files.inodes.insert(Arc::new(root));
        files
    }

    /// Makes a filesystem that has what is in `lower`, until it is changed. Only changes take of
    /// `limits`: attributes, contents in pages, and names.
    ///
    /// # Errors
    /// Those of the lower; `EIO` if its root is not a directory.
    pub fn over(limits: Limits, lower: Arc<dyn Lower>) -> Result<Self> {
        let files = Self::empty(limits, Some(Arc::clone(&lower)));
        // The root's number is 1, whatever the lower's is.
        files.inodes.number();
        let root = below::read(&lower, lower.root(), ROOT, ROOT, FileKind::Directory)?;
        files.inodes.insert(Arc::new(root));
        Ok(files)
    }

    fn empty(limits: Limits, lower: Option<Arc<dyn Lower>>) -> Self {
        Self {
            inodes: Table::new(),
            room: Room::new(limits),
            lower,
            moving: RwLock::default(),
        }
    }

    /// Returns the limits.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.room.limits()
    }

    /// Returns what is taken of them. The root takes nothing.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.room.usage()
    }

    /// Returns whether the contents have become fewer by `by` bytes since it last returned true, as far as
    /// it was asked in between. Those of small files are on the heap: the caller may have its free
    /// pages given back.
    #[must_use]
    pub fn has_shrunk(&self, by: u64) -> bool {
        self.room.has_shrunk(by)
    }

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

    pub(crate) fn room(&self) -> &Room {
        &self.room
    }

    /// Returns an inode.
    pub(crate) fn inode(&self, number: u64) -> Result<Arc<Inode>> {
        self.inodes.get(number).ok_or(Errno::STALE)
    }

    /// Makes an inode with `links` names and one hold, in (or for) a directory.
    pub(crate) fn create(
        &self,
        directory: &Inode,
        new: &New<'_>,
        links: u32,
    ) -> Result<Arc<Inode>> {
        self.room.take_inode()?;
        let target = new.target.len() as u64;
        if let Err(error) = self.room.take_bytes(target) {
            self.room.give_inodes(1);
            return Err(error);
        }
        let mut state = fresh(new, links);
        state.holds = 1;
        let inherited = lists::inherit(&self.room, &directory.state(), new, &mut state);
        if let Err(error) = inherited {
            self.room.give_inodes(1);
            self.room.give_bytes(target);
            return Err(error);
        }
        let inode = Inode::new(self.inodes.number(), new, state, directory.number);
        let inode = Arc::new(inode);
        self.inodes.insert(Arc::clone(&inode));
        Ok(inode)
    }

    /// Gives back `count` holds of an inode. Without a name, it goes with the last; as the lower has it, it
    /// is made again when it is looked up.
    pub fn forget(&self, number: u64, count: u64) {
        let mut next = self.forget_one(number, count);
        while let Some(directory) = next {
            next = self.forget_one(directory, 1);
        }
    }

    /// Does so without the directory that the inode holds, and returns that if it is to be given back.
    fn forget_one(&self, number: u64, count: u64) -> Option<u64> {
        let inode = self.inode(number).ok()?;
        let mut state = inode.state();
        let had = state.holds;
        state.holds = had.saturating_sub(count);
        let (is_gone, is_idle) = (had > 0 && state.is_gone(), had > 0 && state.is_idle());
        drop(state);
        if is_gone {
            return self.free(&inode);
        }
        let leaves = is_idle
            && number != ROOT
            && self
                .inodes
                .remove_if(number, |inode| inode.state().is_idle());
        if leaves { inode.give_back() } else { None }
    }

    /// Frees all that an inode takes. It has neither a name nor a holder, and never will have.
    pub(crate) fn dispose(&self, inode: &Inode) {
        if let Some(directory) = self.free(inode) {
            self.forget(directory, 1);
        }
    }

    /// Does so without the directory that the inode holds, and returns that if it is to be given back.
    fn free(&self, inode: &Inode) -> Option<u64> {
        self.inodes.remove(inode.number);
        if let Ok(mut contents) = inode.contents_mut() {
            contents.clear(&self.room);
        }
        let mut state = inode.state();
        // What is as in the lower took nothing.
        let taken = std::mem::take(&mut state.taken);
        if taken > 0 {
            set::clear(&self.room, &mut state.xattrs);
            self.room
                .give_bytes(inode.target().map_or(0, |target| target.len() as u64));
            self.room.give_inodes(taken.into());
        }
        drop(state);
        inode.give_back()
    }
}

/// Returns the state of a new inode, without what it inherits.
fn fresh(new: &New<'_>, links: u32) -> State {
    let now = now();
    State {
        mode: new.mode,
        uid: new.uid,
        gid: new.gid,
        links,
        holds: 0,
        taken: 1,
        atime: now,
        mtime: now,
        ctime: now,
        xattrs: BTreeMap::new(),
    }
}
