//! The persistent memory device (specification section 5.19).
//!
//! The device only announces where the region is, and takes no part in reads. Regions are
//! read-only, so there is never data to flush.

use std::ops::Range;

use virtio_bindings::virtio_ids::VIRTIO_ID_PMEM;

use crate::kvm::virtio::{Active, Device, Violation};

const QUEUE_SIZES: [u16; 1] = [16];

/// `VIRTIO_PMEM_RESP_TYPE_OK`, the answer to a flush.
const DONE: u32 = 0;

/// The device.
#[derive(Debug)]
pub(crate) struct Pmem {
    /// Start and size, little endian.
    config: [u8; 16],
}

impl Pmem {
    /// Creates the device of the region at these guest physical addresses.
    pub(crate) fn new(region: &Range<u64>) -> Self {
        let size = region.end.saturating_sub(region.start);
        let mut config = [0; 16];
        let fields = [region.start.to_le_bytes(), size.to_le_bytes()];
        for (to, from) in config.iter_mut().zip(fields.as_flattened()) {
            *to = *from;
        }
        Self { config }
    }
}

impl Device for Pmem {
    fn id(&self) -> u32 {
        VIRTIO_ID_PMEM
    }

    fn queue_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    fn config(&self) -> &[u8] {
        &self.config
    }

    fn queue(&mut self, index: usize, active: &mut Active) -> Result<(), Violation> {
        let queue = active.queues.get(index)?;
        while let Some(chain) = queue.pop(&active.memory)? {
            let written = chain.writable.copy_from(&DONE.to_le_bytes());
            queue.complete(&active.memory, chain.head, written)?;
        }
        active.notify(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kvm::virtio::driver::{Driver, READ, WRITE};

    #[test]
    fn the_region_is_announced_and_a_flush_succeeds() {
        let pmem = Pmem::new(&(0x1_0000_0000..0x1_0020_0000));
        let mut driver = Driver::new(Box::new(pmem));
        assert_eq!(driver.config(0, 8), 0x1_0000_0000_u64.to_le_bytes());
        assert_eq!(driver.config(8, 8), 0x20_0000_u64.to_le_bytes());
        let request = driver.buffer(&[0; 4]);
        let response = driver.buffer(&[0xff; 4]);
        let head = driver.add(0, &[(request, 4, READ), (response, 4, WRITE)]);
        driver.run(0);
        assert_eq!(driver.used(0), [(head, 4)]);
        assert_eq!(driver.read(response, 4), [0; 4]);
    }
}
