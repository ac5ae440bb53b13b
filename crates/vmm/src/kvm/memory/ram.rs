//! Reserves RAM in large pages, where the host provides them.
//!
//! Every page that a guest touches for the first time is an exit, and one of 2 MiB replaces 512.
//! Not all hosts use large pages unless requested.

#![allow(unsafe_code)]

use std::io;

use vm_memory::mmap::{MmapRegion, MmapRegionError};

/// Bytes of a large page. It must begin at a multiple of this in the guest and in the host.
const LARGE: usize = 2 << 20;

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
        const FLAGS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        const PROTECTION: i32 = libc::PROT_READ | libc::PROT_WRITE;

        let size = usize::try_from(size).unwrap_or(usize::MAX);
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
        let start = base.wrapping_byte_add(room.start.next_multiple_of(LARGE) - room.start);
        // SAFETY: the start is less than a large page into the mapping, which is one large page
        // longer. A kernel without large pages returns an error, and uses small ones.
        unsafe { libc::madvise(start, pages, libc::MADV_HUGEPAGE) };
        // SAFETY: as above, and it stays until the room is dropped.
        let region = unsafe { MmapRegion::build_raw(start.cast(), size, PROTECTION, FLAGS)? };
        Ok((room, region))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value, and is not used any more.
        unsafe { libc::munmap(self.start as *mut libc::c_void, self.size) };
    }
}
