//! `--cidfile`: a file with a new sandbox's ID.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use micabox_program::failure::Failure;

/// A file that is there for the ID, and is removed if there is none in the end.
#[derive(Debug)]
pub struct IdFile {
    path: PathBuf,
    file: File,
    is_written: bool,
}

impl IdFile {
    /// Makes the file of `--cidfile`, which must not exist. As with Docker, '' is no file.
    pub fn wanted(path: Option<&OsStr>) -> Result<Option<Self>, Failure> {
        let path = path.filter(|path| !path.is_empty());
        path.map(|path| Self::reserve(path.as_ref())).transpose()
    }

    fn reserve(path: &Path) -> Result<Self, Failure> {
        let file = File::create_new(path).map_err(|error| {
            Failure::of(&error).context(&format!("--cidfile {}", path.display()))
        })?;
        Ok(Self {
            path: path.to_owned(),
            file,
            is_written: false,
        })
    }

    /// Writes the ID, without a newline as Docker does.
    pub fn write(mut self, id: &str) -> Result<(), Failure> {
        self.file.write_all(id.as_bytes()).map_err(|error| {
            Failure::of(&error).context(&format!("writing the ID to {}", self.path.display()))
        })?;
        self.is_written = true;
        Ok(())
    }
}

impl Drop for IdFile {
    fn drop(&mut self) {
        if !self.is_written {
            let _ = fs::remove_file(&self.path);
        }
    }
}
