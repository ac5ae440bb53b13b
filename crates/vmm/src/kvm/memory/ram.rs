//! Maps RAM so that it can be in large pages, where the host provides them.
//!
//! Every page that a guest touches for the first time is an exit, and one of 2 MiB replaces 512.
//! Not all hosts use large pages unless requested.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;

use vm_memory::FileOffset;
use vm_memory::mmap::{MmapRegion, MmapRegionBuilder, MmapRegionError};

use super::large::LARGE;

const PROTECTION: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Address space that contains RAM. It is unmapped when dropped; the RAM must not be used after
/// that.
#[derive(Debug)]
pub(super) struct Room {
    start: usize,
    size: usize,
}

impl Room {
    /// Reserves `size` bytes of RAM, zeroed and not yet allocated; returns also the room that
    /// contains it.
    pub(super) fn reserve(size: u64) -> Result<(Self, MmapRegion), MmapRegionError> {
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let (room, start, pages) = Self::new(size)?;
        // SAFETY: the pages lie within the room. A kernel without large pages returns an error, and
        // uses small ones.
        unsafe { libc::madvise(start, pages, libc::MADV_HUGEPAGE) };
        // SAFETY: as above, and it stays until the room is dropped.
        let region = unsafe { MmapRegion::build_raw(start.cast(), size, PROTECTION, FLAGS)? };
        Ok((room, region))
    }

    /// Maps `size` bytes of a file, which must have them: writes stay private. Returns also the room
    /// that contains the mapping.
    pub(super) fn of_file(
        size: u64,
        part: FileOffset,
    ) -> Result<(Self, MmapRegion), MmapRegionError> {
        const FLAGS: i32 = libc::MAP_PRIVATE | libc::MAP_NORESERVE;
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let (room, start, _) = Self::new(size)?;
        let (flags, file) = (FLAGS | libc::MAP_FIXED, part.file().as_raw_fd());
        let offset = part.start().cast_signed();
        // SAFETY: replaces a part of the room, which nothing uses yet.
        let mapped = unsafe { libc::mmap(start, size, PROTECTION, flags, file, offset) };
        if mapped == libc::MAP_FAILED {
            return Err(MmapRegionError::Mmap(io::Error::last_os_error()));
        }
        let builder = MmapRegionBuilder::new(size)
            .with_file_offset(part)
            .with_mmap_prot(PROTECTION)
            .with_mmap_flags(FLAGS);
        // SAFETY: it stays until the room is dropped.
        let region = unsafe { builder.with_raw_mmap_pointer(start.cast()) }.build()?;
        Ok((room, region))
    }

    /// Reserves address space for `size` bytes of RAM; returns also where they begin, and the bytes
    /// of the large pages that they are in.
    fn new(size: usize) -> Result<(Self, *mut libc::c_void, usize), MmapRegionError> {
        // The last page of the RAM is a large one too.
        let pages = size.saturating_add(LARGE - 1) / LARGE * LARGE;
        let all = pages.saturating_add(LARGE);
        // SAFETY: a new mapping, where the kernel chooses; nothing is overwritten.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), all, PROTECTION, FLAGS, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(MmapRegionError::Mmap(io::Error::last_os_error()));
        }
        let room = Self {
            start: base as usize,
            size: all,
        };
        // Less than a large page into the mapping, which is one large page longer.
        let start = base.wrapping_byte_add(room.start.next_multiple_of(LARGE) - room.start);
        Ok((room, start, pages))
    }
}

/// Flags of a mapping of zeroed memory.
const FLAGS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

impl Drop for Room {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value, and is not used any more.
        unsafe { libc::munmap(self.start as *mut libc::c_void, self.size) };
    }
}
