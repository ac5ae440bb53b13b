//! A driver for tests, which uses a device through its registers and queues as a guest does, or in
//! any way that a test requires.

#![allow(unsafe_code)]

use event_manager::{EventManager, SubscriberOps};
use micabox_ground::lock;
use std::sync::{Arc, Mutex};
use vm_memory::{Bytes, GuestAddress, GuestMemoryRegion};

use super::Device;
use super::mmio::Transport;
use super::state::{Mismatch, State};
use crate::MachineFile;
use crate::kvm::bus::Mmio;
use crate::kvm::memory::GuestMemory;
use crate::kvm::memory::region::map;

/// A buffer that the device reads or writes.
pub(crate) const READ: u16 = 0;
pub(crate) const WRITE: u16 = 2;
const NEXT: u16 = 1;

const MEMORY: u64 = 16 << 20;
/// Address of a page of pmem.
pub(crate) const PMEM: u64 = 0x1_0000_0000;
const PAGE: u64 = 4096;

/// Addresses of a queue's parts, each on pages of its own.
#[derive(Debug)]
struct Rings {
    size: u16,
    descriptors: u64,
    available: u64,
    used: u64,
    next_descriptor: u16,
    added: u16,
    seen: u16,
}

/// The driver of one device.
pub(crate) struct Driver {
    pub(crate) transport: Arc<Mutex<Transport>>,
    events: EventManager<Arc<Mutex<Transport>>>,
    pub(crate) memory: GuestMemory,
    /// The file behind the page of pmem.
    pub(crate) pmem: std::fs::File,
    rings: Vec<Rings>,
    next_buffer: u64,
}

/// Unmaps the regions. A machine's regions stay mapped as long as its process, but a fuzzer creates
/// more drivers in one process than it can have mappings.
impl Drop for Driver {
    fn drop(&mut self) {
        for region in self.memory.regions() {
            let length = usize::try_from(region.len()).unwrap_or_default();
            // SAFETY: the mapping belongs to this driver, and without it no driver makes the device
            // read there.
            unsafe { libc::munmap(region.as_ptr().cast(), length) };
        }
    }
}

impl Driver {
    /// Initialises the device, accepts all features and makes all queues ready.
    pub(crate) fn new(device: Box<dyn Device>) -> Self {
        let mut driver = Self::without_queues(device);
        let mut end = 2 * PAGE;
        let mut place = |length: u64| {
            let start = end;
            end += length.next_multiple_of(PAGE);
            start
        };
        driver.write(0x70, 1);
        driver.write(0x70, 3);
        for half in 0..2 {
            driver.write(0x14, half);
            let features = driver.register(0x10);
            driver.write(0x24, half);
            driver.write(0x20, features);
        }
        driver.write(0x70, 11);
        assert_eq!(driver.register(0x70), 11, "features refused");
        for queue in 0.. {
            driver.write(0x30, queue);
            let size = driver.register(0x34);
            if size == 0 {
                break;
            }
            let rings = Rings {
                size: size as u16,
                descriptors: place(u64::from(size) * 16),
                available: place(u64::from(size) * 2 + 6),
                used: place(u64::from(size) * 8 + 6),
                next_descriptor: 0,
                added: 0,
                seen: 0,
            };
            driver.write(0x38, size);
            for (register, address) in [
                (0x80, rings.descriptors),
                (0x90, rings.available),
                (0xa0, rings.used),
            ] {
                driver.write(register, address as u32);
                driver.write(register + 4, (address >> 32) as u32);
            }
            driver.write(0x44, 1);
            driver.rings.push(rings);
        }
        driver.next_buffer = place(PAGE) + PAGE;
        driver.write(0x70, 15);
        driver.host();
        driver
    }

    /// Replaces the driver's device by `device`, restored from `state`.
    pub(crate) fn replace(
        &mut self,
        device: Box<dyn Device>,
        state: State,
    ) -> Result<(), Mismatch> {
        let mut transport = Transport::new(device, self.memory.clone()).unwrap();
        transport.resume(state)?;
        self.transport = Arc::new(Mutex::new(transport));
        self.events = EventManager::new().unwrap();
        self.events.add_subscriber(Arc::clone(&self.transport));
        Ok(())
    }

    /// Creates a driver that has not initialised its device.
    pub(crate) fn without_queues(device: Box<dyn Device>) -> Self {
        let mut memory = GuestMemory::new(MEMORY).unwrap();
        let file = rustix::fs::memfd_create("pmem", rustix::fs::MemfdFlags::CLOEXEC);
        let file = std::fs::File::from(file.unwrap());
        file.set_len(PAGE).unwrap();
        let pmem = file.try_clone().unwrap();
        let region = map(&[MachineFile::new(file, "pmem").unwrap()], |_| false).unwrap();
        memory.add_region(region, PMEM).unwrap();
        let transport = Transport::new(device, memory.clone()).unwrap();
        let transport = Arc::new(Mutex::new(transport));
        let mut events = EventManager::new().unwrap();
        events.add_subscriber(Arc::clone(&transport));
        Self {
            transport,
            events,
            memory,
            pmem,
            rings: Vec::new(),
            next_buffer: 0,
        }
    }

    pub(crate) fn register(&self, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        lock(&self.transport).read(offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    pub(crate) fn write(&self, offset: u64, value: u32) {
        lock(&self.transport).write(offset, &value.to_le_bytes());
    }

    pub(crate) fn config(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        lock(&self.transport).read(0x100 + offset, &mut bytes);
        bytes
    }

    /// Returns whether the device has stopped because of a violation by the driver.
    pub(crate) fn is_stopped(&self) -> bool {
        self.register(0x70) & 64 != 0
    }

    /// Allocates a buffer in RAM.
    pub(crate) fn buffer(&mut self, bytes: &[u8]) -> u64 {
        let address = self.next_buffer;
        self.memory
            .ram()
            .write_slice(bytes, GuestAddress(address))
            .unwrap();
        self.next_buffer += (bytes.len() as u64).next_multiple_of(8);
        address
    }

    pub(crate) fn read(&self, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory
            .ram()
            .read_slice(&mut bytes, GuestAddress(address))
            .unwrap();
        bytes
    }

    fn put<T: vm_memory::ByteValued>(&self, value: T, address: u64) {
        let address = GuestAddress(address);
        self.memory.ram().write_obj(value, address).unwrap();
    }

    fn get<T: vm_memory::ByteValued>(&self, address: u64) -> T {
        self.memory.ram().read_obj(GuestAddress(address)).unwrap()
    }

    /// Makes a chain of `(address, length, READ or WRITE)` available; returns its head.
    pub(crate) fn add(&mut self, queue: usize, chain: &[(u64, u32, u16)]) -> u16 {
        let rings = &mut self.rings[queue];
        let head = rings.next_descriptor;
        let indices: Vec<u16> = (0..chain.len())
            .map(|index| (head + index as u16) % rings.size)
            .collect();
        rings.next_descriptor = (head + chain.len() as u16) % rings.size;
        let (descriptors, available) = (rings.descriptors, rings.available);
        let slot = rings.added % rings.size;
        rings.added = rings.added.wrapping_add(1);
        let added = rings.added;
        for (place, ((address, length, flags), index)) in chain.iter().zip(&indices).enumerate() {
            let at = descriptors + u64::from(*index) * 16;
            let next = indices.get(place + 1);
            self.put(*address, at);
            self.put(*length, at + 8);
            self.put(flags | next.map_or(0, |_| NEXT), at + 12);
            self.put(next.copied().unwrap_or_default(), at + 14);
        }
        self.put(head, available + 4 + u64::from(slot) * 2);
        self.put(added, available + 2);
        head
    }

    /// Notifies the device of a queue and makes it process the queue.
    pub(crate) fn run(&mut self, queue: usize) {
        let queue = queue as u32;
        let event = lock(&self.transport)
            .notifications()
            .find_map(|(event, of)| (of == queue).then(|| event.try_clone().unwrap()));
        match event {
            Some(event) => event.write(1).unwrap(),
            None => self.write(0x50, queue),
        }
        self.host();
    }

    /// Makes the device process all pending events.
    pub(crate) fn host(&mut self) {
        while self.events.run_with_timeout(0).unwrap() > 0 {}
    }

    /// Returns the chains that the device completed since the last call: heads and bytes written.
    pub(crate) fn used(&mut self, queue: usize) -> Vec<(u16, u32)> {
        let (used, size, seen) = {
            let rings = &self.rings[queue];
            (rings.used, rings.size, rings.seen)
        };
        let now: u16 = self.get(used + 2);
        self.rings[queue].seen = now;
        let count = now.wrapping_sub(seen);
        (0..count)
            .map(|n| {
                let slot = seen.wrapping_add(n) % size;
                let at = used + 4 + u64::from(slot) * 8;
                (self.get::<u32>(at) as u16, self.get::<u32>(at + 4))
            })
            .collect()
    }
}
