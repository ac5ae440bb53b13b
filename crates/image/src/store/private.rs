//! Makes a store private to its owner: images may be private, and a process that may open a lock
//! can hold it for as long as it likes.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::Access;

use super::durable;
use super::error::{Context, Error, Result};
use super::layout::Layout;

const DIRECTORY: u32 = 0o700;
const LOCK: u32 = 0o600;
/// The permission bits of group and others.
const OTHERS: u32 = 0o077;

/// Makes the store's root private to its owner. If it exists and belongs to this user, removes
/// other users' access to it and to its locks, and returns the former mode. Another user's root is
/// left unchanged.
pub(super) fn make_root(layout: &Layout) -> Result<Option<u32>> {
    let root = &layout.root;
    let parent = root.parent().unwrap_or(root);
    durable::create_directories(parent)?;
    match DirBuilder::new().mode(DIRECTORY).create(root) {
        Ok(()) => {
            durable::sync_directory(parent)?;
            return Ok(None);
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error).context("create", root),
    }
    let metadata = fs::metadata(root).context("look at", root)?;
    if !metadata.is_dir() {
        let file = "it is a file, not a directory: name another in MICABOX_HOME";
        return Err(io::Error::new(io::ErrorKind::NotADirectory, file))
            .context("keep a store in", root);
    }
    let mode = metadata.mode() & 0o7777;
    let is_ours = metadata.uid() == rustix::process::geteuid().as_raw();
    if !is_ours && rustix::fs::access(root, Access::READ_OK | Access::EXEC_OK).is_err() {
        let owner = metadata.uid();
        let text = format!(
            "it belongs to the user with ID {owner}: name a directory of your own in MICABOX_HOME"
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text)).context("use", root);
    }
    if !is_ours || mode & OTHERS == 0 {
        return Ok(None);
    }
    match set_mode(root, mode & !OTHERS) {
        // On a read-only disk nothing changes, and no lock can be made either.
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::ReadOnlyFilesystem => {
            return Ok(None);
        }
        result => result?,
    }
    let locks = layout.locks();
    for name in durable::list(&locks)? {
        set_mode(&locks.join(name), LOCK)?;
    }
    Ok(Some(mode))
}

fn set_mode(path: &Path, mode: u32) -> Result<()> {
    match fs::set_permissions(path, Permissions::from_mode(mode)) {
        // Removed by another process meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.context("make private", path),
    }
}
