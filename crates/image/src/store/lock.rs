//! Locks between processes: `flock(2)` on files that stay.
//!
//! A lock goes away with its holder, however that dies. Lock files are never removed while
//! somebody may wait on one: only prune removes them, which nothing runs beside.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::error::{Context, Result};

/// A lock, held until it is dropped.
#[derive(Debug)]
pub struct Lock {
    file: File,
}

/// How a lock is wanted.
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

    /// Takes the lock unless somebody has it.
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
        // Closing is not enough: a child that another thread has made and that has not yet
        // executed its program holds the file as well.
        let _ = self.file.unlock();
    }
}

fn open(path: &Path) -> Result<File> {
    // Write access, because NFS turns an exclusive flock into a record lock that wants it.
    let open = || {
        OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            // Whoever may open it may lock it.
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
        // A lock holds on it as well.
        Err(error) if error.kind() == std::io::ErrorKind::ReadOnlyFilesystem => File::open(path),
        opened => opened,
    }
    .context("open the lock", path)
}
