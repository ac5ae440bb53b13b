//! Files and directories that the guest has open.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};

use micabox_ground::lock;
use rustix::io::Errno;

/// An open file or directory.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) file: OwnedFd,
    /// The place in a directory behind the entry that was read last.
    place: Mutex<u64>,
}

impl Handle {
    /// Creates one that has no number.
    pub(crate) fn new(file: OwnedFd) -> Self {
        let place = Mutex::new(0);
        Self { file, place }
    }

    /// Returns the place, for one reader at a time.
    pub(crate) fn place(&self) -> MutexGuard<'_, u64> {
        lock(&self.place)
    }
}

/// All that are open, by the numbers that the guest knows.
#[derive(Debug, Default)]
pub(crate) struct Handles(Mutex<(u64, HashMap<u64, Arc<Handle>>)>);

impl Handles {
    fn lock(&self) -> MutexGuard<'_, (u64, HashMap<u64, Arc<Handle>>)> {
        lock(&self.0)
    }

    /// Adds an open file and returns its number.
    pub(crate) fn add(&self, file: OwnedFd) -> u64 {
        let mut handles = self.lock();
        let number = handles.0.wrapping_add(1);
        handles.0 = number;
        handles.1.insert(number, Arc::new(Handle::new(file)));
        number
    }

    pub(crate) fn get(&self, number: u64) -> Result<Arc<Handle>, Errno> {
        self.lock().1.get(&number).cloned().ok_or(Errno::BADF)
    }

    /// Closes a file, when no request uses it any more.
    pub(crate) fn remove(&self, number: u64) {
        let removed = self.lock().1.remove(&number);
        // Closing may take time, so not under the lock.
        drop(removed);
    }

    pub(crate) fn clear(&self) {
        self.lock().1.clear();
    }
}
