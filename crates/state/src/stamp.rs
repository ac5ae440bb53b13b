//! Detects whether a file has changed since an earlier look.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The metadata that changes with every change to a file, including its replacement, so that an
/// unchanged file need not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    /// ctime in seconds and nanoseconds, which no process can set.
    changed: (i64, i64),
}

impl Stamp {
    /// Looks at the file at a path.
    ///
    /// # Errors
    /// Those of reading its metadata.
    pub fn of(path: &Path) -> io::Result<Self> {
        Ok(Self::from(&path.metadata()?))
    }

    /// Looks at an open file.
    ///
    /// # Errors
    /// Those of reading its metadata.
    pub fn of_file(file: &File) -> io::Result<Self> {
        Ok(Self::from(&file.metadata()?))
    }
}

impl From<&Metadata> for Stamp {
    fn from(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}
