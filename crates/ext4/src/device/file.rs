//! Implements a device on a file or block device.

use std::fs::File;
use std::io::{IoSlice, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::vec::Vec;

use super::{BlockDevice, DeviceError};

/// Maximum number of buffers in one request; Linux accepts no more.
const MAX_BUFFERS: usize = 1024;

/// A sparse file or a block device. The file must have its final length beforehand. Without write
/// permission, writes fail; wrap the file in [`super::ReadOnly`] so that this is known early.
impl BlockDevice for File {
    /// Moves the file's cursor. Works for block devices, whose metadata has no length.
    fn size(&self) -> Result<u64, DeviceError> {
        let mut file = self;
        Ok(file.seek(SeekFrom::End(0))?)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        Ok(FileExt::read_exact_at(self, buf, offset)?)
    }

    fn write_at(&mut self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        Ok(FileExt::write_all_at(self, buf, offset)?)
    }

    fn write_vectored_at(&mut self, mut offset: u64, bufs: &[&[u8]]) -> Result<(), DeviceError> {
        for group in bufs.chunks(MAX_BUFFERS) {
            let total: usize = group.iter().map(|buf| buf.len()).sum();
            let slices: Vec<IoSlice<'_>> = group.iter().map(|buf| IoSlice::new(buf)).collect();
            let mut done =
                rustix::io::pwritev(&*self, &slices, offset).map_err(std::io::Error::from)?;
            if done < total {
                // Short writes are rare, so the rest goes buffer by buffer.
                let mut at = offset;
                for buf in group {
                    let skip = done.min(buf.len());
                    done -= skip;
                    let rest = buf.get(skip..).unwrap_or_default();
                    FileExt::write_all_at(self, rest, at + skip as u64)?;
                    at += buf.len() as u64;
                }
            }
            offset += total as u64;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        Ok(self.sync_data()?)
    }

    fn is_hole(&self, offset: u64, length: u64) -> bool {
        match rustix::fs::seek(self, rustix::fs::SeekFrom::Data(offset)) {
            Ok(data) => data >= offset.saturating_add(length),
            Err(error) => error == rustix::io::Errno::NXIO,
        }
    }
}
