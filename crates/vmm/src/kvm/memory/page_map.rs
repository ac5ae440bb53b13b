//! The kernel's page map of this process (`/proc/self/pagemap`): which pages exist, and which of
//! them are a file's. `Documentation/admin-guide/mm/pagemap.rst` describes it.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use vm_memory::{GuestMemoryRegion, GuestRegionMmap};

use super::copy::PAGE;

/// Number of entries that are read together.
pub(super) const BATCH: usize = 512;

/// Bits of an entry: the page is in memory, is swapped out, belongs to a file.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_FILE: u64 = 1 << 61;

/// An entry that stands for a page of which nothing is known.
pub(super) const UNKNOWN: u64 = PRESENT;

/// Returns whether a page exists and is not a file's.
pub(super) fn is_private(entry: u64) -> bool {
    entry & (PRESENT | SWAPPED) != 0 && entry & OF_FILE == 0
}

/// Returns whether a page is in memory.
pub(super) fn is_present(entry: u64) -> bool {
    entry & PRESENT != 0
}

/// Reads the entries of the pages from address `start` on.
pub(super) fn look_up(pages: &File, start: usize, batch: &mut [u64]) -> io::Result<()> {
    const ENTRY: usize = size_of::<u64>();
    let mut bytes = [0; BATCH * ENTRY];
    let bytes = bytes.get_mut(..batch.len() * ENTRY).unwrap_or_default();
    pages.read_exact_at(bytes, (start / PAGE * ENTRY) as u64)?;
    for (entry, bytes) in batch.iter_mut().zip(bytes.as_chunks().0) {
        *entry = u64::from_ne_bytes(*bytes);
    }
    Ok(())
}

/// Calls `found` for the pages of a region of a file that are no longer the file's: those that were
/// written to. With the first of consecutive pages, counted from the region's start, and their
/// number; ascending.
pub(super) fn private_pages(
    region: &GuestRegionMmap,
    pages: &File,
    mut found: impl FnMut(u64, u64),
) -> io::Result<()> {
    match scan(region, pages, &mut found) {
        // Before Linux 6.7.
        Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
            read_all(region, pages, &mut found)
        }
        done => done,
    }
}

/// As [`private_pages`], by an entry for each page of the region.
fn read_all(
    region: &GuestRegionMmap,
    pages: &File,
    found: &mut dyn FnMut(u64, u64),
) -> io::Result<()> {
    let count = usize::try_from(region.len()).unwrap_or(usize::MAX) / PAGE;
    let mut batch = [0_u64; BATCH];
    for first in (0..count).step_by(BATCH) {
        let batch = batch
            .get_mut(..BATCH.min(count - first))
            .unwrap_or_default();
        look_up(pages, region.as_ptr() as usize + first * PAGE, batch)?;
        let entries = (first as u64..).zip(batch.iter());
        let private = entries.filter(|(_, entry)| is_private(**entry));
        private.for_each(|(page, _)| found(page, 1));
    }
    Ok(())
}

/// As [`private_pages`], by a request that skips what does not exist.
fn scan(region: &GuestRegionMmap, pages: &File, found: &mut dyn FnMut(u64, u64)) -> io::Result<()> {
    /// Categories of pages.
    const OF_FILE: u64 = 1 << 2;
    const PRESENT: u64 = 1 << 3;
    const SWAPPED: u64 = 1 << 4;

    let start = region.as_ptr() as u64;
    let end = start.saturating_add(region.len());
    let mut runs = [Run::default(); BATCH];
    let mut request = Scan {
        size: size_of::<Scan>() as u64,
        flags: 0,
        start,
        end,
        walk_end: start,
        runs: runs.as_mut_ptr() as u64,
        room: runs.len() as u64,
        most_pages: 0,
        inverted: OF_FILE,
        all_of: OF_FILE,
        any_of: PRESENT | SWAPPED,
        returned: PRESENT,
    };
    while request.start < end {
        // SAFETY: a structure that lives, with the address and number of runs that live.
        let count =
            unsafe { libc::ioctl(pages.as_raw_fd(), SCAN as libc::Ioctl, &raw mut request) };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        let page = |address: u64| address.saturating_sub(start) / PAGE as u64;
        for run in runs.iter().take(count) {
            found(page(run.start), page(run.end) - page(run.start));
        }
        if request.walk_end <= request.start {
            return Err(io::ErrorKind::InvalidData.into());
        }
        request.start = request.walk_end;
    }
    Ok(())
}

/// `PAGEMAP_SCAN`: `_IOWR('f', 16, struct pm_scan_arg)`.
pub(crate) const SCAN: u32 = 3 << 30 | (size_of::<Scan>() as u32) << 16 | (b'f' as u32) << 8 | 16;

/// `struct pm_scan_arg` of `linux/fs.h`.
#[repr(C)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    runs: u64,
    room: u64,
    most_pages: u64,
    inverted: u64,
    all_of: u64,
    any_of: u64,
    returned: u64,
}

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Run {
    start: u64,
    end: u64,
    categories: u64,
}

#[cfg(test)]
mod tests {
    use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend};

    use super::*;
    use crate::kvm::memory::GuestMemory;

    #[test]
    fn a_scan_finds_what_the_entries_show() {
        const SIZE: u64 = 64 << 20;
        let file = tempfile::tempfile().unwrap();
        file.set_len(SIZE).unwrap();
        file.write_all_at(&[1; 100 * PAGE], 0).unwrap();
        let memory = GuestMemory::resumed(SIZE, file, None).unwrap();
        let at = |page: u64| GuestAddress(page * PAGE as u64);
        let mut written: Vec<u64> = vec![3, 4, 5, 16383];
        // More runs than one request returns.
        written.extend((1000..4000).step_by(2));
        for page in &written {
            memory.ram().write_obj(7_u8, at(*page)).unwrap();
        }
        for page in [0, 9, 5000] {
            let _: u8 = memory.ram().read_obj(at(page)).unwrap();
        }
        written.sort_unstable();
        let pages = File::open("/proc/self/pagemap").unwrap();
        let region = memory.ram().iter().next().unwrap();
        let mut found = Vec::new();
        let mut add = |first, count| found.extend(first..first + count);
        read_all(region, &pages, &mut add).unwrap();
        assert_eq!(std::mem::take(&mut found), written);
        let mut add = |first, count| found.extend(first..first + count);
        match scan(region, &pages, &mut add) {
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {}
            done => {
                done.unwrap();
                assert_eq!(found, written);
            }
        }
    }
}
