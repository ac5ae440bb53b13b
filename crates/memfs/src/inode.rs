//! Inodes: what a file is, beside its names.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use micabox_file::{FileKind, Timestamp};
use micabox_ground::lock;
use rustix::io::Errno;

use crate::Result;
use crate::contents::Contents;
use crate::directory::Directory;
use crate::lower::Lower;
use crate::number;
use crate::xattr::set::Xattrs;
use micabox_file::Stat;

/// Most bytes of a symbolic link's target.
pub(crate) const TARGET_MAX: usize = 4095;

/// A file, directory, link, device, FIFO or socket.
///
/// Locks are taken from the outside to the inside: a directory's entries, a file's contents, a state.
#[derive(Debug)]
pub(crate) struct Inode {
    pub(crate) number: u64,
    pub(crate) kind: FileKind,
    /// Of a directory the one above it. A file of the lower has the one where it was found, or where it was
    /// moved; whatever is from the lower holds that directory.
    pub(crate) parent: AtomicU64,
    /// Major and minor number of a device.
    device: (u32, u32),
    born: Timestamp,
    state: Mutex<State>,
    body: Body,
}

/// What differs between kinds.
#[derive(Debug)]
pub(crate) enum Body {
    File(RwLock<Contents>),
    Directory(RwLock<Directory>),
    Link(Box<[u8]>),
    /// A device, FIFO or socket, which the kernel implements.
    Special,
}

/// What changes of every kind.
#[derive(Debug)]
pub(crate) struct State {
    /// Permission, set-id and sticky bits.
    pub(crate) mode: u16,
    /// Inodes of the filesystem's room that it takes: one, and one for each further name. None as long as
    /// it is as the lower has it.
    pub(crate) taken: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Names; of a directory also its own two, and one for each directory in it.
    pub(crate) links: u32,
    /// How often the inode was given out and not given back ([`crate::Filesystem::forget`]).
    pub(crate) holds: u64,
    pub(crate) atime: Timestamp,
    pub(crate) mtime: Timestamp,
    pub(crate) ctime: Timestamp,
    pub(crate) xattrs: Xattrs,
}

impl State {
    /// Returns whether neither a name nor a holder is left.
    pub(crate) fn is_gone(&self) -> bool {
        self.links == 0 && self.holds == 0
    }

    /// Returns whether it can be made again from the lower, when it is needed.
    pub(crate) fn is_idle(&self) -> bool {
        self.taken == 0 && self.holds == 0
    }

    /// Takes the name of a directory from those of the one above it. The lower may have counted too few.
    pub(crate) fn lose_directory(&mut self) {
        self.links = self.links.saturating_sub(1).max(2);
    }

    /// Sets the times of the last change of contents and attributes.
    pub(crate) fn modified(&mut self, now: Timestamp) {
        self.mtime = now;
        self.ctime = now;
    }
}

/// What a new inode is to be.
#[derive(Clone, Copy, Debug)]
pub struct New<'a> {
    pub(crate) kind: FileKind,
    pub(crate) mode: u16,
    pub(crate) umask: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) device: (u32, u32),
    pub(crate) target: &'a [u8],
}

impl<'a> New<'a> {
    /// Any kind but a symbolic link, with the permission, set-id and sticky bits of `mode`. `device` is
    /// a device's major and minor number.
    #[must_use]
    pub fn of(kind: FileKind, mode: u16, device: (u32, u32), uid: u32, gid: u32) -> Self {
        Self {
            kind,
            mode: mode & 0o7777,
            umask: 0,
            uid,
            gid,
            device,
            target: &[],
        }
    }

    /// A regular file.
    #[must_use]
    pub fn file(mode: u16, uid: u32, gid: u32) -> Self {
        Self::of(FileKind::File, mode, (0, 0), uid, gid)
    }

    /// A directory.
    #[must_use]
    pub fn directory(mode: u16, uid: u32, gid: u32) -> Self {
        Self::of(FileKind::Directory, mode, (0, 0), uid, gid)
    }

    /// A symbolic link.
    #[must_use]
    pub fn symlink(target: &'a [u8], uid: u32, gid: u32) -> Self {
        Self {
            target,
            ..Self::of(FileKind::Symlink, 0o777, (0, 0), uid, gid)
        }
    }

    /// Takes away the permissions in `umask`, where the directory's default list does not say what a
    /// new file gets.
    #[must_use]
    pub fn umask(mut self, umask: u16) -> Self {
        self.umask = umask & 0o777;
        self
    }
}

impl Inode {
    /// Makes an inode.
    pub(crate) fn new(number: u64, new: &New<'_>, state: State, parent: u64) -> Self {
        let body = match new.kind {
            FileKind::File => Body::File(RwLock::default()),
            FileKind::Directory => Body::Directory(RwLock::new(Directory::new(true))),
            FileKind::Symlink => Body::Link(new.target.into()),
            _ => Body::Special,
        };
        Self {
            number,
            kind: new.kind,
            parent: AtomicU64::new(parent),
            device: new.device,
            born: state.ctime,
            state: Mutex::new(state),
            body,
        }
    }

    /// Makes the inode of a file in the lower. `target` is a link's.
    pub(crate) fn over(
        number: u64,
        lower: &Arc<dyn Lower>,
        stat: &Stat,
        target: Vec<u8>,
        state: State,
        parent: u64,
    ) -> Self {
        let body = match stat.kind {
            FileKind::File => {
                let (size, blocks) = (stat.size, stat.blocks);
                let contents = Contents::over(Arc::clone(lower), stat.number, size, blocks);
                Body::File(RwLock::new(contents))
            }
            FileKind::Directory => Body::Directory(RwLock::new(Directory::new(false))),
            FileKind::Symlink => Body::Link(target.into()),
            _ => Body::Special,
        };
        Self {
            number,
            kind: stat.kind,
            parent: AtomicU64::new(parent),
            device: stat.device,
            born: stat.born,
            state: Mutex::new(state),
            body,
        }
    }

    /// Returns whether it is from the lower, and not its root.
    pub(crate) fn is_from_lower(&self) -> bool {
        number::is_from_lower(self.number)
    }

    /// Ends the hold of the directory that it was found in; returns that, once.
    pub(crate) fn give_back(&self) -> Option<u64> {
        if !self.is_from_lower() {
            return None;
        }
        let directory = self.parent.swap(0, Ordering::Relaxed);
        (directory != 0).then_some(directory)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Returns a link's target.
    pub(crate) fn target(&self) -> Result<&[u8]> {
        match &self.body {
            Body::Link(target) => Ok(target),
            _ => Err(Errno::INVAL),
        }
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// Returns the entries, to read them, as far as they are known ([`crate::Filesystem::entries`]).
    pub(crate) fn known_entries(&self) -> Result<RwLockReadGuard<'_, Directory>> {
        match &self.body {
            Body::Directory(entries) => Ok(lock::read(entries)),
            _ => Err(Errno::NOTDIR),
        }
    }

    /// Does the same, to change them.
    pub(crate) fn known_entries_mut(&self) -> Result<RwLockWriteGuard<'_, Directory>> {
        match &self.body {
            Body::Directory(entries) => Ok(lock::write(entries)),
            _ => Err(Errno::NOTDIR),
        }
    }

    /// Returns a file's contents, to read them.
    pub(crate) fn contents(&self) -> Result<RwLockReadGuard<'_, Contents>> {
        match &self.body {
            Body::File(contents) => Ok(lock::read(contents)),
            Body::Directory(_) => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        }
    }

    /// Returns a file's contents, to change them.
    pub(crate) fn contents_mut(&self) -> Result<RwLockWriteGuard<'_, Contents>> {
        match &self.body {
            Body::File(contents) => Ok(lock::write(contents)),
            Body::Directory(_) => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        }
    }

    /// Returns the attributes. The caller holds neither the contents nor the state.
    pub(crate) fn stat(&self) -> Stat {
        let (size, blocks) = self.size();
        self.stat_of(&self.state(), size, blocks)
    }

    /// Does the same, and holds the inode.
    pub(crate) fn hold(&self) -> Stat {
        let (size, blocks) = self.size();
        let mut state = self.state();
        state.holds += 1;
        self.stat_of(&state, size, blocks)
    }

    /// Returns the size in bytes, and how many blocks of 512 bytes are in memory and in the lower.
    fn size(&self) -> (u64, u64) {
        match &self.body {
            Body::File(contents) => {
                let contents = lock::read(contents);
                (contents.size(), contents.blocks())
            }
            Body::Link(target) => (target.len() as u64, 0),
            Body::Directory(_) | Body::Special => (0, 0),
        }
    }

    fn stat_of(&self, state: &State, size: u64, blocks: u64) -> Stat {
        Stat {
            number: self.number,
            kind: self.kind,
            mode: state.mode,
            links: state.links,
            uid: state.uid,
            gid: state.gid,
            device: self.device,
            size,
            blocks,
            atime: state.atime,
            mtime: state.mtime,
            ctime: state.ctime,
            born: self.born,
        }
    }
}
