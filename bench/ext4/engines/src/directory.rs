//! Whatever is mounted at a directory, through system calls.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};

use crate::{Filesystem, Result};

pub struct Directory {
    root: String,
    handle: File,
}

pub fn open(path: &str) -> Result<Directory> {
    Ok(Directory {
        root: path.to_owned(),
        handle: File::open(path)?,
    })
}

impl Directory {
    fn path(&self, path: &str) -> String {
        format!("{}{path}", self.root)
    }
}

impl Filesystem for Directory {
    type File = File;

    fn mkdir(&mut self, path: &str) -> Result<()> {
        Ok(fs::create_dir(self.path(path))?)
    }

    fn create(&mut self, path: &str) -> Result<()> {
        let file = self.open_new(path)?;
        Ok(file.write_all_at(b"x", 0)?)
    }

    fn open_close(&mut self, path: &str) -> Result<()> {
        File::open(self.path(path))?;
        Ok(())
    }

    fn stat(&mut self, path: &str) -> Result<u64> {
        Ok(fs::symlink_metadata(self.path(path))?.size())
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<()> {
        Ok(fs::rename(self.path(from), self.path(to))?)
    }

    fn unlink(&mut self, path: &str) -> Result<()> {
        Ok(fs::remove_file(self.path(path))?)
    }

    fn open_new(&mut self, path: &str) -> Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        Ok(options.open(self.path(path))?)
    }

    fn write(&mut self, file: &mut File, offset: u64, bytes: &[u8]) -> Result<()> {
        Ok(file.write_all_at(bytes, offset)?)
    }

    fn read(&mut self, file: &mut File, offset: u64, bytes: &mut [u8]) -> Result<usize> {
        Ok(file.read_at(bytes, offset)?)
    }

    fn sync(&mut self) -> Result<()> {
        Ok(rustix::fs::syncfs(&self.handle)?)
    }
}
