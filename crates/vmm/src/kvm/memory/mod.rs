//! The guest's memory: RAM, which guest and devices write, and pmem, which both only read.
//!
//! A driver may use any address of either as a buffer. Devices read from both, since a program that
//! maps a file of its image may write it to a disk or a socket. They write to RAM only: pmem is
//! host files, mapped read-only, and a store to them would end the worker. The type keeps the two
//! apart, so that the devices need not.

pub(crate) mod copy;
pub(crate) mod delta;
mod large;
pub(crate) mod layout;
pub(crate) mod page_map;
mod ram;
mod range;
pub(crate) mod region;
pub(crate) mod touched;
pub(crate) mod truncation;

use std::fs::File;
use std::sync::Arc;

use vm_memory::bitmap::BS;
use vm_memory::{
    FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion,
    GuestRegionMmap, MmapRegion, VolatileSlice,
};

use delta::Delta;
use ram::Room;

/// A piece of guest memory as it is mapped in the worker.
pub(crate) type Slice<'a> = VolatileSlice<'a, BS<'a, ()>>;

/// The guest's memory; clones are the same memory.
#[derive(Clone, Debug)]
pub(crate) struct GuestMemory {
    ram: GuestMemoryMmap,
    all: GuestMemoryMmap,
    /// What the RAM had of its own from the start, if it is a delta.
    delta: Option<Delta>,
    /// The mappings of RAM.
    _rooms: Arc<[Room]>,
}

/// Why the memory can't be provided.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("no {} MiB of memory for the guest: {source}", size >> 20)]
    Ram {
        size: u64,
        source: vm_memory::mmap::MmapRegionError,
    },
    #[error(transparent)]
    Region(#[from] region::Error),
    #[error("mapping what differs from the snapshot's base: {0}")]
    Delta(std::io::Error),
    #[error("no address for a region of {size} bytes")]
    Address { size: u64 },
    #[error("arranging the guest's memory: {0}")]
    Arrange(#[from] vm_memory::GuestRegionCollectionError),
}

impl GuestMemory {
    /// Creates `size` bytes of RAM, zeroed and not yet allocated.
    pub(crate) fn new(size: u64) -> Result<Self, Error> {
        let (mut rooms, mut regions) = (Vec::new(), Vec::new());
        for range in layout::ram(size) {
            let length = range.end - range.start;
            let reserved = Room::reserve(length);
            let (room, region) = reserved.map_err(|source| Error::Ram { size, source })?;
            rooms.push(room);
            let region = GuestRegionMmap::new(region, GuestAddress(range.start))
                .ok_or(Error::Address { size: length })?;
            regions.push(region);
        }
        let ram = GuestMemoryMmap::from_regions(regions)?;
        Ok(Self {
            all: ram.clone(),
            ram,
            delta: None,
            _rooms: rooms.into(),
        })
    }

    /// Creates `size` bytes of RAM that begin with the contents of `file`, and of `delta` where that
    /// differs. Writes stay private, and pages that aren't written to are shared.
    pub(crate) fn resumed(size: u64, file: File, delta: Option<Delta>) -> Result<Self, Error> {
        let file = Arc::new(file);
        let mut offset = 0_u64;
        let (mut rooms, mut regions) = (Vec::new(), Vec::new());
        for range in layout::ram(size) {
            let length = range.end - range.start;
            let part = FileOffset::from_arc(Arc::clone(&file), offset);
            offset = offset.saturating_add(length);
            let (room, region) = Room::of_file(length, part).map_err(region::Error::from)?;
            rooms.push(room);
            let region = GuestRegionMmap::new(region, GuestAddress(range.start))
                .ok_or(Error::Address { size: length })?;
            regions.push(region);
        }
        let ram = GuestMemoryMmap::from_regions(regions)?;
        if let Some(delta) = &delta {
            delta.map(&ram).map_err(Error::Delta)?;
        }
        Ok(Self {
            all: ram.clone(),
            ram,
            delta,
            _rooms: rooms.into(),
        })
    }

    /// Adds a read-only region at `start`.
    pub(crate) fn add_region(&mut self, region: MmapRegion, start: u64) -> Result<(), Error> {
        let size = region.size() as u64;
        let region =
            GuestRegionMmap::new(region, GuestAddress(start)).ok_or(Error::Address { size })?;
        self.all = self.all.insert_region(Arc::new(region))?;
        Ok(())
    }

    /// Returns the RAM, which guest and devices write.
    pub(crate) fn ram(&self) -> &GuestMemoryMmap {
        &self.ram
    }

    /// Returns what the RAM had of its own from the start, if it is a delta.
    pub(crate) fn delta(&self) -> Option<&Delta> {
        self.delta.as_ref()
    }

    /// Adds the memory that a device may read at `address` to `slices`; false if some of it is not
    /// memory.
    pub(crate) fn readable<'a>(
        &'a self,
        address: GuestAddress,
        length: usize,
        slices: &mut Vec<Slice<'a>>,
    ) -> bool {
        extend(&self.all, address, length, slices)
    }

    /// Adds the memory that a device may write at `address` to `slices`; false if some of it is not
    /// RAM.
    pub(crate) fn writable<'a>(
        &'a self,
        address: GuestAddress,
        length: usize,
        slices: &mut Vec<Slice<'a>>,
    ) -> bool {
        extend(&self.ram, address, length, slices)
    }

    /// Returns the regions that were added.
    pub(crate) fn regions(&self) -> impl Iterator<Item = &GuestRegionMmap> {
        let is_ram = |region: &GuestRegionMmap| self.ram.find_region(region.start_addr()).is_some();
        self.all.iter().filter(move |region| !is_ram(region))
    }
}

fn extend<'a>(
    memory: &'a GuestMemoryMmap,
    address: GuestAddress,
    length: usize,
    slices: &mut Vec<Slice<'a>>,
) -> bool {
    memory
        .get_slices(address, length)
        .all(|slice| slice.map(|slice| slices.push(slice)).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MachineFile;
    use region::map;

    #[test]
    fn devices_read_everything_and_write_ram() {
        const PMEM: u64 = 0x1_0000_0000;
        let mut memory = GuestMemory::new(1 << 20).unwrap();
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let region = map(&[MachineFile::new(file, "layer").unwrap()], |_| false).unwrap();
        memory.add_region(region, PMEM).unwrap();
        let readable = |at, length| memory.readable(GuestAddress(at), length, &mut Vec::new());
        let writable = |at, length| memory.writable(GuestAddress(at), length, &mut Vec::new());

        assert!(readable(0, 1 << 20) && writable(0, 1 << 20));
        assert!(readable(PMEM, 8192) && !writable(PMEM, 1));
        assert!(!readable(PMEM, 8193) && !readable((1 << 20) - 1, 2));
        assert!(!readable(u64::MAX, 2) && !writable(u64::MAX, 1));
        assert_eq!(memory.regions().count(), 1);
    }

    #[test]
    fn too_much_memory_is_an_error() {
        let error = GuestMemory::new(1 << 60).unwrap_err().to_string();
        assert!(error.contains("MiB of memory"), "{error}");
    }
}
