//! Locks of sandboxes and of their names, by the path of a file.

use std::fs::File;
use std::io;
use std::path::Path;

use micabox_ground::Locked;
use micabox_ground::locked::{self, Mode};

/// A held lock, which the kernel releases when its holder dies.
#[derive(Debug)]
pub struct Lock(Locked);

impl Lock {
    /// Makes the file if necessary, and waits for the lock.
    ///
    /// # Errors
    /// Those of the file.
    pub fn wait(path: &Path) -> io::Result<Self> {
        loop {
            let locked = Locked::wait(locked::open_or_make(path)?, Mode::Exclusive)?;
            // The file may have been removed meanwhile. Then this lock excludes no other process.
            if locked.is_at(path)? {
                return Ok(Self(locked));
            }
        }
    }

    /// Takes the lock on an existing file; None if another process holds it.
    ///
    /// # Errors
    /// Those of the file.
    pub fn attempt(path: &Path) -> io::Result<Option<Self>> {
        let locked = Locked::attempt(locked::open(path)?, Mode::Exclusive)?;
        Ok(locked.map(Self))
    }

    /// Takes over the lock that another process held and handed over ([`Lock::file`],
    /// [`Lock::outlive_us`]).
    pub fn taken_over(file: File) -> Self {
        Self(Locked::already(file))
    }

    /// Returns the locked file, for a process that takes the lock over.
    pub fn file(&self) -> &File {
        self.0.file()
    }

    /// Duplicates the locked file for another process, which then holds the lock as well.
    ///
    /// # Errors
    /// Those of duplicating a descriptor.
    pub fn share(&self) -> io::Result<File> {
        self.file().try_clone()
    }

    /// Keeps the lock until the last process that it was shared with ends.
    pub fn outlive_us(&mut self) {
        self.0.outlive();
    }
}
