//! What a snapshot's changes are over.

use std::path::Path;

use micabox_error::Error;
use micabox_image::Store;

use super::Snapshot;
use crate::Base;

impl Base {
    /// Finds the base of a snapshot's sandbox.
    ///
    /// # Errors
    /// As [`Base::of`]; [`Error::RootDiskUnnamed`] if the snapshot was imported and has a root
    /// disk.
    pub fn of_snapshot(store: &Store, snapshot: &Snapshot) -> Result<Self, Error> {
        Self::find(store, &snapshot.base, &snapshot.name)
    }

    /// Uses the file at `path` as the root disk of a snapshot. Format, size and UUID must be the
    /// same.
    ///
    /// # Errors
    /// [`Error::RootDisk`] if it is another filesystem; [`Error::SnapshotDiffers`] if the snapshot
    /// has no root disk, or has memory, which can be restored only with the original file.
    pub fn of_snapshot_on(snapshot: &Snapshot, path: &Path) -> Result<Self, Error> {
        let differs = |problem| Error::SnapshotDiffers {
            name: snapshot.name.clone(),
            problem,
        };
        match snapshot.base.disk() {
            None => Err(differs("is of an image, and has no root disk")),
            Some(_) if snapshot.memory.is_some() => Err(differs(
                "has memory, which continues only with its own root disk",
            )),
            Some(disk) => Ok(Self::Disk(disk.found_at(path)?)),
        }
    }
}
