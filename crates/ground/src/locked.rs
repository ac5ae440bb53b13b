//! Files that are locked against other processes (flock(2)).
//!
//! The kernel releases a lock when the last descriptor of the open file is closed, thus when its holder dies, however
//! that happens. That is also why closing the file is not enough to release it: a child that another thread has forked
//! and that has not yet executed its program has such a descriptor, as has a worker that the file was given to. So
//! [`Locked`] unlocks the file when it is dropped.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// How a file is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Other processes may lock it shared as well.
    Shared,
    /// No other process may lock it.
    Exclusive,
}

/// A file that is locked until this is dropped.
#[derive(Debug)]
pub struct Locked {
    file: File,
    /// Duplicates of the file keep the lock.
    outlives: bool,
}

impl Locked {
    /// Waits for a lock.
    ///
    /// # Errors
    /// The kernel's.
    pub fn wait(file: File, mode: Mode) -> io::Result<Self> {
        match mode {
            Mode::Shared => file.lock_shared(),
            Mode::Exclusive => file.lock(),
        }?;
        Ok(Self::already(file))
    }

    /// Locks a file; None if another lock of it excludes that.
    ///
    /// # Errors
    /// The kernel's.
    pub fn attempt(file: File, mode: Mode) -> io::Result<Option<Self>> {
        Ok(attempt(&file, mode)?.then(|| Self::already(file)))
    }

    /// Takes over a file that is locked already.
    pub fn already(file: File) -> Self {
        let outlives = false;
        Self { file, outlives }
    }

    /// Returns the file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Keeps the lock until the last duplicate of the file is closed, in whatever process.
    pub fn outlive(&mut self) {
        self.outlives = true;
    }

    /// Returns whether the file is still at the path that it was opened by. If it is not, another process removed
    /// it before it was locked, and the lock excludes none.
    ///
    /// # Errors
    /// Those of reading the metadata, but not that there is no such path.
    pub fn is_at(&self, path: &Path) -> io::Result<bool> {
        let ours = self.file.metadata()?;
        match path.metadata() {
            Ok(there) => Ok((there.dev(), there.ino()) == (ours.dev(), ours.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        if !self.outlives {
            // Closing is not enough; see the module.
            let _ = self.file.unlock();
        }
    }
}

/// Locks a file until its last duplicate is closed; false if another lock of it excludes that.
///
/// # Errors
/// The kernel's.
pub fn attempt(file: &File, mode: Mode) -> io::Result<bool> {
    let locked = match mode {
        Mode::Shared => file.try_lock_shared(),
        Mode::Exclusive => file.try_lock(),
    };
    match locked {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Opens a file to lock it, and makes it if there is none.
///
/// # Errors
/// Errors of opening.
pub fn open_or_make(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.create(true).truncate(false);
    // A process that can open the file can lock it, so only those of its owner can.
    options.mode(0o600);
    open_with(&mut options, path)
}

/// Opens a file that there is, to lock it.
///
/// # Errors
/// Errors of opening.
pub fn open(path: &Path) -> io::Result<File> {
    open_with(&mut File::options(), path)
}

/// Opens for writing, as NFS turns an exclusive lock into one of records, which requires that; on a read-only
/// filesystem for reading, which is enough for the others.
fn open_with(options: &mut std::fs::OpenOptions, path: &Path) -> io::Result<File> {
    match options.write(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => File::open(path),
        opened => opened,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_lock_excludes_others_until_it_is_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        assert_eq!(open(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        let held = Locked::wait(open_or_make(&path).unwrap(), Mode::Shared).unwrap();
        let attempt = |mode| Locked::attempt(open(&path).unwrap(), mode).unwrap();
        assert!(attempt(Mode::Exclusive).is_none());
        assert!(attempt(Mode::Shared).is_some());
        let duplicate = held.file().try_clone().unwrap();
        drop(held);
        assert!(attempt(Mode::Exclusive).is_some());
        drop(duplicate);
    }

    #[test]
    fn a_lock_that_outlives_lasts_as_long_as_its_duplicates() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let mut held = Locked::wait(open_or_make(&path).unwrap(), Mode::Exclusive).unwrap();
        let duplicate = held.file().try_clone().unwrap();
        held.outlive();
        drop(held);
        let attempt = || Locked::attempt(open(&path).unwrap(), Mode::Exclusive).unwrap();
        assert!(attempt().is_none());
        drop(Locked::already(duplicate));
        assert!(attempt().is_some());
    }

    #[test]
    fn a_file_that_was_removed_is_not_at_its_path() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let held = Locked::wait(open_or_make(&path).unwrap(), Mode::Exclusive).unwrap();
        assert!(held.is_at(&path).unwrap());
        fs::remove_file(&path).unwrap();
        assert!(!held.is_at(&path).unwrap());
        open_or_make(&path).unwrap();
        assert!(!held.is_at(&path).unwrap());
    }

    #[test]
    fn a_child_process_being_started_keeps_no_lock() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        std::thread::scope(|scope| {
            let children = scope.spawn(|| {
                for _ in 0..100 {
                    Command::new("true").status().unwrap();
                }
            });
            while !children.is_finished() {
                drop(Locked::wait(open_or_make(&path).unwrap(), Mode::Exclusive).unwrap());
                let again = Locked::attempt(open(&path).unwrap(), Mode::Exclusive).unwrap();
                assert!(again.is_some());
            }
        });
    }
}
