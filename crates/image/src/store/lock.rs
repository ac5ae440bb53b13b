//! Locks between processes: `flock(2)` on files that are not removed.
//!
//! A lock file that a process may be waiting on is never removed: only prune removes lock files, and no other process
//! runs beside it.

use std::fs::{self, File};
use std::path::Path;

use micabox_ground::locked::{Locked, Mode, open_or_make};

use super::error::{Context, Result};

/// A lock, held until it is dropped.
#[derive(Debug)]
pub struct Lock {
    _file: Locked,
}

impl Lock {
    /// Waits for the lock.
    pub(crate) fn wait(path: &Path, mode: Mode) -> Result<Self> {
        let locked = Locked::wait(open(path)?, mode).context("lock", path)?;
        Ok(Self { _file: locked })
    }

    /// Takes the lock; `None` if it is held.
    pub(crate) fn try_take(path: &Path, mode: Mode) -> Result<Option<Self>> {
        let locked = Locked::attempt(open(path)?, mode).context("lock", path)?;
        Ok(locked.map(|locked| Self { _file: locked }))
    }
}

fn open(path: &Path) -> Result<File> {
    match open_or_make(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            if let Some(directory) = path.parent() {
                fs::create_dir_all(directory).context("create", directory)?;
            }
            open_or_make(path)
        }
        opened => opened,
    }
    .context("open the lock", path)
}
