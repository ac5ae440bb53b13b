//! Advisory locks that the kernel releases when their holder dies.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// A held lock.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
    /// Another process holds the lock as well, and may keep it for longer.
    outlives: bool,
}

impl Lock {
    /// Makes the file if necessary, and waits for the lock.
    pub(crate) fn wait(path: &Path) -> io::Result<Self> {
        loop {
            let mut options = File::options();
            options.create(true).truncate(false).write(true);
            // A process that can open the file can lock it.
            options.mode(0o600);
            let file = options.open(path).or_else(|error| read_only(path, error))?;
            file.lock()?;
            // The file may have been removed meanwhile. Then this lock excludes no other process.
            let ours = file.metadata()?;
            match path.metadata() {
                Ok(current) if (current.dev(), current.ino()) == (ours.dev(), ours.ino()) => {
                    return Ok(Self::of(file));
                }
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
    }

    /// Takes the lock on an existing file; None if another process holds it.
    pub(crate) fn attempt(path: &Path) -> io::Result<Option<Self>> {
        let file = File::options().write(true).open(path);
        let file = file.or_else(|error| read_only(path, error))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self::of(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

impl Lock {
    fn of(file: File) -> Self {
        let outlives = false;
        Self { file, outlives }
    }

    /// Takes over the lock that another process held and handed over ([`Lock::file`],
    /// [`Lock::outlive_us`]).
    pub(crate) fn taken_over(file: File) -> Self {
        Self::of(file)
    }

    /// Returns the locked file, for a process that takes the lock over.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Duplicates the locked file for another process, which then holds the lock as well.
    pub(crate) fn share(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Keeps the lock until the last process that it was shared with ends.
    pub(crate) fn outlive_us(&mut self) {
        self.outlives = true;
    }
}

/// Opens the file read-only on a read-only filesystem, where it can be locked as well.
fn read_only(path: &Path, error: io::Error) -> io::Result<File> {
    if error.kind() == io::ErrorKind::ReadOnlyFilesystem {
        File::open(path)
    } else {
        Err(error)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.outlives {
            return;
        }
        // Closing is not enough: a child that another thread has forked and that has not yet
        // executed its program holds the file open as well.
        let _ = self.file.unlock();
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

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
                drop(Lock::wait(&path).unwrap());
                assert!(Lock::attempt(&path).unwrap().is_some());
            }
        });
    }
}
