//! Large pages of a snapshot's memory, which a restored machine reads and does not write to.
//!
//! A kernel's code is used on hundreds of small pages, and the first use of each is an exit, in which
//! the host maps the page and its neighbours. In a large page of the file they are one. The host's
//! kernel makes a large page of 512 small ones of the file when it is asked to, if the file's
//! filesystem can have them; it copies them once, and all machines share the result.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;

use vm_memory::{GuestMemoryRegion, GuestRegionMmap};

use super::copy::{PAGE, base_runs};
use super::page_map::{BATCH, is_present, is_private, look_up};

/// Bytes of a large page. It must begin at a multiple of this in the guest, in the host and in the
/// file.
pub(super) const LARGE: usize = 2 << 20;

/// Number of small pages of a large one.
pub(super) const PAGES: u64 = (LARGE / PAGE) as u64;

/// Asks for a large page now: `linux/mman.h`.
const MADV_COLLAPSE: libc::c_int = 25;

/// Number of pages that are mapped when a large page is worth its making. The guest used fewer: the
/// kernel maps up to 16 for one.
const LEAST: usize = 64;

/// Returns the first page of each large page of a region that the guest has read and not written
/// to, counted from the region's start. The file must have data for all of it. `pages` is the page
/// map of this process.
pub(super) fn read_only(region: &GuestRegionMmap, pages: &File) -> io::Result<Vec<u64>> {
    let mut found = Vec::new();
    for run in base_runs(region)? {
        let size = LARGE as u64;
        for start in (run.start.next_multiple_of(size)..run.end).step_by(LARGE) {
            if run.end - start < size {
                continue;
            }
            let mut entries = [0; BATCH];
            let at = usize::try_from(start).map_err(io::Error::other)?;
            look_up(pages, region.as_ptr() as usize + at, &mut entries)?;
            let is_written = entries.iter().any(|entry| is_private(*entry));
            let present = entries.iter().filter(|entry| is_present(**entry)).count();
            if !is_written && present >= LEAST {
                found.push(start / PAGE as u64);
            }
        }
    }
    Ok(found)
}

/// Makes the large page that begins at page `first` of a region, if it is not one already. False if
/// the kernel can't: before Linux 6.1, or in this file.
pub(super) fn make(region: &GuestRegionMmap, first: u64) -> bool {
    let is_within = first
        .checked_add(PAGES)
        .is_some_and(|end| end <= region.len() / PAGE as u64);
    let Some(start) = usize::try_from(first).ok().filter(|_| is_within) else {
        return false;
    };
    let address = region.as_ptr().wrapping_byte_add(start * PAGE).cast();
    // SAFETY: the pages lie within the region, which stays mapped; the contents stay the same.
    unsafe { libc::madvise(address, LARGE, MADV_COLLAPSE) == 0 }
}
