//! The pages that a restored machine writes to first, so that later ones restored from the same
//! snapshot have them from the start.
//!
//! The first write to a page is an exit, in which the kernel finds out what to do, copies the page
//! and maps it. A machine that starts from a template does that hundreds of times before its
//! command says anything, always for nearly the same pages. A machine that has done so makes a list
//! of them once, and for others these pages are copied and mapped in a few calls. Pages that are
//! only read are left out: the kernel maps their neighbours with them, so that it does not know
//! which of them the guest has used, and mapping all would take longer than the exits.
//!
//! ```text
//! range...    first page and number of pages, u32 each, little endian; ascending
//! ```
//!
//! Pages are counted through the RAM, without the hole below 4 GiB. The list is a hint: whatever it
//! says, the guest sees the same memory.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use kvm_ioctls::VcpuFd;
use vm_memory::{Address, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap};

use super::copy::{PAGE, private_pages};

/// Bytes of a range in the file.
const RANGE: usize = 8;

/// Maximum number of pages in a list, 16 MiB. A machine that has written to more ran something that
/// others won't.
const MOST: u64 = 4096;

/// Pages that were not touched, between two that were, that are taken along: a range costs as much
/// as some pages do.
const GAP: u64 = 2;

/// Consecutive pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    first: u64,
    count: u64,
}

impl Range {
    /// Adds a page behind; false if it is too far away.
    fn extend(&mut self, page: u64) -> bool {
        let is_near = page <= self.first + self.count + GAP;
        if is_near {
            self.count = page + 1 - self.first;
        }
        is_near
    }

    fn encode(self) -> Option<[u8; RANGE]> {
        let [a, b, c, d] = u32::try_from(self.first).ok()?.to_le_bytes();
        let [e, f, g, h] = u32::try_from(self.count).ok()?.to_le_bytes();
        Some([a, b, c, d, e, f, g, h])
    }

    fn decode([a, b, c, d, e, f, g, h]: [u8; RANGE]) -> Self {
        Self {
            first: u32::from_le_bytes([a, b, c, d]).into(),
            count: u32::from_le_bytes([e, f, g, h]).into(),
        }
    }
}

fn pages_of(ranges: &[Range]) -> u64 {
    let counts = ranges.iter().map(|range| range.count);
    counts.fold(0, u64::saturating_add)
}

/// Writes the list of the pages that the machine has written to. The file stays empty if they are
/// too many. The RAM must be a file's ([`GuestMemory::resumed`](super::GuestMemory::resumed));
/// `pages` is the page map of this process.
pub(crate) fn record(ram: &GuestMemoryMmap, pages: &File, mut to: &File) -> io::Result<()> {
    let mut ranges: Vec<Range> = Vec::new();
    let mut region_start = 0;
    for region in ram.iter() {
        for page in private_pages(region, pages)? {
            let first = region_start + page;
            if !ranges.last_mut().is_some_and(|last| last.extend(first)) {
                ranges.push(Range { first, count: 1 });
            }
        }
        region_start += region.len() / PAGE as u64;
    }
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
    let length = file.metadata()?.len().min(MOST * RANGE as u64);
    let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    file.read_exact_at(&mut bytes, 0)?;
    let ranges = bytes.as_chunks().0.iter().copied().map(Range::decode);
    let ranges: Vec<Range> = ranges.collect();
    if pages_of(&ranges) > MOST {
        return Ok(());
    }
    for range in ranges {
        let mut region_start = 0;
        for region in ram.iter() {
            let pages = region.len() / PAGE as u64;
            let at = range.first.checked_sub(region_start);
            if let Some(at) = at.filter(|&at| at < pages && range.count <= pages - at) {
                let (start, length) = (at * PAGE as u64, range.count * PAGE as u64);
                if !copy(region, start, length) {
                    return Ok(());
                }
                map(region.start_addr().raw_value() + start, length);
            }
            region_start += pages;
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
    unsafe { libc::ioctl(vcpu.as_raw_fd(), PRE_FAULT_MEMORY, &raw mut request) };
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
const PRE_FAULT_MEMORY: libc::c_ulong =
    3 << 30 | (size_of::<PreFault>() as libc::c_ulong) << 16 | 0xae << 8 | 0xd5;

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
        let memory = GuestMemory::resumed(SIZE, base()).unwrap();
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
    fn lists_of_touched_pages_never_change_the_memory() {
        let lists: [(&[u32], Vec<_>); 5] = [
            (
                &[5, 1, 4094, 2],
                vec![(5 << 12, 1 << 12), (4094 << 12, 2 << 12)],
            ),
            (&[4095, 2], vec![]),
            (&[u32::MAX, u32::MAX], vec![]),
            (&[0, 4097], vec![]),
            (&[7], vec![]),
        ];
        for (numbers, wanted) in lists {
            let list = tempfile::tempfile().unwrap();
            let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
            list.write_all_at(&bytes, 0).unwrap();
            let memory = GuestMemory::resumed(SIZE, base()).unwrap();
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
