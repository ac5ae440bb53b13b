//! The block device (specification section 5.2).

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use micabox_ground::lock;
use virtio_bindings::virtio_blk as blk;
use virtio_bindings::virtio_ids::VIRTIO_ID_BLOCK;

use super::request::{HEADER, MOST_ERASED, MOST_RANGES, NoSpace, SECTOR, STATUS, serve};
use super::storage::Storage;
use super::throttle::Throttle;
use crate::kvm::virtio::{Active, Device, Violation};
use crate::process::{FULL, ROOM};
use micabox_spec::DiskRate;

const QUEUE_SIZE: u16 = 128;
const QUEUE_SIZES: [u16; 1] = [QUEUE_SIZE];

/// Bytes of the configuration space up to the last field in use.
const CONFIG: usize = 60;

/// The smallest write that does not require reading first: the host's page.
const BLOCK: u32 = 4096;

/// How long a request that found the host's disk full waits before a retry, at first and at most; one
/// beyond the rate is looked at again as often.
const FIRST_WAIT: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The device.
#[derive(Debug)]
pub(crate) struct Blk {
    storage: Storage,
    serial: Vec<u8>,
    config: [u8; CONFIG],
    /// How long the next request waits, while the host's disk is full.
    wait: Option<Duration>,
    /// [`Device::stalled`], because the host's disk is full.
    is_stalled: bool,
    /// Not under the device's lock, which a slow request holds.
    throttle: Arc<Mutex<Throttle>>,
    /// [`Device::stalled`], because of the rate.
    pause: Option<Duration>,
}

impl Blk {
    /// Creates a disk with the contents of `storage`. The guest sees whole sectors of it, and at
    /// most 20 bytes of `serial`.
    pub(crate) fn new(storage: Storage, serial: &str) -> Self {
        let mut config = [0; CONFIG];
        let mut set = |at: usize, bytes: &[u8]| {
            for (to, from) in config.iter_mut().skip(at).zip(bytes) {
                *to = *from;
            }
        };
        set(0, &(storage.len() / SECTOR).to_le_bytes());
        // A chain has a header and a status beside its data.
        set(12, &(u32::from(QUEUE_SIZE) - 2).to_le_bytes());
        set(20, &(SECTOR as u32).to_le_bytes());
        // Physical block: 2^3 sectors; the topology's best transfer sizes, in sectors.
        set(24, &[3, 0]);
        set(26, &((BLOCK / SECTOR as u32) as u16).to_le_bytes());
        // Discard: maximum sectors, maximum ranges, alignment. Write zeroes: the same without
        // alignment, and that it may free space.
        set(36, &MOST_ERASED.to_le_bytes());
        set(40, &MOST_RANGES.to_le_bytes());
        set(44, &(BLOCK / SECTOR as u32).to_le_bytes());
        set(48, &MOST_ERASED.to_le_bytes());
        set(52, &MOST_RANGES.to_le_bytes());
        set(56, &[1]);
        Self {
            storage,
            serial: serial.as_bytes().to_vec(),
            config,
            wait: None,
            is_stalled: false,
            throttle: Arc::new(Mutex::new(Throttle::new(
                &DiskRate::default(),
                Instant::now(),
            ))),
            pause: None,
        }
    }

    /// Limits the traffic.
    pub(crate) fn limited(self, rate: &DiskRate) -> Self {
        *lock(&self.throttle) = Throttle::new(rate, Instant::now());
        self
    }

    /// Returns what limits the traffic, to be replaced at any time.
    pub(crate) fn throttle(&self) -> Arc<Mutex<Throttle>> {
        Arc::clone(&self.throttle)
    }

    /// Records whether a request found the host's disk full.
    fn note(&mut self, is_full: bool) {
        self.is_stalled = is_full;
        match (is_full, self.wait) {
            (true, None) => {
                eprintln!("{FULL}");
                self.wait = Some(FIRST_WAIT);
            }
            (true, Some(wait)) => self.wait = Some((2 * wait).min(LONGEST_WAIT)),
            (false, Some(_)) => {
                eprintln!("{ROOM}");
                self.wait = None;
            }
            (false, None) => {}
        }
    }
}

impl Device for Blk {
    fn id(&self) -> u32 {
        VIRTIO_ID_BLOCK
    }

    fn features(&self) -> u64 {
        let always = 1 << blk::VIRTIO_BLK_F_SEG_MAX
            | 1 << blk::VIRTIO_BLK_F_BLK_SIZE
            | 1 << blk::VIRTIO_BLK_F_TOPOLOGY;
        if self.storage.is_read_only() {
            always | 1 << blk::VIRTIO_BLK_F_RO
        } else {
            always
                | 1 << blk::VIRTIO_BLK_F_FLUSH
                | 1 << blk::VIRTIO_BLK_F_DISCARD
                | 1 << blk::VIRTIO_BLK_F_WRITE_ZEROES
        }
    }

    fn queue_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    fn config(&self) -> &[u8] {
        &self.config
    }

    fn is_slow(&self) -> bool {
        true
    }

    fn stalled(&mut self) -> Option<Duration> {
        let is_full = std::mem::take(&mut self.is_stalled);
        let pause = self.pause.take();
        self.wait.filter(|_| is_full).or(pause)
    }

    fn reset(&mut self) {
        self.note(false);
        self.pause = None;
    }

    fn queue(&mut self, index: usize, active: &mut Active) -> Result<(), Violation> {
        loop {
            if let Some(wait) = lock(&self.throttle).wait() {
                // The rate may have changed by then.
                self.pause = Some(wait.min(LONGEST_WAIT));
                return Ok(());
            }
            let Some(chain) = active.queues.get(index)?.pop(&active.memory)? else {
                return Ok(());
            };
            let head = chain.head;
            let room = chain.writable.len().saturating_sub(STATUS);
            let data = chain.readable.len().saturating_sub(HEADER);
            let served = serve(chain, &self.storage, &self.serial)?;
            self.note(served == Err(NoSpace));
            let Ok(written) = served else {
                // Requests behind it wait too, as for a slow disk.
                active.queues.get(index)?.undo_pop();
                return Ok(());
            };
            lock(&self.throttle).count(room as u64, data as u64);
            let queue = active.queues.get(index)?;
            queue.complete(&active.memory, head, written)?;
            // One at a time: a request may take long, and its issuer may be waiting.
            active.notify(index)?;
        }
    }
}

#[cfg(test)]
mod tests;
