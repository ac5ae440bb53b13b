//! A memory in a file that has only the pages that differ from another memory, its base.
//!
//! ```text
//! 8 bytes     number of ranges, little endian
//! range...    the pages that differ, as `range.rs` describes them
//! from HEAD   the RAM, with holes for all other pages, and for pages of zeros
//! ```
//!
//! A restored machine maps its memory's file privately. So the kernel knows which pages it has
//! written to since, and only these differ from the file. Where the file was a delta itself, its
//! pages differ from the base as well: a delta of a delta is one of the same base.
//!
//! A worker has written the file, and a hostile guest may have taken that over: the worker that
//! reads it maps ranges in its own guest's RAM only.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use vm_memory::{GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

use super::copy::{self, PAGE};
use super::page_map::private_pages;
use super::range::{LENGTH, Range, Ranges};
use super::truncation::Mapped;
use crate::snapshot::DELTA_HEAD as HEAD;

/// Most ranges. Each is a mapping of its own, of which a process has 65,530.
const MOST: usize = (HEAD as usize - COUNT) / LENGTH;

/// Bytes of the number of ranges.
const COUNT: usize = 8;

/// Pages between two that differ that are taken along: a mapping costs as much as copying some
/// pages does. More, if there are too many ranges.
const GAP: u64 = 4;

/// A memory as pages of a delta over a base.
#[derive(Clone, Debug)]
pub(crate) struct Delta {
    file: Arc<File>,
    ranges: Arc<[Range]>,
}

impl Delta {
    /// Reads the list of pages of a RAM of `size` bytes. None if it is damaged. Other processes may
    /// read the same file at the same time.
    pub(crate) fn read(file: File, size: u64) -> io::Result<Option<Self>> {
        if file.metadata()?.len() != size.saturating_add(HEAD) {
            return Ok(None);
        }
        let mut head = [0; HEAD as usize];
        file.read_exact_at(&mut head, 0)?;
        let (count, list) = head.split_at(COUNT);
        let count = count
            .first_chunk()
            .map_or(0, |count| u64::from_le_bytes(*count));
        let Some(count) = usize::try_from(count).ok().filter(|count| *count <= MOST) else {
            return Ok(None);
        };
        let list = list.as_chunks().0.iter().take(count);
        let ranges: Arc<[Range]> = list.copied().map(Range::decode).collect();
        let mut end = 0;
        for range in &*ranges {
            if range.count == 0 || range.first < end || range.end() > size / PAGE as u64 {
                return Ok(None);
            }
            end = range.end();
        }
        let file = Arc::new(file);
        Ok(Some(Self { file, ranges }))
    }

    /// Returns the pages that differ from the base.
    pub(crate) fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// Maps the pages that differ in place of the base's.
    pub(super) fn map(&self, ram: &GuestMemoryMmap) -> io::Result<()> {
        const FLAGS: i32 = libc::MAP_PRIVATE | libc::MAP_NORESERVE | libc::MAP_FIXED;
        for part in self.mapped(ram) {
            let length = usize::try_from(part.length).map_err(io::Error::other)?;
            let offset = libc::off_t::try_from(part.offset).map_err(io::Error::other)?;
            // SAFETY: the part lies within a region of the RAM, which nothing uses yet, and stays
            // mapped as long as the region.
            let mapped = unsafe {
                libc::mmap(
                    part.start as *mut libc::c_void,
                    length,
                    libc::PROT_READ | libc::PROT_WRITE,
                    FLAGS,
                    self.file.as_raw_fd(),
                    offset,
                )
            };
            if mapped == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }

    /// Returns the parts of the RAM that map the delta's file.
    pub(crate) fn mapped<'a>(
        &'a self,
        ram: &'a GuestMemoryMmap,
    ) -> impl Iterator<Item = Mapped> + 'a {
        let parts = self.ranges.iter().flat_map(|range| range.parts(ram));
        parts.map(|(region, first, pages)| Mapped {
            start: (region.as_ptr() as usize).saturating_add(pages.start as usize * PAGE),
            length: (pages.end - pages.start) * PAGE as u64,
            offset: HEAD + (first + pages.start) * PAGE as u64,
            file: Arc::clone(&self.file),
            name: "the snapshot's memory".to_owned(),
            is_ram: true,
        })
    }
}

/// Writes the pages of `ram` that differ from its base into `to`, which must be one hole of the
/// right length. The RAM must not change meanwhile, and be a file's; `delta` is what it had of its
/// own from the start. `pages` is the page map of this process; without it, all pages are written.
pub(crate) fn write(
    ram: &GuestMemoryMmap,
    delta: Option<&Delta>,
    pages: Option<&File>,
    to: &File,
) -> io::Result<()> {
    let ranges = differing(ram, delta, pages)?;
    let count = (ranges.len() as u64).to_le_bytes();
    let list: Option<Vec<_>> = ranges.iter().map(|range| range.encode()).collect();
    let list = list.ok_or(io::ErrorKind::FileTooLarge)?.concat();
    to.write_all_at(&[&count[..], &list].concat(), 0)?;
    for range in ranges {
        for (region, first, part) in range.parts(ram) {
            let pages = part.start as usize..part.end as usize;
            copy::write_pages(region, pages, to, HEAD + first * PAGE as u64)?;
        }
    }
    Ok(())
}

/// Returns the pages that differ from the base, and some that don't.
fn differing(
    ram: &GuestMemoryMmap,
    delta: Option<&Delta>,
    pages: Option<&File>,
) -> io::Result<Vec<Range>> {
    let Some(pages) = pages else {
        let count = ram.iter().map(|region| region.len() / PAGE as u64).sum();
        return Ok(vec![Range { first: 0, count }]);
    };
    let mut private = Ranges::new(GAP, MOST);
    let mut start = 0;
    for region in ram.iter() {
        private_pages(region, pages, |first, count| {
            let first = start + first;
            private.add(Range { first, count });
        })?;
        start += region.len() / PAGE as u64;
    }
    let mut all = private.list();
    all.extend(delta.map_or(&[][..], Delta::ranges));
    all.sort_unstable_by_key(|range| range.first);
    let mut differing = Ranges::new(GAP, MOST);
    all.into_iter().for_each(|range| differing.add(range));
    Ok(differing.list())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use vm_memory::{Bytes, GuestAddress};

    use super::*;
    use crate::kvm::memory::GuestMemory;

    const SIZE: u64 = 64 << 20;

    /// The last page of the base, all of which differ.
    const LAST: u64 = 99;

    fn base() -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(SIZE).unwrap();
        for page in 0..=LAST {
            let byte = page as u8 + 1;
            file.write_all_at(&[byte; PAGE], page * PAGE as u64)
                .unwrap();
        }
        file
    }

    fn at(page: u64) -> GuestAddress {
        GuestAddress(page * PAGE as u64 + 100)
    }

    fn put(memory: &GuestMemory, page: u64, byte: u8) {
        let page = GuestAddress(page * PAGE as u64);
        memory.ram().write_slice(&[byte; PAGE], page).unwrap();
    }

    fn bytes(memory: &GuestMemory) -> Vec<u8> {
        let pages = 0..SIZE / PAGE as u64;
        pages
            .map(|page| memory.ram().read_obj(at(page)).unwrap())
            .collect()
    }

    /// Saves the memory as a delta, and returns another one that begins with it.
    fn copied(memory: &GuestMemory, base: &File, has_map: bool) -> (GuestMemory, File) {
        let file = tempfile::tempfile().unwrap();
        file.set_len(SIZE + HEAD).unwrap();
        let map = File::open("/proc/self/pagemap").unwrap();
        let map = has_map.then_some(&map);
        write(memory.ram(), memory.delta(), map, &file).unwrap();
        let again = file.try_clone().unwrap();
        let delta = Delta::read(again, SIZE).unwrap().unwrap();
        let base = base.try_clone().unwrap();
        let copy = GuestMemory::resumed(SIZE, base, Some(delta)).unwrap();
        (copy, file)
    }

    /// As a guest that reports a page as free.
    fn discard(memory: &GuestMemory, page: u64) {
        let address = memory.ram().get_host_address(at(page - 1)).unwrap();
        let address = address.wrapping_byte_add(PAGE - 100);
        // SAFETY: a page of the memory, which only this thread uses.
        let done = unsafe { libc::madvise(address.cast(), PAGE, libc::MADV_DONTNEED) };
        assert_eq!(done, 0);
    }

    #[test]
    fn a_copy_of_a_copy_has_what_each_wrote_and_discarded() {
        let base = base();
        for has_map in [true, false] {
            let first = GuestMemory::resumed(SIZE, base.try_clone().unwrap(), None).unwrap();
            let mut wanted = bytes(&first);
            let mut write = |memory: &GuestMemory, page: u64, byte| {
                put(memory, page, byte);
                wanted[page as usize] = byte;
            };
            write(&first, 5, 200);
            write(&first, 7, 0);
            write(&first, 5000, 201);
            write(&first, 16383, 202);
            put(&first, 9, 203);
            discard(&first, 9);
            let (second, file) = copied(&first, &base, has_map);
            assert_eq!(bytes(&second), wanted);
            let blocks = file.metadata().unwrap().blocks();
            let most = if has_map { 20 } else { 2 * LAST };
            assert!(blocks / 8 < most, "{blocks}");

            let mut write = |memory: &GuestMemory, page: u64, byte| {
                put(memory, page, byte);
                wanted[page as usize] = byte;
            };
            write(&second, 5, 0);
            write(&second, 8, 204);
            write(&second, 5000, 205);
            // What is discarded is again as it was at the time of the copy.
            put(&second, 16383, 206);
            discard(&second, 16383);
            let (third, _) = copied(&second, &base, has_map);
            assert_eq!(bytes(&third), wanted);
            // The others' memory is unchanged.
            assert_eq!(bytes(&second), wanted);
            assert_eq!(first.ram().read_obj::<u8>(at(8)).unwrap(), 9);

            // All of it in one file again.
            let whole = tempfile::tempfile().unwrap();
            whole.set_len(SIZE).unwrap();
            let map = File::open("/proc/self/pagemap").unwrap();
            let map = has_map.then_some(&map);
            copy::write(third.ram(), third.delta(), map, &whole).unwrap();
            let fourth = GuestMemory::resumed(SIZE, whole, None).unwrap();
            assert_eq!(bytes(&fourth), wanted);
        }
    }

    #[test]
    fn pages_far_apart_are_taken_together_when_they_are_many() {
        let base = base();
        let first = GuestMemory::resumed(SIZE, base.try_clone().unwrap(), None).unwrap();
        for page in (0..SIZE / PAGE as u64).step_by(6) {
            put(&first, page, 250);
        }
        let (second, _) = copied(&first, &base, true);
        assert_eq!(bytes(&second), bytes(&first));
        assert!(second.delta().unwrap().ranges().len() <= MOST);
    }

    #[test]
    fn damaged_lists_are_refused() {
        let read = |length: u64, list: &[u32]| {
            let file = tempfile::tempfile().unwrap();
            file.set_len(length).unwrap();
            let list: Vec<u8> = list.iter().flat_map(|n| n.to_le_bytes()).collect();
            file.write_all_at(&list, 0).unwrap();
            Delta::read(file, SIZE).unwrap()
        };
        let last = (SIZE / PAGE as u64) as u32 - 1;
        let good = read(SIZE + HEAD, &[3, 0, 0, 1, 1, 2, last, 1]).unwrap();
        assert_eq!(good.ranges().len(), 3);
        assert!(read(SIZE + HEAD, &[0, 0]).is_some());
        for list in [
            &[1, 0, 0, 0][..],
            &[1, 0, last, 2],
            &[1, 0, u32::MAX, u32::MAX],
            &[2, 0, 0, 2, 1, 1],
            &[2, 0, 9, 1, 1, 1],
            &[1, 1, 0, 1],
            &[MOST as u32 + 1, 0],
        ] {
            assert!(read(SIZE + HEAD, list).is_none(), "{list:?}");
        }
        assert!(read(SIZE, &[0, 0]).is_none());
    }
}
