//! Reads numbers and pieces of a file that may be shorter than it says.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::{Error, Result};

/// A file, or what stands for one.
pub trait ReadAt {
    /// Fills a buffer from an offset on.
    ///
    /// # Errors
    /// The system's; [`io::ErrorKind::UnexpectedEof`] behind the end.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Returns the length in bytes.
    ///
    /// # Errors
    /// The system's.
    fn length(&self) -> io::Result<u64>;
}

impl ReadAt for File {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(buffer, offset)
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }
}

impl ReadAt for &[u8] {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = start.saturating_add(buffer.len());
        let piece = self.get(start..end);
        buffer.copy_from_slice(piece.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }
}

/// Reads a piece of a file that has to be there.
pub(crate) fn read<S: ReadAt>(source: &S, offset: u64, buffer: &mut [u8]) -> Result<()> {
    source.read_at(offset, buffer).map_err(|error| match error {
        error if error.kind() == io::ErrorKind::UnexpectedEof => {
            Error::Damaged("it ends before what it refers to")
        }
        error => Error::Read(error),
    })
}

/// The bytes of a header, by their offsets. What is behind its end is zero.
#[derive(Debug)]
pub(crate) struct Header(pub(crate) Vec<u8>);

impl Header {
    fn at<const N: usize>(&self, offset: usize) -> [u8; N] {
        let rest = self.0.get(offset..).unwrap_or_default();
        rest.first_chunk().copied().unwrap_or([0; N])
    }

    pub(crate) fn be32(&self, offset: usize) -> u32 {
        u32::from_be_bytes(self.at(offset))
    }

    pub(crate) fn be64(&self, offset: usize) -> u64 {
        u64::from_be_bytes(self.at(offset))
    }

    pub(crate) fn byte(&self, offset: usize) -> u8 {
        u8::from_le_bytes(self.at(offset))
    }

    pub(crate) fn le16(&self, offset: usize) -> u16 {
        u16::from_le_bytes(self.at(offset))
    }

    pub(crate) fn le32(&self, offset: usize) -> u32 {
        u32::from_le_bytes(self.at(offset))
    }

    pub(crate) fn le64(&self, offset: usize) -> u64 {
        u64::from_le_bytes(self.at(offset))
    }

    pub(crate) fn starts_with(&self, offset: usize, bytes: &[u8]) -> bool {
        let rest = self.0.get(offset..).unwrap_or_default();
        rest.starts_with(bytes)
    }
}
