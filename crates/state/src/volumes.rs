//! Where volumes are, and the removal of those that belong to a sandbox.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use micabox_ground::Locked;
use micabox_ground::locked::Mode;
use micabox_image::store::{is_packed_file, list_of};

use crate::is_valid_name;

/// The disk, in a volume's directory.
pub const VOLUME_DISK: &str = "disk.ext4";

const OLD: &str = ".old-";

/// Returns the directory of a volume in the store at `root`.
fn volume_directory(root: &Path, name: &str) -> PathBuf {
    root.join("volumes").join(name)
}

/// Returns the path of a volume's disk in the store at `root`.
pub fn volume_disk(root: &Path, name: &str) -> PathBuf {
    volume_directory(root, name).join(VOLUME_DISK)
}

/// Returns the directory of a volume that is being removed.
pub fn old_volume(root: &Path, name: &str) -> PathBuf {
    volume_directory(root, &format!("{OLD}{name}"))
}

/// Removes a sandbox's own volume from the store at `root`, unless a machine uses it or there is none. What
/// can't be removed now stays for `mica volume prune`.
pub fn forget_volume(root: &Path, name: &str) {
    if !is_valid_name(name) {
        return;
    }
    let mut path = volume_disk(root, name);
    if is_packed_file(&path) {
        // Then who unpacks it has the lock of this one.
        path = list_of(&path);
    }
    let Ok(disk) = File::options().read(true).write(true).open(&path) else {
        return;
    };
    if let Ok(Some(lock)) = Locked::attempt(disk, Mode::Exclusive)
        && lock.is_at(&path).unwrap_or(false)
    {
        let old = old_volume(root, name);
        if fs::rename(volume_directory(root, name), &old).is_ok() {
            let _ = fs::remove_dir_all(&old);
        }
    }
}
