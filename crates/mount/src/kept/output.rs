//! The file that a filesystem is saved to.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use tempfile::{Builder, NamedTempFile};

use super::KeepError;

/// A file that is not there before it is complete. It is made before anything else, so that a place that can't be
/// written to is noticed while nothing is lost.
#[derive(Debug)]
pub struct Output {
    part: NamedTempFile,
    path: PathBuf,
}

impl Output {
    /// Makes the file beside `path`, or beside what that links to. A file that is there has to be a regular one.
    ///
    /// # Errors
    /// [`KeepError::Output`].
    pub fn create(path: &Path) -> Result<Self, KeepError> {
        let found = match fs::metadata(path) {
            Ok(found) if found.is_file() => Some(found),
            Ok(_) => {
                let what = "it is there, and no regular file";
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, what).into());
            }
            Err(_) => None,
        };
        let path = match &found {
            Some(_) => fs::canonicalize(path)?,
            None => path.to_owned(),
        };
        let directory = match path.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        let mode = if found.is_some() { 0o600 } else { 0o666 };
        let part = Builder::new()
            .prefix(".mica-")
            .suffix(".part")
            .permissions(Permissions::from_mode(mode))
            .tempfile_in(directory)?;
        if let Some(found) = found {
            let owner = (Some(found.uid()), Some(found.gid()));
            // Only root may give a file away.
            let _ = fchown(part.as_file(), owner.0, owner.1);
            part.as_file().set_permissions(found.permissions())?;
        }
        Ok(Self { part, path })
    }

    /// Returns whether it is to be an EROFS image: its name ends in `.erofs`.
    pub(super) fn is_image(&self) -> bool {
        let extension = self.path.extension();
        extension.is_some_and(|extension| extension == "erofs")
    }

    pub(super) fn file(&self) -> &File {
        self.part.as_file()
    }

    /// Replaces what is there.
    pub(super) fn publish(self) -> io::Result<()> {
        self.part.as_file().sync_all()?;
        self.part.persist(&self.path).map_err(|error| error.error)?;
        Ok(())
    }
}
