//! Advisory locks that the kernel releases when their holder dies.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A held lock.
#[derive(Debug)]
pub(crate) struct Lock {
    // Closing the file unlocks it.
    _file: File,
}

impl Lock {
    /// Makes the file if need be and waits for the lock.
    pub(crate) fn wait(path: &Path) -> io::Result<Self> {
        loop {
            let file = File::options()
                .create(true)
                .truncate(false)
                .write(true)
                .open(path)?;
            file.lock()?;
            // Whoever tidies up may have removed the file meanwhile. Then this lock
            // keeps nobody out.
            let ours = file.metadata()?;
            match path.metadata() {
                Ok(current) if (current.dev(), current.ino()) == (ours.dev(), ours.ino()) => {
                    return Ok(Self { _file: file });
                }
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
    }

    /// The lock on an existing file; None while somebody else has it.
    pub(crate) fn attempt(path: &Path) -> io::Result<Option<Self>> {
        let file = File::options().write(true).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}
