//! Copies a part of a disk into a sparse file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::{Disk, Error, ReadAt, Result};

/// Bytes that are copied at a time.
const PIECE: u64 = 1 << 20;

/// Bytes that any file may have as its contents, and how many times its length.
const ALWAYS: u64 = 1 << 30;
const TIMES: u64 = 200;

/// Where a copy goes.
pub trait WriteAt {
    /// Writes bytes at an offset.
    ///
    /// # Errors
    /// The system's.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Sets the length; what was not written is zeros.
    ///
    /// # Errors
    /// The system's.
    fn set_length(&mut self, length: u64) -> io::Result<()>;
}

impl WriteAt for File {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn set_length(&mut self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }
}

/// Copies `length` bytes from an offset on into an empty file. Zeros become holes.
///
/// # Errors
/// [`Error`]; [`Error::Bomb`] if it is out of proportion to the file.
pub fn copy<S: ReadAt>(
    disk: &mut Disk<S>,
    start: u64,
    length: u64,
    to: &mut impl WriteAt,
) -> Result<()> {
    let most = disk.file_length()?.saturating_mul(TIMES).max(ALWAYS);
    let end = start.checked_add(length);
    let end = end.ok_or(Error::Damaged("an offset is too large"))?;
    to.set_length(length).map_err(Error::Write)?;
    let mut buffer = vec![0; PIECE as usize];
    // Also of zeros that have to be unpacked, which takes time.
    let (mut at, mut taken) = (start, 0);
    while at < end {
        let next = disk.next_data(at)?;
        if next > at {
            at = next;
            continue;
        }
        let count = PIECE - at % PIECE;
        let count = count.min(end - at);
        let piece = buffer.get_mut(..count as usize).unwrap_or_default();
        if disk.read(at, piece)? {
            taken += count;
            if taken > most {
                return Err(Error::Bomb(most));
            }
            if piece.iter().any(|byte| *byte != 0) {
                to.write_at(at - start, piece).map_err(Error::Write)?;
            }
        }
        at += count;
    }
    Ok(())
}
