//! Changes that are made before a sandbox boots.
//!
//! They are written into an ext4 filesystem as overlayfs itself would have written them: a
//! disk for changes gets them as its first ones. In memory there is nothing to write to yet,
//! so there they become a layer of their own above the image's, on a read-only disk.

mod archive;
mod overlay;

use std::fs::File;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use micabox_image::Store;

use crate::{Base, Error, Sandboxes, upper};
use overlay::{Attributes, Overlay};

/// A change before the first start. Paths in the sandbox are absolute; symbolic links on the
/// way are followed as in the sandbox, directories on the way are made if they are missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Patch {
    /// Removes whatever is there, with everything below it.
    Remove(Vec<u8>),
    /// Makes a directory, if there is none.
    Directory(Vec<u8>),
    /// Unpacks an uncompressed archive at the root: owners, times and extended attributes
    /// included.
    Archive(PathBuf),
    /// Writes a copy of a file of the host's, owned by root, with its permissions.
    File {
        /// On the host.
        from: PathBuf,
        /// In the sandbox; a directory, or a path that ends with a slash, gets the file
        /// under its own name.
        to: Vec<u8>,
    },
    /// Makes a symbolic link.
    Symlink {
        /// What it says.
        target: Vec<u8>,
        /// Where it is.
        path: Vec<u8>,
    },
}

impl Patch {
    /// Bytes that it may need on a disk, but for its names.
    pub(crate) fn size(&self) -> Result<u64, Error> {
        let (Self::Archive(path) | Self::File { from: path, .. }) = self else {
            return Ok(0);
        };
        let metadata = path.metadata().map_err(|error| self.failed(error))?;
        Ok(metadata.len())
    }

    fn failed(&self, problem: impl ToString) -> Error {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let what = match self {
            Self::Remove(path) => format!("removing {}", text(path)),
            Self::Directory(path) => format!("making the directory {}", text(path)),
            Self::Archive(path) => format!("unpacking {}", path.display()),
            Self::File { from, to } => format!("copying {} to {}", from.display(), text(to)),
            Self::Symlink { path, .. } => format!("making the link {}", text(path)),
        };
        Error::Patch {
            what,
            problem: problem.to_string(),
        }
    }
}

impl Sandboxes {
    /// Changes the files of a sandbox that has a disk and does not run.
    ///
    /// # Errors
    /// [`Error::NotKept`], [`Error::InPlace`], [`Error::Running`], [`Error::Patch`],
    /// [`Error::Disk`]. What came
    /// before a patch that fails may be done or not.
    pub fn patch(&self, store: &Store, name_or_id: &str, patches: &[Patch]) -> Result<(), Error> {
        let (found, _lock) = self.hold(name_or_id)?;
        found.record.disk_size()?;
        let base = Base::of(store, &found.record)?;
        apply(&upper::disk(&found.path), &base, patches)
    }
}

/// Applies patches in their order to the upper layer on `disk`, over `base`.
pub(crate) fn apply(disk: &Path, base: &Base, patches: &[Patch]) -> Result<(), Error> {
    change(disk, base, |overlay| {
        for patch in patches {
            one(overlay, patch).map_err(|problem| patch.failed(problem))?;
        }
        Ok(())
    })
}

/// Unpacks an archive below the directory `root` in the upper layer on `disk`, over `base`.
pub(crate) fn unpack(
    disk: &Path,
    base: &Base,
    root: &[u8],
    archive: &mut dyn io::Read,
) -> Result<(), Error> {
    change(disk, base, |overlay| {
        archive::unpack(overlay, root, archive).map_err(|problem| Error::Patch {
            what: format!("unpacking to {}", String::from_utf8_lossy(root)),
            problem: problem.to_string(),
        })
    })
}

fn change(
    disk: &Path,
    base: &Base,
    change: impl FnOnce(&mut Overlay<File>) -> Result<(), Error>,
) -> Result<(), Error> {
    let failed = |problem: overlay::Problem| Error::Disk {
        what: "patching",
        path: disk.to_owned(),
        problem: problem.to_string(),
    };
    let file = File::options().read(true).write(true).open(disk);
    let file = file.map_err(|error| failed(error.into()))?;
    let mut overlay = Overlay::open(file, base.lower()?).map_err(failed)?;
    change(&mut overlay)?;
    overlay.close().map_err(failed)
}

fn one(overlay: &mut Overlay<File>, patch: &Patch) -> Result<(), overlay::Problem> {
    match patch {
        Patch::Remove(path) => overlay.remove(path),
        Patch::Directory(path) => overlay.directory(path).map(drop),
        Patch::Archive(path) => archive::unpack(overlay, b"/", File::open(path)?),
        Patch::Symlink { target, path } => {
            let attributes = Attributes::root(0o777);
            overlay.symlink(path, target, &attributes).map(drop)
        }
        Patch::File { from, to } => {
            let mut file = File::open(from)?;
            let metadata = file.metadata()?;
            if !metadata.is_file() {
                let problem = "it is no file; an archive can hold directories";
                return Err(io::Error::other(problem).into());
            }
            let mut to = to.clone();
            if to.ends_with(b"/") || overlay.is_directory(&to)? {
                let name = from.file_name().map(std::os::unix::ffi::OsStrExt::as_bytes);
                to.push(b'/');
                to.extend_from_slice(name.unwrap_or_default());
            }
            let mode = metadata.permissions().mode() & 0o7777;
            let attributes = Attributes::root(mode as u16);
            // To its end, wherever that is: some have more than they say.
            overlay.file(&to, &attributes, 0, &[(0, u64::MAX)], &mut file)
        }
    }
}
