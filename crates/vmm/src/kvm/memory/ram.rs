//! RAM in large pages, where the host gives them.
//!
//! Every page that a guest touches for the first time is an exit, and one of 2 MiB is one
//! instead of 512. Hosts differ in whether they hand out large pages unasked.

#![allow(unsafe_code)]

use std::io;

use vm_memory::mmap::{MmapRegion, MmapRegionError};

/// A large page. Guest and host must agree on where one begins.
const LARGE: usize = 2 << 20;

/// Address space with some RAM in it; unmapped when dropped, before which nobody must use
/// that RAM any more.
#[derive(Debug)]
pub(super) struct Room {
    start: usize,
    size: usize,
}

impl Room {
    /// `size` bytes, zeroed and not yet there, and the room that they are in.
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
        // SAFETY: less than a large page into the mapping, which is as much longer. A kernel
        // without large pages says so, and has small ones.
        unsafe { libc::madvise(start, pages, libc::MADV_HUGEPAGE) };
        // SAFETY: as above, and it stays until the room is dropped.
        let region = unsafe { MmapRegion::build_raw(start.cast(), size, PROTECTION, FLAGS)? };
        Ok((room, region))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // SAFETY: a mapping of ours that nobody uses any more.
        unsafe { libc::munmap(self.start as *mut libc::c_void, self.size) };
    }
}
