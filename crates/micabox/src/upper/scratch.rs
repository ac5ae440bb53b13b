//! A disk that may be written to without being changed.

use std::collections::HashMap;
use std::fs::File;

use micabox_ext4::{BlockDevice, DeviceError};

/// Bytes that are kept together.
const PAGE: u64 = 4096;

/// A file, and in memory what has been written since: replaying a journal takes no more
/// than the journal's blocks.
#[derive(Debug)]
pub(crate) struct Scratch {
    file: File,
    pages: HashMap<u64, Box<[u8; PAGE as usize]>>,
}

impl Scratch {
    pub(crate) fn new(file: File) -> Self {
        Self {
            file,
            pages: HashMap::new(),
        }
    }

    fn check(&self, offset: u64, length: usize) -> Result<(), DeviceError> {
        let size = self.size()?;
        let length = length as u64;
        match offset.checked_add(length).filter(|end| *end <= size) {
            Some(_) => Ok(()),
            None => Err(DeviceError::OutOfRange {
                offset,
                length,
                size,
            }),
        }
    }

    /// A page as it is in the file; what the file has no bytes for is zeros.
    fn page_of_file(&self, page: u64) -> Result<Box<[u8; PAGE as usize]>, DeviceError> {
        let mut bytes = Box::new([0; PAGE as usize]);
        let start = page * PAGE;
        let length = self.size()?.saturating_sub(start).min(PAGE);
        let part = bytes.get_mut(..length as usize).unwrap_or_default();
        self.file.read_at(start, part)?;
        Ok(bytes)
    }
}

/// The parts of `length` bytes at `offset`: page, offset in the page, offset in the range,
/// length.
fn parts(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let within = (at % PAGE) as usize;
        let count = (PAGE as usize - within).min(length - done);
        let part = (at / PAGE, within, done, count);
        done += count;
        (count > 0).then_some(part)
    })
}

impl BlockDevice for Scratch {
    fn size(&self) -> Result<u64, DeviceError> {
        self.file.size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.check(offset, buf.len())?;
        self.file.read_at(offset, buf)?;
        if self.pages.is_empty() {
            return Ok(());
        }
        for (page, within, done, count) in parts(offset, buf.len()) {
            let Some(bytes) = self.pages.get(&page) else {
                continue;
            };
            let from = bytes.get(within..within + count).unwrap_or_default();
            if let Some(to) = buf.get_mut(done..done + count) {
                to.copy_from_slice(from);
            }
        }
        Ok(())
    }

    fn write_at(&mut self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        self.check(offset, buf.len())?;
        for (page, within, done, count) in parts(offset, buf.len()) {
            if !self.pages.contains_key(&page) {
                let bytes = self.page_of_file(page)?;
                self.pages.insert(page, bytes);
            }
            let to = self.pages.get_mut(&page);
            let to = to.and_then(|bytes| bytes.get_mut(within..within + count));
            if let (Some(to), Some(from)) = (to, buf.get(done..done + count)) {
                to.copy_from_slice(from);
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, Write};

    use super::*;

    #[test]
    fn what_is_written_is_read_and_the_file_stays() {
        let mut file = tempfile::tempfile().unwrap();
        let contents: Vec<u8> = (0..10_000_u32).map(|byte| byte as u8).collect();
        file.write_all(&contents).unwrap();
        let mut expected = contents.clone();
        let mut disk = Scratch::new(file.try_clone().unwrap());
        for (offset, length) in [(4000, 5000), (0, 1), (9_999, 1), (4096, 4096), (9000, 0)] {
            let bytes = vec![offset as u8 ^ 0x5a; length];
            disk.write_at(offset as u64, &bytes).unwrap();
            expected[offset..offset + length].copy_from_slice(&bytes);
            let mut all = vec![0; 10_000];
            disk.read_at(0, &mut all).unwrap();
            assert_eq!(all, expected);
            let mut some = vec![0; 3000];
            disk.read_at(3500, &mut some).unwrap();
            assert_eq!(some, expected[3500..6500]);
        }
        disk.write_at(9_999, &[0, 0]).unwrap_err();
        disk.read_at(u64::MAX, &mut [0]).unwrap_err();
        let mut now = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut now).unwrap();
        assert_eq!(now, contents);
    }
}
