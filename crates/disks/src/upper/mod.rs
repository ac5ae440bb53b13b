//! The upper layer, which holds a sandbox's changes, and operations on it while no machine uses it.

pub mod copy;
pub mod folder;
mod frozen;
mod unread;

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use micabox_error::Error;
use micabox_ext4::mkfs::{Journal, Options, mkfs};
use micabox_ground::clock;

pub use copy::{copy, data_runs};
pub use frozen::FrozenDisk;
pub use frozen::copy_frozen;
pub use frozen::{Keep, Opened};
pub use micabox_overlay::diff::{Change, ChangeKind};
pub use unread::Unread;
pub use unread::{About, Archive};

/// The label of a disk for changes.
pub const LABEL: [u8; 16] = *b"mica-upper\0\0\0\0\0\0";

/// Serial number of the disk.
pub const SERIAL: &str = "upper";

/// Serial number of the layer of patches.
pub const PATCHES_SERIAL: &str = "patches";

/// Makes a sandbox's disk in a new file at `path`, as a copy of `original`, which is at `from`.
pub fn copy_disk(original: &File, from: &Path, path: &Path) -> Result<(), Error> {
    copy(original, path).map_err(|error| Error::Disk {
        what: "copying",
        path: from.to_owned(),
        source: error.into(),
    })
}

/// Returns the path of the layer of patches, for a sandbox with its changes in memory.
pub fn patches(directory: &Path) -> PathBuf {
    directory.join("patches.ext4")
}

/// Makes an empty filesystem of `size` bytes in a new file.
pub fn make_disk(path: &Path, size: u64, uuid: [u8; 16], label: [u8; 16]) -> Result<(), Error> {
    let failed = |source: micabox_error::Source| Error::Disk {
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
        time: clock::now_as_parts().0,
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
