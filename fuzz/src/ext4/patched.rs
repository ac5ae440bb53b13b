//! A filesystem's image that is never copied: what is replaced and written is kept beside it.

use std::collections::BTreeMap;

use micabox_ext4::{BlockDevice, DeviceError};

use super::BLOCK;

/// An offset and the bytes that replace those there.
pub(super) type Patch<'i> = (usize, &'i [u8]);
pub(super) const NONE: Patch<'static> = (0, &[]);

/// A sound image with some bytes replaced, and blocks written since.
#[derive(Clone)]
pub(super) struct Disk<'i> {
    image: &'i [u8],
    patches: [Patch<'i>; 3],
    blocks: BTreeMap<usize, Box<[u8]>>,
}

impl<'i> Disk<'i> {
    pub(super) fn new(image: &'i [u8], patches: [Patch<'i>; 3]) -> Self {
        Self {
            image,
            patches,
            blocks: BTreeMap::new(),
        }
    }

    fn fits(&self, offset: u64, length: usize) -> std::result::Result<(), DeviceError> {
        let size = self.image.len() as u64;
        match offset.checked_add(length as u64) {
            Some(end) if end <= size => Ok(()),
            _ => Err(DeviceError::OutOfRange {
                offset,
                length: length as u64,
                size,
            }),
        }
    }
}

/// Copies the part of `bytes`, located at `at`, that overlaps `into`, located at `start`.
fn overlay(into: &mut [u8], start: usize, at: usize, bytes: &[u8]) {
    let from = start.max(at);
    let to = (start + into.len()).min(at + bytes.len());
    if from < to {
        into[from - start..to - start].copy_from_slice(&bytes[from - at..to - at]);
    }
}

impl BlockDevice for Disk<'_> {
    fn size(&self) -> std::result::Result<u64, DeviceError> {
        Ok(self.image.len() as u64)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::result::Result<(), DeviceError> {
        self.fits(offset, buf.len())?;
        let start = offset as usize;
        let end = start + buf.len();
        buf.copy_from_slice(&self.image[start..end]);
        for (at, bytes) in self.patches {
            overlay(buf, start, at, bytes);
        }
        for (number, block) in self.blocks.range(start / BLOCK..end.div_ceil(BLOCK)) {
            overlay(buf, start, number * BLOCK, block);
        }
        Ok(())
    }

    fn write_at(&mut self, offset: u64, buf: &[u8]) -> std::result::Result<(), DeviceError> {
        self.fits(offset, buf.len())?;
        let start = offset as usize;
        for number in start / BLOCK..(start + buf.len()).div_ceil(BLOCK) {
            let at = number * BLOCK;
            if !self.blocks.contains_key(&number) {
                let mut block = vec![0; BLOCK];
                self.read_at(at as u64, &mut block)?;
                self.blocks.insert(number, block.into());
            }
            if let Some(block) = self.blocks.get_mut(&number) {
                overlay(block, at, start, buf);
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> std::result::Result<(), DeviceError> {
        Ok(())
    }
}
