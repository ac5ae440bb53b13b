//! This project's engine.

use std::fs::{File, OpenOptions};
use std::time::Instant;

use micabox_ext4::mkfs::{self, Journal};
use micabox_ext4::{Ext4, Ino, Options, Owner, Rename};

use crate::{Filesystem, Result};

pub struct Ours(Ext4<File>);

pub fn open(path: &str) -> Result<Ours> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    Ok(Ours(Ext4::open(file, Options::default())?))
}

/// Makes a file with a filesystem; gives the seconds it took, the file's creation included.
pub fn mkfs(path: &str, size: u64) -> Result<f64> {
    let start = Instant::now();
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)?;
    file.set_len(size)?;
    let options = mkfs::Options {
        uuid: [7; 16],
        label: [0; 16],
        time: 1_700_000_000,
        inodes: None,
        journal: Journal::Default,
        reserved: 0,
    };
    mkfs::mkfs(&mut file, size, &options)?;
    Ok(start.elapsed().as_secs_f64())
}

impl Filesystem for Ours {
    type File = Ino;

    fn mkdir(&mut self, path: &str) -> Result<()> {
        let (parent, name) = self.0.resolve_parent(path.as_bytes())?;
        self.0.mkdir(parent, name, Owner::root(0o755))?;
        Ok(())
    }

    fn create(&mut self, path: &str) -> Result<()> {
        let file = self.open_new(path)?;
        self.0.write(file, 0, b"x")?;
        Ok(())
    }

    fn open_close(&mut self, path: &str) -> Result<()> {
        let file = self.0.resolve(path.as_bytes())?;
        self.0.stat(file)?;
        Ok(())
    }

    fn stat(&mut self, path: &str) -> Result<u64> {
        let file = self.0.resolve(path.as_bytes())?;
        Ok(self.0.stat(file)?.size)
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<()> {
        let (parent, name) = self.0.resolve_parent(from.as_bytes())?;
        let (new_parent, new_name) = self.0.resolve_parent(to.as_bytes())?;
        self.0
            .rename(parent, name, new_parent, new_name, Rename::Replace)?;
        Ok(())
    }

    fn unlink(&mut self, path: &str) -> Result<()> {
        let (parent, name) = self.0.resolve_parent(path.as_bytes())?;
        Ok(self.0.unlink(parent, name)?)
    }

    fn open_new(&mut self, path: &str) -> Result<Ino> {
        let (parent, name) = self.0.resolve_parent(path.as_bytes())?;
        Ok(self.0.create(parent, name, Owner::root(0o644))?)
    }

    fn write(&mut self, file: &mut Ino, offset: u64, bytes: &[u8]) -> Result<()> {
        assert_eq!(self.0.write(*file, offset, bytes)?, bytes.len());
        Ok(())
    }

    fn read(&mut self, file: &mut Ino, offset: u64, bytes: &mut [u8]) -> Result<usize> {
        Ok(self.0.read(*file, offset, bytes)?)
    }

    fn sync(&mut self) -> Result<()> {
        Ok(self.0.sync()?)
    }
}
