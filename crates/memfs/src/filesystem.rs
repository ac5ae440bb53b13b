//! The filesystem: its inodes, its room, and how inodes go.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

use rustix::io::Errno;

use crate::Result;
use crate::clock::now;
use crate::inode::{Inode, New, State};
use crate::room::{Limits, Room, Usage};
use crate::table::Table;

/// The number of the root directory.
pub const ROOT: u64 = 1;

/// A filesystem in memory. All operations may run side by side.
///
/// It checks no permissions: the kernel does, with the attributes that it is told.
///
/// What returns a [`Stat`](crate::Stat) of a name also *holds* its inode: it stays, with or without
/// a name, until [`forget`](Self::forget) has given back each hold.
#[derive(Debug)]
pub struct Filesystem {
    inodes: Table,
    room: Room,
    /// Taken by what locks two directories: shared if one is in the other, alone otherwise. So they
    /// may be locked in any order.
    pub(crate) moving: RwLock<()>,
}

impl Filesystem {
    /// Makes a filesystem whose root has these permissions and this owner.
    #[must_use]
    pub fn new(limits: Limits, mode: u16, uid: u32, gid: u32) -> Self {
        let inodes = Table::new();
        let new = New::directory(mode, uid, gid);
        let state = fresh(&new, 2);
        inodes.insert(Arc::new(Inode::new(inodes.number(), &new, state, ROOT)));
        Self {
            inodes,
            room: Room::new(limits),
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
        let inherited = self.inherit(&directory.state(), new, &mut state);
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

    /// Gives back `count` holds of an inode. Without a name, it goes with the last.
    pub fn forget(&self, number: u64, count: u64) {
        let Ok(inode) = self.inode(number) else {
            return;
        };
        let mut state = inode.state();
        let had = state.holds;
        state.holds = had.saturating_sub(count);
        let is_gone = had > 0 && state.is_gone();
        drop(state);
        if is_gone {
            self.dispose(&inode);
        }
    }

    /// Frees all that an inode takes. It has neither a name nor a holder, and never will have.
    pub(crate) fn dispose(&self, inode: &Inode) {
        self.inodes.remove(inode.number);
        if let Ok(mut contents) = inode.contents_mut() {
            contents.clear(&self.room);
        }
        self.drop_xattrs(&mut inode.state());
        self.room
            .give_bytes(inode.target().map_or(0, |target| target.len() as u64));
        self.room.give_inodes(1);
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
        atime: now,
        mtime: now,
        ctime: now,
        xattrs: BTreeMap::new(),
    }
}
