//! The pages that a restored machine writes to first, so that later ones restored from the same
//! snapshot have them from the start.
//!
//! The first write to a page is an exit, in which the kernel finds out what to do, copies the page
//! and maps it. A machine that starts from a template does that hundreds of times before its
//! command says anything, always for nearly the same pages. A machine that has done so makes a list
//! of them once, and for others these pages are copied and mapped in a few calls. Pages that are
//! only read are left out: the kernel maps their neighbours with them, so that it does not know
//! which of them the guest has used, and mapping all would take longer than the exits. Where there
//! are many, they become one [large page](super::large).
//!
//! The file is a list of [ranges](super::range). The highest bit of a range's first page is set if
//! the range becomes a large page. The list is a hint: whatever it says, the guest sees the same
//! memory.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use kvm_ioctls::VcpuFd;
use vm_memory::{Address, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap};

use super::copy::PAGE;
use super::large;
use super::page_map::private_pages;
use super::range::{LENGTH, Range, Ranges, pages_of};

/// Maximum number of pages in a list, 16 MiB. A machine that has written to more ran something that
/// others won't.
const MOST: u64 = 4096;

/// Pages that were not touched, between two that were, that are taken along: a range costs as much
/// as some pages do.
const GAP: u64 = 2;

/// Maximum number of large pages in a list: a kernel's code has 6 MiB.
const MOST_LARGE: usize = 4;

/// The bit of a range's first page if the range becomes a large page.
const IN_ONE: u64 = 1 << 31;

/// Writes the list of the pages that the machine has written to, and of large ones that it reads. The file stays empty if they are
/// too many. The RAM must be a file's ([`GuestMemory::resumed`](super::GuestMemory::resumed));
/// `pages` is the page map of this process.
pub(crate) fn record(ram: &GuestMemoryMmap, pages: &File, mut to: &File) -> io::Result<()> {
    let mut written = Ranges::new(GAP, MOST as usize);
    let mut large = Vec::new();
    let mut region_start = 0;
    for region in ram.iter() {
        private_pages(region, pages, |first, count| {
            let first = region_start + first;
            written.add(Range { first, count });
        })?;
        let read_only = large::read_only(region, pages)?.into_iter();
        large.extend(read_only.map(|page| Range {
            first: (region_start + page) | IN_ONE,
            count: large::PAGES,
        }));
        region_start += region.len() / PAGE as u64;
    }
    large.truncate(MOST_LARGE);
    let mut ranges = written.list();
    ranges.extend(large);
    if pages_of(&ranges) > MOST {
        return Ok(());
    }
    let bytes: Option<Vec<_>> = ranges.into_iter().map(Range::encode).collect();
    to.write_all(&bytes.unwrap_or_default().concat())
}

/// Copies the pages of the list in `file` from the snapshot, and has `map` map them for the guest,
/// by their address and length in bytes. What can't be done is left for the guest's first write.
pub(crate) fn prepare(
    ram: &GuestMemoryMmap,
    file: &File,
    mut map: impl FnMut(u64, u64),
) -> io::Result<()> {
    // Other processes may read the same file at the same time.
    let length = file.metadata()?.len().min(MOST * LENGTH as u64);
    let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    file.read_exact_at(&mut bytes, 0)?;
    let ranges = bytes.as_chunks().0.iter().copied().map(Range::decode);
    let ranges: Vec<Range> = ranges.collect();
    if pages_of(&ranges) > MOST {
        return Ok(());
    }
    for mut range in ranges {
        let is_large = range.first & IN_ONE != 0;
        range.first &= !IN_ONE;
        for (region, _, pages) in range.parts(ram) {
            if pages.end - pages.start != range.count {
                continue;
            }
            let start = pages.start * PAGE as u64;
            let length = range.count * PAGE as u64;
            let is_there = if is_large {
                range.count == large::PAGES && large::make(region, pages.start)
            } else {
                copy(region, start, length)
            };
            if is_there {
                map(region.start_addr().raw_value() + start, length);
            } else if !is_large {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Copies a range of a region, in bytes from its start. False if the kernel can't.
fn copy(region: &GuestRegionMmap, start: u64, length: u64) -> bool {
    let (Ok(start), Ok(length)) = (usize::try_from(start), usize::try_from(length)) else {
        return false;
    };
    let address = region.as_ptr().wrapping_byte_add(start).cast();
    // SAFETY: the range lies within the region, which stays mapped; the contents stay the same.
    unsafe { libc::madvise(address, length, libc::MADV_POPULATE_WRITE) == 0 }
}

/// Maps a range of the guest's memory. Before Linux 6.11, or if that fails, the guest's first
/// access does.
pub(crate) fn map(vcpu: &VcpuFd, address: u64, length: u64) {
    let mut request = PreFault {
        gpa: address,
        size: length,
        flags: 0,
        padding: [0; 5],
    };
    // SAFETY: a virtual processor, and a structure that lives.
    unsafe {
        libc::ioctl(
            vcpu.as_raw_fd(),
            PRE_FAULT_MEMORY as libc::Ioctl,
            &raw mut request,
        )
    };
}

/// `struct kvm_pre_fault_memory` of `linux/kvm.h`.
#[repr(C)]
struct PreFault {
    gpa: u64,
    size: u64,
    flags: u64,
    padding: [u64; 5],
}

/// `KVM_PRE_FAULT_MEMORY`: `_IOWR(KVMIO, 0xd5, struct kvm_pre_fault_memory)`.
const PRE_FAULT_MEMORY: u32 = 3 << 30 | (size_of::<PreFault>() as u32) << 16 | 0xae << 8 | 0xd5;

#[cfg(test)]
mod tests {

    use vm_memory::{Bytes, GuestAddress};

    use super::*;
    use crate::kvm::memory::GuestMemory;

    const SIZE: u64 = 16 << 20;

    fn base() -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(SIZE).unwrap();
        file.write_all_at(b"base", 5 * PAGE as u64).unwrap();
        file
    }

    fn list_of(pages: &[u64]) -> File {
        let memory = GuestMemory::resumed(SIZE, base(), None).unwrap();
        for page in pages {
            let at = GuestAddress(page * PAGE as u64 + 9);
            memory.ram().write_obj(1_u8, at).unwrap();
        }
        // Reading a page leaves it the file's.
        let _: u8 = memory.ram().read_obj(GuestAddress(3 << 20)).unwrap();
        let list = tempfile::tempfile().unwrap();
        let map = File::open("/proc/self/pagemap").unwrap();
        record(memory.ram(), &map, &list).unwrap();
        list
    }

    fn ranges(list: &File) -> Vec<(u64, u64)> {
        let mut bytes = vec![0; list.metadata().unwrap().len() as usize];
        list.read_exact_at(&mut bytes, 0).unwrap();
        let ranges = bytes.as_chunks().0.iter().copied().map(Range::decode);
        ranges.map(|range| (range.first, range.count)).collect()
    }

    #[test]
    fn pages_that_were_written_to_are_listed_in_ranges() {
        let list = list_of(&[5, 6, 9, 100, 4095]);
        assert_eq!(ranges(&list), [(5, 5), (100, 1), (4095, 1)]);
        assert_eq!(ranges(&list_of(&[])), []);
    }

    #[test]
    fn a_large_page_that_was_only_read_is_mapped_at_once() {
        const LARGE: u64 = 2 << 20;
        let file = base();
        file.write_all_at(&[7; 6 << 20], 4 << 20).unwrap();
        let memory = || GuestMemory::resumed(SIZE, file.try_clone().unwrap(), None).unwrap();
        let used = memory();
        for at in (0..SIZE).step_by(16 * PAGE) {
            let _: u8 = used.ram().read_obj(GuestAddress(at)).unwrap();
        }
        // One large page is written to, others have no data.
        used.ram().write_obj(1_u8, GuestAddress(7 << 20)).unwrap();
        let list = tempfile::tempfile().unwrap();
        let map = File::open("/proc/self/pagemap").unwrap();
        record(used.ram(), &map, &list).unwrap();
        let page = |at: u64| at / PAGE as u64;
        let large = [4 << 20, 8 << 20].map(|at| (page(at) | IN_ONE, large::PAGES));
        assert_eq!(ranges(&list), [&[(page(7 << 20), 1)], &large[..]].concat());

        let other = memory();
        let mut mapped = Vec::new();
        prepare(other.ram(), &list, |at, length| mapped.push((at, length))).unwrap();
        assert_eq!(mapped.remove(0), (7 << 20, PAGE as u64));
        // If this kernel can.
        if !mapped.is_empty() {
            assert_eq!(mapped, [(4 << 20, LARGE), (8 << 20, LARGE)]);
        }
        let mut found = vec![0; 6 << 20];
        let at = GuestAddress(4 << 20);
        other.ram().read_slice(&mut found, at).unwrap();
        assert!(found.iter().all(|byte| *byte == 7));
    }

    #[test]
    fn lists_of_touched_pages_never_change_the_memory() {
        let lists: [(&[u32], Vec<_>); 7] = [
            (
                &[5, 1, 4094, 2],
                vec![(5 << 12, 1 << 12), (4094 << 12, 2 << 12)],
            ),
            (&[4095, 2], vec![]),
            (&[1 << 31, 511], vec![]),
            (&[1 << 31 | 3585, 512], vec![]),
            (&[u32::MAX, u32::MAX], vec![]),
            (&[0, 4097], vec![]),
            (&[7], vec![]),
        ];
        for (numbers, wanted) in lists {
            let list = tempfile::tempfile().unwrap();
            let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
            list.write_all_at(&bytes, 0).unwrap();
            let memory = GuestMemory::resumed(SIZE, base(), None).unwrap();
            let mut mapped = Vec::new();
            prepare(memory.ram(), &list, |at, length| mapped.push((at, length))).unwrap();
            assert_eq!(mapped, wanted);
            let mut found = [0; 4];
            let at = GuestAddress(5 * PAGE as u64);
            memory.ram().read_slice(&mut found, at).unwrap();
            assert_eq!(&found, b"base", "{numbers:?}");
        }
    }
}
