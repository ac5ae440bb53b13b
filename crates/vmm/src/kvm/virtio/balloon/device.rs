//! The memory balloon (specification section 5.5), for free page reporting: the guest reports free
//! memory on its own, and the host reclaims it until the guest touches it again.

#![allow(unsafe_code)]

use virtio_bindings::virtio_ids::VIRTIO_ID_BALLOON;
use vm_memory::GuestAddress;

use crate::kvm::virtio::chain::Buffers;
use crate::kvm::virtio::{Active, Device, Violation};

/// `VIRTIO_BALLOON_F_PAGE_REPORTING`.
const PAGE_REPORTING: u64 = 1 << 5;

/// Inflation comes first, deflation second. Reporting follows the queues that were negotiated, as
/// drivers count them.
const INFLATE: usize = 0;
const DEFLATE: usize = 1;
const QUEUE_SIZES: [u16; 3] = [32, 32, 32];

const PAGE: usize = 4096;

/// Maximum page numbers in one request to inflate; the driver sends 256.
const MOST_PAGES: usize = 1024;

/// The device. The host never requests the balloon to grow.
#[derive(Debug, Default)]
pub(crate) struct Balloon {
    /// Number of requested pages and, as the driver writes it, of given pages; little endian.
    config: [u8; 8],
}

impl Device for Balloon {
    fn id(&self) -> u32 {
        VIRTIO_ID_BALLOON
    }

    fn features(&self) -> u64 {
        PAGE_REPORTING
    }

    fn queue_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    fn config(&self) -> &[u8] {
        &self.config
    }

    fn write_config(&mut self, offset: u64, data: &[u8]) {
        const GIVEN: u64 = 4;
        if let (GIVEN, [_, _, _, _]) = (offset, data) {
            for (to, from) in self.config.iter_mut().skip(GIVEN as usize).zip(data) {
                *to = *from;
            }
        }
    }

    fn save(&self) -> Vec<u8> {
        self.config.to_vec()
    }

    fn resume(&mut self, saved: &[u8]) -> Result<(), postcard::Error> {
        self.config = saved
            .try_into()
            .map_err(|_| postcard::Error::DeserializeUnexpectedEnd)?;
        Ok(())
    }

    fn queue(&mut self, index: usize, active: &mut Active) -> Result<(), Violation> {
        let queue = active.queues.get(index)?;
        while let Some(chain) = queue.pop(&active.memory)? {
            match index {
                INFLATE => {
                    let mut numbers = vec![0; chain.readable.len().min(MOST_PAGES * 4)];
                    chain.readable.copy_to(&mut numbers);
                    for number in numbers.as_chunks().0 {
                        let address = u64::from(u32::from_le_bytes(*number)) * PAGE as u64;
                        let mut page = Vec::new();
                        // A page that does not exist needs no release.
                        if active
                            .memory
                            .writable(GuestAddress(address), PAGE, &mut page)
                        {
                            give_back(&page.into());
                        }
                    }
                }
                // A page exists again as soon as it is touched.
                DEFLATE => {}
                _reporting => give_back(&chain.writable),
            }
            queue.complete(&active.memory, chain.head, 0)?;
        }
        active.notify(index)
    }
}

/// Returns whole pages to the host. They then read as zeroes or, in a copied machine, as their
/// contents at the time of the copy.
fn give_back(memory: &Buffers<'_>) {
    memory.for_each_piece(|start, length| {
        let skip = start.align_offset(PAGE);
        let length = length.saturating_sub(skip) / PAGE * PAGE;
        if length > 0 {
            // SAFETY: the piece is the guest's RAM, a private mapping that lives as long as the
            // worker and contains no data of the worker.
            unsafe {
                libc::madvise(start.wrapping_add(skip).cast(), length, libc::MADV_DONTNEED);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kvm::virtio::driver::{Driver, PMEM, READ, WRITE};

    #[test]
    fn reported_pages_are_gone_and_their_neighbours_are_not() {
        let mut driver = Driver::new(Box::<Balloon>::default());
        let buffer = driver.buffer(&[7; 4 * PAGE]);
        let page = (buffer + 8).next_multiple_of(PAGE as u64);
        let length = PAGE as u32 + 100;
        driver.add(2, &[(page - 8, length + 8, WRITE)]);
        driver.run(2);
        assert_eq!(driver.used(2).len(), 1);
        assert_eq!(driver.read(page - 8, 8), [7; 8]);
        assert_eq!(driver.read(page, PAGE), [0; PAGE]);
        assert_eq!(driver.read(page + PAGE as u64, 100), [7; 100]);
    }

    #[test]
    fn inflation_takes_ram_only() {
        let mut driver = Driver::new(Box::<Balloon>::default());
        let buffer = driver.buffer(&[7; 2 * PAGE]);
        let page = (buffer + 8).next_multiple_of(PAGE as u64);
        let numbers = [page / 4096, PMEM / 4096, u64::from(u32::MAX)];
        let numbers: Vec<u8> = numbers
            .iter()
            .flat_map(|n| (*n as u32).to_le_bytes())
            .collect();
        let numbers = driver.buffer(&numbers);
        driver.add(INFLATE, &[(numbers, 12, READ)]);
        driver.run(INFLATE);
        assert_eq!(driver.used(INFLATE).len(), 1);
        assert_eq!(driver.read(page, PAGE), [0; PAGE]);
        assert!(!driver.is_stopped());
    }
}
