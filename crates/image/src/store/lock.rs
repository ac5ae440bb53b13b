//! Locks between processes: `flock(2)` on files that are not removed.
//!
//! A lock is released when its holder dies, however that happens. A lock file that a process may
//! be waiting on is never removed: only prune removes lock files, and no other process runs beside
//! it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::error::{Context, Result};

/// A lock, held until it is dropped.
#[derive(Debug)]
pub struct Lock {
    file: File,
}

/// Shared or exclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Shared,
    Exclusive,
}

impl Lock {
    /// Waits for the lock.
    pub(crate) fn wait(path: &Path, mode: Mode) -> Result<Self> {
        let file = open(path)?;
        match mode {
            Mode::Shared => file.lock_shared(),
            Mode::Exclusive => file.lock(),
        }
        .context("lock", path)?;
        Ok(Self { file })
    }

    /// Takes the lock; `None` if it is held.
    pub(crate) fn try_take(path: &Path, mode: Mode) -> Result<Option<Self>> {
        let file = open(path)?;
        let taken = match mode {
            Mode::Shared => file.try_lock_shared(),
            Mode::Exclusive => file.try_lock(),
        };
        match taken {
            Ok(()) => Ok(Some(Self { file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error).context("lock", path),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing is not enough: a child that another thread has forked and that has not yet
        // executed its program holds the file as well.
        let _ = self.file.unlock();
    }
}

fn open(path: &Path) -> Result<File> {
    // Write access, because NFS turns an exclusive flock into a record lock, which requires it.
    let open = || {
        OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            // A process that may open the file may lock it, so only the owner may.
            .mode(0o600)
            .open(path)
    };
    match open() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            if let Some(directory) = path.parent() {
                fs::create_dir_all(directory).context("create", directory)?;
            }
            open()
        }
        // flock works on files that are open for reading, too.
        Err(error) if error.kind() == std::io::ErrorKind::ReadOnlyFilesystem => File::open(path),
        opened => opened,
    }
    .context("open the lock", path)
}
