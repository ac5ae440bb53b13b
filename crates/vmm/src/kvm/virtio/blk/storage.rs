//! The storage of a disk: files one after another, read and written in place.

#![allow(unsafe_code)]

use std::io;

use crate::MachineFile;
use crate::kvm::parts::{Line, PartReader};
use crate::kvm::virtio::chain::Buffers;

/// Bytes of a sector. What is behind a file's last whole sector is not on the disk.
const SECTOR: u64 = 512;

/// One file of a disk.
#[derive(Debug)]
struct Piece {
    /// The disk's offset of the file's first byte.
    start: u64,
    /// Bytes of the file that belong to the disk, a multiple of 512.
    length: u64,
    file: MachineFile,
    /// What asks for its bytes, if only a part of it is here.
    part: Option<PartReader>,
}

/// A disk's bytes.
#[derive(Debug)]
pub(crate) struct Storage {
    /// In the order of their offsets.
    pieces: Vec<Piece>,
    length: u64,
    read_only: bool,
}

impl Storage {
    pub(crate) fn new(files: Vec<MachineFile>, read_only: bool) -> Self {
        let mut length = 0_u64;
        let pieces = files
            .into_iter()
            .map(|file| {
                let piece = Piece {
                    start: length,
                    length: file.length() / SECTOR * SECTOR,
                    file,
                    part: None,
                };
                length = length.saturating_add(piece.length);
                piece
            })
            .collect();
        Self {
            pieces,
            length,
            read_only,
        }
    }

    /// Has the servers of files asked of which only a part is here.
    pub(crate) fn with_parts(mut self, line: &Line) -> Self {
        for piece in &mut self.pieces {
            let part = piece.file.part();
            piece.part = part.map(|part| PartReader::new(line, part));
        }
        self
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
            let read = match &piece.part {
                None => part.read_at(piece.file.file(), at)?,
                Some(served) => {
                    let bytes = at..at.saturating_add(part.len() as u64);
                    part.read_at(&*served.file_with(&bytes)?, at)?
                }
            };
            if read < part.len() {
                return Err(io::Error::other(format!(
                    "{} was truncated while the machine ran",
                    piece.file.path().display()
                )));
            }
            Ok(())
        })
    }

    /// Writes `buffers` from `offset` on.
    pub(super) fn write(&self, offset: u64, buffers: Buffers<'_>) -> io::Result<()> {
        self.each(offset, buffers, |piece, at, part| {
            part.write_at(piece.file.file(), at)
        })
    }

    /// Flushes writes; returns when they are on the host's disk.
    pub(super) fn flush(&self) -> io::Result<()> {
        if self.read_only {
            return Ok(());
        }
        self.pieces
            .iter()
            .try_for_each(|piece| piece.file.file().sync_data())
    }

    /// Makes `length` bytes at `offset` read as zeroes and frees their space.
    pub(super) fn erase(&self, offset: u64, length: u64) -> io::Result<()> {
        const MODE: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        for piece in &self.pieces {
            let start = piece.start;
            let from = offset.max(start);
            let end = offset
                .saturating_add(length)
                .min(start.saturating_add(piece.length));
            let number = |value: u64| libc::off_t::try_from(value).map_err(io::Error::other);
            if from < end {
                let (at, count) = (number(from - start)?, number(end - from)?);
                // SAFETY: takes a descriptor and integers.
                if unsafe { libc::fallocate(piece.file.number(), MODE, at, count) } != 0 {
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
        let first = self.pieces.partition_point(|piece| piece.start <= offset);
        let pieces = self.pieces.iter().skip(first.saturating_sub(1));
        for piece in pieces {
            if buffers.len() == 0 {
                break;
            }
            let at = offset.saturating_sub(piece.start);
            let left = piece.length.saturating_sub(at);
            let part = buffers.take(usize::try_from(left).unwrap_or(usize::MAX));
            transfer(piece, at, &part)?;
            offset = offset.saturating_add(part.len() as u64);
        }
        Ok(())
    }
}
