//! The files whose changes the host's kernel reports (inotify(7)).
//!
//! A watch is on a directory itself, whatever its names are, and reports what any process of this host
//! changes in it. It does not report what another host changes, nor what changes through another name
//! in a directory that is not watched; a file with several names can have a watch of its own.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard};

use micabox_ground::lock;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{FileType, fstatfs};
use rustix::io::Errno;

use crate::owner::path;

/// Filesystems of this host alone (`linux/magic.h`), whose changes its kernel sees all: ext4, xfs,
/// btrfs, tmpfs, overlayfs, f2fs, zfs, bcachefs, EROFS, squashfs.
const LOCAL: [u64; 10] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0x0102_1994,
    0x794c_7630,
    0xf2f5_2010,
    0x2fc1_2fc1,
    0xca45_1a4e,
    0xe0f5_e1e2,
    0x7371_7368,
];

/// What is reported of a file. That it was changed through a mapping is when its last descriptor and
/// mapping are gone.
const OF_FILES: WatchFlags = WatchFlags::ATTRIB
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::MODIFY);

/// What is reported of a directory: the same of its entries, and that entries come and go.
const OF_DIRECTORIES: WatchFlags = OF_FILES
    .union(WatchFlags::CREATE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::ONLYDIR);

/// The watched files.
#[derive(Debug)]
pub(crate) struct Watches {
    inotify: OwnedFd,
    table: Mutex<Table>,
    /// Most files to watch.
    most: usize,
}

#[derive(Debug, Default)]
struct Table {
    /// Watch of a file; None if it can't have one.
    watches: HashMap<u64, Option<i32>>,
    files: HashMap<i32, u64>,
    /// Whether files are on a filesystem whose changes are reported, by device.
    devices: HashMap<u64, bool>,
}

impl Watches {
    /// Creates an empty set, for `most` files.
    ///
    /// # Errors
    /// If the user has too many sets (`fs.inotify.max_user_instances`).
    pub(crate) fn new(most: usize) -> Result<Self, Errno> {
        Ok(Self {
            inotify: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?,
            table: Mutex::default(),
            most,
        })
    }

    /// Returns where events are read, without waiting for them.
    pub(crate) fn events(&self) -> &OwnedFd {
        &self.inotify
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }

    /// Watches a file, and keeps doing so until it is forgotten.
    pub(crate) fn add(&self, node: u64, file: &OwnedFd, device: u64, kind: FileType) -> Watched {
        let mut table = self.lock();
        if let Some(watch) = table.watches.get(&node) {
            return match watch {
                Some(_) => Watched::Already,
                None => Watched::Not,
            };
        }
        let is_local = *table.devices.entry(device).or_insert_with(|| {
            fstatfs(file).is_ok_and(|fs| LOCAL.contains(&fs.f_type.cast_unsigned()))
        });
        let reported = match kind {
            FileType::Directory => OF_DIRECTORIES,
            _ => OF_FILES,
        };
        let watch = (is_local && table.files.len() < self.most)
            .then(|| inotify::add_watch(&self.inotify, path(file), reported).ok())
            .flatten();
        table.watches.insert(node, watch);
        match watch {
            Some(watch) => {
                table.files.insert(watch, node);
                Watched::New
            }
            None => Watched::Not,
        }
    }

    /// Returns whether a file is watched.
    pub(crate) fn has(&self, node: u64) -> bool {
        matches!(self.lock().watches.get(&node), Some(Some(_)))
    }

    /// Returns the file of a watch.
    pub(crate) fn file(&self, watch: i32) -> Option<u64> {
        self.lock().files.get(&watch).copied()
    }

    /// Stops watching a file.
    pub(crate) fn forget(&self, node: u64) {
        let mut table = self.lock();
        if let Some(Some(watch)) = table.watches.remove(&node) {
            table.files.remove(&watch);
            // The file may be gone, and its watch with it.
            let _ = inotify::remove_watch(&self.inotify, watch);
        }
    }

    /// Notes that a file is gone, and its watch with it.
    pub(crate) fn lost(&self, watch: i32) {
        let mut table = self.lock();
        if let Some(node) = table.files.remove(&watch) {
            table.watches.insert(node, None);
        }
    }

    /// Stops watching all files.
    pub(crate) fn clear(&self) {
        let mut table = self.lock();
        for watch in table.files.keys() {
            let _ = inotify::remove_watch(&self.inotify, *watch);
        }
        *table = Table::default();
    }
}

/// Whether a file is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watched {
    /// From now on: what was read of it before may have changed.
    New,
    Already,
    Not,
}
