//! The upper layer, which holds a sandbox's changes, and operations on it while no machine uses it.

mod changes;
pub(crate) mod copy;
pub(crate) mod folder;
mod frozen;
mod served;

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use micabox_ext4::mkfs::{Journal, Options, mkfs};

use crate::Error;
use crate::sandbox::now;

pub(crate) use changes::{ChangesError, read_changes, write_changes};
pub(crate) use copy::{copy, data_runs};
pub use frozen::FrozenDisk;
pub(crate) use frozen::{Keep, Medium, Opened};
pub use micabox_overlay::diff::{Change, ChangeKind};
pub(crate) use served::Served;

/// The label of a disk for changes.
pub(crate) const LABEL: [u8; 16] = *b"mica-upper\0\0\0\0\0\0";

/// The disk's file in the sandbox's directory.
const FILE: &str = "upper.ext4";

/// Serial number of the disk.
pub(crate) const SERIAL: &str = "upper";

/// Serial number of the layer of patches.
pub(crate) const PATCHES_SERIAL: &str = "patches";

/// Returns the path of the disk in a sandbox's directory.
pub(crate) fn disk(directory: &Path) -> PathBuf {
    directory.join(FILE)
}

/// Makes a sandbox's disk in a new file, as a copy of `original`.
pub(crate) fn copy_disk(original: &Path, path: &Path) -> Result<(), Error> {
    copy(original, path).map_err(|error| Error::Disk {
        what: "copying",
        path: original.to_owned(),
        source: error.into(),
    })
}

/// Returns the path of the layer of patches, for a sandbox with its changes in memory.
pub(crate) fn patches(directory: &Path) -> PathBuf {
    directory.join("patches.ext4")
}

/// Makes an empty filesystem of `size` bytes in a new file.
pub(crate) fn make_disk(
    path: &Path,
    size: u64,
    uuid: [u8; 16],
    label: [u8; 16],
) -> Result<(), Error> {
    let failed = |source: crate::Source| Error::Disk {
        what: "making",
        path: path.to_owned(),
        source,
    };
    let mut file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(|error| failed(error.into()))?;
    file.set_len(size).map_err(|error| failed(error.into()))?;
    let options = Options {
        uuid,
        label,
        time: now().0,
        inodes: None,
        journal: Journal::Default,
        // No blocks are reserved for root: as a rule, every process in the guest runs as root.
        reserved: 0,
    };
    mkfs(&mut file, size, &options).map_err(|error| failed(error.into()))?;
    // The guest's own flushes cover the file's contents, not its name.
    let directory = path.parent().unwrap_or(path);
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(|error| failed(error.into()))
}
