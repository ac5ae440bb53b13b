//! The storage of a disk: files one after another, read and written in place.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use crate::kvm::virtio::chain::Buffers;

/// One file of a disk.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) file: File,
    /// Bytes of the file that belong to the disk, a multiple of 512.
    pub(crate) length: u64,
    /// The file's name, for messages.
    pub(crate) name: String,
}

/// A disk's bytes.
#[derive(Debug)]
pub(crate) struct Storage {
    /// Each with the offset of its first byte, ascending.
    pieces: Vec<(u64, Piece)>,
    length: u64,
    read_only: bool,
}

impl Storage {
    pub(crate) fn new(pieces: Vec<Piece>, read_only: bool) -> Self {
        let mut length = 0_u64;
        let pieces = pieces
            .into_iter()
            .map(|piece| {
                let start = length;
                length = length.saturating_add(piece.length);
                (start, piece)
            })
            .collect();
        Self {
            pieces,
            length,
            read_only,
        }
    }

    /// Returns the disk's length in bytes.
    pub(super) fn len(&self) -> u64 {
        self.length
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Returns whether `length` bytes at `offset` are all on the disk.
    pub(super) fn contains(&self, offset: u64, length: u64) -> bool {
        offset
            .checked_add(length)
            .is_some_and(|end| end <= self.length)
    }

    /// Fills `buffers` from `offset` on.
    pub(super) fn read(&self, offset: u64, buffers: Buffers<'_>) -> io::Result<()> {
        self.each(offset, buffers, |piece, at, part| {
            let read = part.read_at(&piece.file, at)?;
            if read < part.len() {
                return Err(io::Error::other(format!(
                    "{} was truncated while the machine ran",
                    piece.name
                )));
            }
            Ok(())
        })
    }

    /// Writes `buffers` from `offset` on.
    pub(super) fn write(&self, offset: u64, buffers: Buffers<'_>) -> io::Result<()> {
        self.each(offset, buffers, |piece, at, part| {
            part.write_at(&piece.file, at)
        })
    }

    /// Flushes writes; returns when they are on the host's disk.
    pub(super) fn flush(&self) -> io::Result<()> {
        if self.read_only {
            return Ok(());
        }
        self.pieces
            .iter()
            .try_for_each(|(_, piece)| piece.file.sync_data())
    }

    /// Makes `length` bytes at `offset` read as zeroes and frees their space.
    pub(super) fn erase(&self, offset: u64, length: u64) -> io::Result<()> {
        const MODE: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        for (start, piece) in &self.pieces {
            let from = offset.max(*start);
            let end = offset
                .saturating_add(length)
                .min(start.saturating_add(piece.length));
            let number = |value: u64| libc::off_t::try_from(value).map_err(io::Error::other);
            if from < end {
                let (at, count) = (number(from - start)?, number(end - from)?);
                // SAFETY: takes a descriptor and integers.
                if unsafe { libc::fallocate(piece.file.as_raw_fd(), MODE, at, count) } != 0 {
                    return Err(io::Error::last_os_error());
                }
            }
        }
        Ok(())
    }

    /// Calls `transfer` for each file's part of `buffers`.
    fn each(
        &self,
        offset: u64,
        mut buffers: Buffers<'_>,
        mut transfer: impl FnMut(&Piece, u64, &Buffers<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut offset = offset;
        let first = self.pieces.partition_point(|(start, _)| *start <= offset);
        let pieces = self.pieces.iter().skip(first.saturating_sub(1));
        for (start, piece) in pieces {
            if buffers.len() == 0 {
                break;
            }
            let at = offset.saturating_sub(*start);
            let left = piece.length.saturating_sub(at);
            let part = buffers.take(usize::try_from(left).unwrap_or(usize::MAX));
            transfer(piece, at, &part)?;
            offset = offset.saturating_add(part.len() as u64);
        }
        Ok(())
    }
}
