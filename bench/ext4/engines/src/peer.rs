//! rust-fs-ext4, called directly.

use std::path::Path;
use std::sync::Arc;

use fs_ext4::Filesystem as Ext4;
use fs_ext4::block_io::FileDevice;

use crate::{Filesystem, Result};

pub struct Peer(Ext4);

pub fn open(path: &str) -> Result<Peer> {
    let device = FileDevice::open_path_rw(Path::new(path))?;
    Ok(Peer(Ext4::mount(Arc::new(device))?))
}

impl Filesystem for Peer {
    type File = u32;

    fn mkdir(&mut self, path: &str) -> Result<()> {
        self.0.apply_mkdir(path, 0o755)?;
        Ok(())
    }

    fn create(&mut self, path: &str) -> Result<()> {
        let file = self.0.apply_create(path, 0o644)?;
        self.0.apply_pwrite_ino(file, 0, b"x")?;
        Ok(())
    }

    fn open_close(&mut self, path: &str) -> Result<()> {
        let file = self.0.lookup_path_bytes(path.as_bytes())?;
        self.0.stat_ino(file)?;
        Ok(())
    }

    fn stat(&mut self, path: &str) -> Result<u64> {
        let file = self.0.lookup_path_bytes(path.as_bytes())?;
        Ok(self.0.stat_ino(file)?.size)
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<()> {
        Ok(self.0.apply_rename(from, to, true)?)
    }

    fn unlink(&mut self, path: &str) -> Result<()> {
        Ok(self.0.apply_unlink(path)?)
    }

    fn open_new(&mut self, path: &str) -> Result<u32> {
        Ok(self.0.apply_create(path, 0o644)?)
    }

    fn write(&mut self, file: &mut u32, offset: u64, bytes: &[u8]) -> Result<()> {
        self.0.apply_pwrite_ino(*file, offset, bytes)?;
        Ok(())
    }

    fn read(&mut self, file: &mut u32, offset: u64, bytes: &mut [u8]) -> Result<usize> {
        Ok(self.0.read_ino(*file, offset, bytes)?)
    }

    fn sync(&mut self) -> Result<()> {
        Ok(self.0.flush()?)
    }
}
