//! Patches: changes to a sandbox's root before it boots.
//!
//! They are written into an ext4 filesystem as overlayfs itself would write them. On a disk for
//! changes they are its first changes. A sandbox whose changes are in memory has no disk yet; its
//! patches become a layer of their own above the image's, on a read-only disk.
//!
//! A worker in the jail applies them, since it reads archives, disks and images.

use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use micabox_error::{Error, Source};
use micabox_overlay::patch::Patch as SharedPatch;
use micabox_parsers::{CallError, PatchFault, Patches};

use crate::Base;

/// A change before a start. Paths in the sandbox are absolute; symbolic links on the way are
/// followed as in the sandbox; missing directories on the way are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Patch {
    /// Removes what is at the path, with everything below it.
    Remove(Vec<u8>),
    /// Makes a directory, if it is missing.
    Directory(Vec<u8>),
    /// Unpacks an uncompressed archive at the root: owners, times and extended attributes
    /// included.
    Archive(PathBuf),
    /// Copies a file from the host, owned by root, with its permissions.
    File {
        /// The path on the host.
        from: PathBuf,
        /// The path in the sandbox; a directory, or a path that ends with a slash, gets the file
        /// under its own name.
        to: Vec<u8>,
    },
    /// Makes a symbolic link.
    Symlink {
        /// The link's target.
        target: Vec<u8>,
        /// The link's path.
        path: Vec<u8>,
    },
}

impl Patch {
    /// Returns the bytes of contents that it may need on a disk.
    pub fn size(&self) -> Result<u64, Error> {
        let (Self::Archive(path) | Self::File { from: path, .. }) = self else {
            return Ok(0);
        };
        let metadata = path.metadata().map_err(|error| self.failed(error))?;
        Ok(metadata.len())
    }

    fn failed(&self, source: impl Into<Source>) -> Error {
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
            source: source.into(),
        }
    }
}

/// Applies patches in their order to the upper layer on `disk`, over `base`.
pub fn apply(disk: &Path, base: &Base, patches: &[Patch]) -> Result<(), Error> {
    let mut files = Vec::new();
    let mut shared = Vec::new();
    for patch in patches {
        let one = share(patch, &mut files).map_err(|error| patch.failed(error))?;
        shared.push(one);
    }
    change(disk, base, shared, files, |which, problem| {
        let patch = usize::try_from(which).ok();
        let patch = patch.and_then(|index| patches.get(index));
        patch.map(|patch| patch.failed(problem))
    })
}

/// Unpacks an archive below the directory `root` in the upper layer on `disk`, over `base`.
pub fn unpack(disk: &Path, base: &Base, root: &[u8], archive: File) -> Result<(), Error> {
    let shared = vec![SharedPatch::Archive(root.to_vec())];
    change(disk, base, shared, vec![archive], |_, problem| {
        Some(Error::Patch {
            what: format!("unpacking to {}", String::from_utf8_lossy(root)),
            source: problem.into(),
        })
    })
}

/// Makes a worker apply patches. `failed` makes the error for one of them.
fn change(
    disk: &Path,
    base: &Base,
    patches: Vec<SharedPatch>,
    mut files: Vec<File>,
    failed: impl FnOnce(u32, String) -> Option<Error>,
) -> Result<(), Error> {
    let unusable = |source: Source| Error::Disk {
        what: "patching",
        path: disk.to_owned(),
        source,
    };
    let io = |error: io::Error| unusable(error.into());
    let file = File::options().read(true).write(true).open(disk);
    let file = file.map_err(io)?;
    let size = file.metadata().map_err(io)?.len();
    let (lower, below) = base.lower_files()?;
    files.extend(below);
    let job = Patches { lower, patches };
    match micabox_parsers::call(&job, file, files, size) {
        Ok(()) => Ok(()),
        Err(CallError::Refused(PatchFault { which, problem })) => {
            let error = which.and_then(|which| failed(which, problem.clone()));
            Err(error.unwrap_or_else(|| unusable(problem.into())))
        }
        Err(error) => Err(unusable(error.into())),
    }
}

/// Converts a patch for a worker, and opens its file.
fn share(patch: &Patch, files: &mut Vec<File>) -> io::Result<SharedPatch> {
    Ok(match patch {
        Patch::Remove(path) => SharedPatch::Remove(path.clone()),
        Patch::Directory(path) => SharedPatch::Directory(path.clone()),
        Patch::Archive(path) => {
            files.push(File::open(path)?);
            SharedPatch::Archive(b"/".to_vec())
        }
        Patch::Symlink { target, path } => SharedPatch::Symlink {
            target: target.clone(),
            path: path.clone(),
        },
        Patch::File { from, to } => {
            let file = File::open(from)?;
            let metadata = file.metadata()?;
            if !metadata.is_file() {
                let problem = "not a regular file; for directories, use an archive";
                return Err(io::Error::other(problem));
            }
            files.push(file);
            let name = from.file_name().map(OsStrExt::as_bytes);
            SharedPatch::File {
                name: name.unwrap_or_default().to_vec(),
                mode: (metadata.permissions().mode() & 0o7777) as u16,
                to: to.clone(),
            }
        }
    })
}
