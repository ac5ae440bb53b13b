//! Copies the guest's RAM to a file, without pages that are zero.
//!
//! Most of a guest's RAM was never touched, and reading a page makes the kernel provide one. So the
//! kernel's page map shows which pages exist (`/proc/self/pagemap`, whose bits
//! `Documentation/admin-guide/mm/pagemap.rst` describes).

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use vm_memory::{GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap};

/// Bytes of a page.
pub(super) const PAGE: usize = 4096;

/// Number of pages that are processed together.
const BATCH: usize = 512;

/// Bits of a page map entry: the page is in memory, is swapped out, belongs to a file.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_FILE: u64 = 1 << 61;

/// Writes `ram` to `to`, which must have the same length and be one hole. The RAM must not change
/// meanwhile. `pages` is the page map of this process, if available.
pub(crate) fn write(ram: &GuestMemoryMmap, pages: Option<&File>, to: &File) -> io::Result<()> {
    let mut offset = 0;
    for region in ram.iter() {
        write_region(region, pages, to, offset)?;
        offset += region.len();
    }
    Ok(())
}

fn write_region(
    region: &GuestRegionMmap,
    pages: Option<&File>,
    to: &File,
    offset: u64,
) -> io::Result<()> {
    let base = base_runs(region)?;
    let count = usize::try_from(region.len()).unwrap_or(usize::MAX) / PAGE;
    let mut batch = [0_u64; BATCH];
    for first in (0..count).step_by(BATCH) {
        let batch = batch
            .get_mut(..BATCH.min(count - first))
            .unwrap_or_default();
        let start = region.as_ptr() as usize + first * PAGE;
        match pages {
            Some(pages) => look_up(pages, start, batch)?,
            None => batch.fill(PRESENT),
        }
        let bytes = (first * PAGE) as u64;
        let in_base = base
            .iter()
            .any(|run| run.start < bytes + (batch.len() * PAGE) as u64 && run.end > bytes);
        let mut run = 0..0;
        for (index, entry) in batch.iter().enumerate() {
            // Pages that the base file has data for may or may not be in memory.
            let exists = in_base || (entry & (PRESENT | SWAPPED) != 0 && entry & OF_FILE == 0);
            if exists && !is_zero(page(region, first + index)) {
                if run.end != index {
                    write_run(region, first, &run, to, offset)?;
                    run = index..index;
                }
                run.end = index + 1;
            }
        }
        write_run(region, first, &run, to, offset)?;
    }
    Ok(())
}

/// Returns the pages of a region of a file that are no longer the file's, counted from the region's
/// start: those that were written to.
pub(super) fn private_pages(region: &GuestRegionMmap, pages: &File) -> io::Result<Vec<u64>> {
    let count = usize::try_from(region.len()).unwrap_or(usize::MAX) / PAGE;
    let mut found = Vec::new();
    let mut batch = [0_u64; BATCH];
    for first in (0..count).step_by(BATCH) {
        let batch = batch
            .get_mut(..BATCH.min(count - first))
            .unwrap_or_default();
        look_up(pages, region.as_ptr() as usize + first * PAGE, batch)?;
        let entries = (first as u64..).zip(batch.iter());
        let is_private = |entry: u64| entry & (PRESENT | SWAPPED) != 0 && entry & OF_FILE == 0;
        let private = entries.filter(|(_, entry)| is_private(**entry));
        found.extend(private.map(|(page, _)| page));
    }
    Ok(found)
}

/// Writes pages of a batch that begins at page `first` of the region.
fn write_run(
    region: &GuestRegionMmap,
    first: usize,
    run: &Range<usize>,
    to: &File,
    offset: u64,
) -> io::Result<()> {
    if run.is_empty() {
        return Ok(());
    }
    let start = (first + run.start) * PAGE;
    // SAFETY: the pages lie within the region, which stays mapped and does not change.
    let bytes =
        unsafe { std::slice::from_raw_parts(region.as_ptr().byte_add(start), run.len() * PAGE) };
    to.write_all_at(bytes, offset + start as u64)
}

fn page(region: &GuestRegionMmap, index: usize) -> &[u8] {
    // SAFETY: as in `write_run`.
    unsafe { std::slice::from_raw_parts(region.as_ptr().byte_add(index * PAGE), PAGE) }
}

fn is_zero(page: &[u8]) -> bool {
    // A page that isn't zero usually differs near its start; others are compared whole.
    const ZEROS: [u8; PAGE] = [0; PAGE];
    page == ZEROS
}

fn look_up(pages: &File, start: usize, batch: &mut [u64]) -> io::Result<()> {
    const ENTRY: usize = size_of::<u64>();
    let mut bytes = [0; BATCH * ENTRY];
    let bytes = bytes.get_mut(..batch.len() * ENTRY).unwrap_or_default();
    pages.read_exact_at(bytes, (start / PAGE * ENTRY) as u64)?;
    for (entry, bytes) in batch.iter_mut().zip(bytes.as_chunks().0) {
        *entry = u64::from_ne_bytes(*bytes);
    }
    Ok(())
}

/// Returns where a region's base file has data, in bytes from the region's start.
fn base_runs(region: &GuestRegionMmap) -> io::Result<Vec<Range<u64>>> {
    let Some(base) = region.file_offset() else {
        return Ok(Vec::new());
    };
    let (file, start) = (base.file(), base.start());
    let end = start + region.len();
    let mut runs = Vec::new();
    let mut at = start;
    while at < end {
        let from = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(from) => from,
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        at = rustix::fs::seek(file, SeekFrom::Hole(from))?.max(from + 1);
        runs.push(from.saturating_sub(start)..at.saturating_sub(start));
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use vm_memory::{Bytes, GuestAddress};

    use super::*;
    use crate::kvm::memory::GuestMemory;

    const SIZE: u64 = 64 << 20;

    fn saved(memory: &GuestMemory, with_map: bool) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(SIZE).unwrap();
        let pages = File::open("/proc/self/pagemap").unwrap();
        write(memory.ram(), with_map.then_some(&pages), &file).unwrap();
        file
    }

    fn put(memory: &GuestMemory, at: u64, byte: u8) {
        memory.ram().write_obj(byte, GuestAddress(at)).unwrap();
    }

    fn get(memory: &GuestMemory, at: u64) -> u8 {
        memory.ram().read_obj(GuestAddress(at)).unwrap()
    }

    #[test]
    fn written_pages_are_in_copies_of_copies() {
        for with_map in [true, false] {
            let first = GuestMemory::new(SIZE).unwrap();
            put(&first, 0, 1);
            put(&first, 5 << 20, 2);
            put(&first, SIZE - 1, 3);
            // A page that was touched and is zero.
            put(&first, 9 << 20, 0);
            let file = saved(&first, with_map);
            assert!(
                file.metadata().unwrap().blocks() <= 3 * 2 * 8,
                "holes are kept"
            );

            let second = GuestMemory::resumed(SIZE, file.try_clone().unwrap()).unwrap();
            let third = GuestMemory::resumed(SIZE, file.try_clone().unwrap()).unwrap();
            put(&second, 5 << 20, 0);
            put(&second, 7 << 20, 4);
            put(&third, 0, 9);
            let copy = saved(&second, with_map);
            let fourth = GuestMemory::resumed(SIZE, copy).unwrap();
            for (memory, wanted) in [
                (&second, [1, 0, 4, 3]),
                (&third, [9, 2, 0, 3]),
                (&fourth, [1, 0, 4, 3]),
            ] {
                let found = [0, 5 << 20, 7 << 20, SIZE - 1].map(|at| get(memory, at));
                assert_eq!(found, wanted);
            }
        }
    }
}
