//! Whether a file is the one that was looked at before.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// What changes with every change to a file, its replacement included: to say that it is as
/// it was takes no look at its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    /// Seconds and nanoseconds of its last change, which nobody can set.
    changed: (i64, i64),
}

impl Stamp {
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let metadata = path.metadata()?;
        Ok(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}
