//! Copies the guest's RAM to a file, without pages that are zero.
//!
//! Most of a guest's RAM was never touched, and reading a page makes the kernel provide one. So the
//! kernel's page map shows which pages exist.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use vm_memory::{
    FileOffset, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap,
};

use super::delta::Delta;
use super::page_map::{BATCH, UNKNOWN, is_private, look_up};

/// Bytes of a page.
pub(super) const PAGE: usize = 4096;

/// Writes `ram` to `to`, which must have the same length and be one hole. The RAM must not change
/// meanwhile. `delta` is what a RAM of a file had of its own from the start. `pages` is the page map
/// of this process, if available.
pub(crate) fn write(
    ram: &GuestMemoryMmap,
    delta: Option<&Delta>,
    pages: Option<&File>,
    to: &File,
) -> io::Result<()> {
    let mut offset = 0;
    for region in ram.iter() {
        let base = base_runs(region)?;
        let ranges = delta.map_or(&[][..], Delta::ranges).iter();
        let own = ranges.filter_map(|range| range.bytes_within(offset, region.len()));
        let own: Vec<_> = own.collect();
        write_region(region, (&base, &own), pages, to, offset)?;
        offset += region.len();
    }
    Ok(())
}

/// Writes a region, whose base file has data in the first ranges of bytes, and a delta in the second.
fn write_region(
    region: &GuestRegionMmap,
    (base, own): (&[Range<u64>], &[Range<u64>]),
    pages: Option<&File>,
    to: &File,
    offset: u64,
) -> io::Result<()> {
    let count = usize::try_from(region.len()).unwrap_or(usize::MAX) / PAGE;
    let mut batch = [0_u64; BATCH];
    for first in (0..count).step_by(BATCH) {
        let batch = batch
            .get_mut(..BATCH.min(count - first))
            .unwrap_or_default();
        let start = region.as_ptr() as usize + first * PAGE;
        match pages {
            Some(pages) => look_up(pages, start, batch)?,
            None => batch.fill(UNKNOWN),
        }
        let bytes = (first * PAGE) as u64..((first + batch.len()) * PAGE) as u64;
        let is_within = |run: &&Range<u64>| run.start < bytes.end && run.end > bytes.start;
        let own: Vec<_> = own.iter().filter(is_within).collect();
        let is_own = |page: usize| {
            let at = (page * PAGE) as u64;
            own.iter().any(|run| run.contains(&at))
        };
        let entries = (first..).zip(batch.iter());
        let (mapped, rest): (Vec<_>, Vec<_>) =
            entries.partition(|(page, entry)| is_private(**entry) || is_own(*page));
        write_pages(region, mapped.into_iter().map(|(page, _)| page), to, offset)?;
        // Pages that the base file has data for may or may not be in memory.
        if let Some(file) = region.file_offset()
            && base.iter().any(|run| is_within(&run))
        {
            write_base(file, rest.into_iter().map(|(page, _)| page), to, offset)?;
        }
    }
    Ok(())
}

/// Writes those of a region's ascending `pages` that aren't zero, as its base file has them, each to its place from
/// `offset` on. They are not read where they are mapped: a page that can't be read would end the machine, and here it is an
/// error.
fn write_base(
    base: &FileOffset,
    pages: impl IntoIterator<Item = usize>,
    to: &File,
    offset: u64,
) -> io::Result<()> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for page in pages {
        match runs.last_mut() {
            Some(run) if run.end == page => run.end += 1,
            _ => runs.push(page..page + 1),
        }
    }
    let mut buffer = Vec::new();
    for run in runs {
        buffer.resize(run.len() * PAGE, 0);
        let from = base.start() + (run.start * PAGE) as u64;
        base.file().read_exact_at(&mut buffer, from)?;
        let mut at = run.start;
        let (pages, _) = buffer.as_chunks::<PAGE>();
        for part in pages.chunk_by(|a, b| is_zero(a) == is_zero(b)) {
            if part.first().is_some_and(|page| !is_zero(page)) {
                to.write_all_at(part.as_flattened(), offset + (at * PAGE) as u64)?;
            }
            at += part.len();
        }
    }
    Ok(())
}

/// Writes those of a region's ascending `pages` that aren't zero, each to its place from `offset`
/// on.
pub(super) fn write_pages(
    region: &GuestRegionMmap,
    pages: impl IntoIterator<Item = usize>,
    to: &File,
    offset: u64,
) -> io::Result<()> {
    let mut run = 0..0;
    for index in pages {
        if is_zero(page(region, index)) {
            continue;
        }
        if run.end != index || run.len() >= BATCH {
            write_run(region, &run, to, offset)?;
            run = index..index;
        }
        run.end = index + 1;
    }
    write_run(region, &run, to, offset)
}

/// Writes consecutive pages of the region.
fn write_run(
    region: &GuestRegionMmap,
    run: &Range<usize>,
    to: &File,
    offset: u64,
) -> io::Result<()> {
    if run.is_empty() {
        return Ok(());
    }
    let start = run.start * PAGE;
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

/// Returns where a region's base file has data, in bytes from the region's start.
pub(super) fn base_runs(region: &GuestRegionMmap) -> io::Result<Vec<Range<u64>>> {
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
        write(memory.ram(), None, with_map.then_some(&pages), &file).unwrap();
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

            let second = GuestMemory::resumed(SIZE, file.try_clone().unwrap(), None).unwrap();
            let third = GuestMemory::resumed(SIZE, file.try_clone().unwrap(), None).unwrap();
            put(&second, 5 << 20, 0);
            put(&second, 7 << 20, 4);
            put(&third, 0, 9);
            let copy = saved(&second, with_map);
            let fourth = GuestMemory::resumed(SIZE, copy, None).unwrap();
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
