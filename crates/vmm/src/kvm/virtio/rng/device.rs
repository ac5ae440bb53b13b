//! The entropy device (specification section 5.4).

use virtio_bindings::virtio_ids::VIRTIO_ID_RNG;

use crate::kvm::virtio::{Active, Device, Violation};

/// Maximum random bytes of one request. The driver requests 64 at a time.
const MAX: usize = 4096;

const QUEUE_SIZES: [u16; 1] = [64];

/// The device.
#[derive(Debug, Default)]
pub(crate) struct Rng;

impl Device for Rng {
    fn id(&self) -> u32 {
        VIRTIO_ID_RNG
    }

    fn queue_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    fn queue(&mut self, index: usize, active: &mut Active) -> Result<(), Violation> {
        let queue = active.queues.get(index)?;
        while let Some(chain) = queue.pop(&active.memory)? {
            let mut bytes = [0; MAX];
            let wanted = bytes
                .get_mut(..chain.writable.len().min(MAX))
                .unwrap_or_default();
            let written = match rustix::rand::getrandom(
                &mut *wanted,
                rustix::rand::GetRandomFlags::empty(),
            ) {
                Ok(count) => chain
                    .writable
                    .copy_from(wanted.get(..count).unwrap_or_default()),
                // The driver repeats the request.
                Err(_) => 0,
            };
            queue.complete(&active.memory, chain.head, written)?;
        }
        active.notify(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kvm::virtio::driver::{Driver, WRITE};

    #[test]
    fn requests_are_filled() {
        let mut driver = Driver::new(Box::new(Rng));
        let one = driver.buffer(&[0; 64]);
        let two = driver.buffer(&[0; 64]);
        let head = driver.add(0, &[(one, 60, WRITE), (two, 64, WRITE)]);
        driver.run(0);
        assert_eq!(driver.used(0), [(head, 124)]);
        assert_ne!(driver.read(one, 60), vec![0; 60]);
        assert_eq!(driver.read(one + 60, 4), vec![0; 4]);
    }

    #[test]
    fn a_huge_request_is_filled_in_part() {
        let mut driver = Driver::new(Box::new(Rng));
        let buffer = driver.buffer(&[0; 8192]);
        let head = driver.add(0, &[(buffer, 8192, WRITE)]);
        driver.run(0);
        assert_eq!(driver.used(0), [(head, MAX as u32)]);
    }
}
