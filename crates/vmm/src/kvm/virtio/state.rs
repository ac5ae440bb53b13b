//! A device's state as its driver has set it up, to be restored in a copy of the machine.

use serde::{Deserialize, Serialize};
use virtio_queue::QueueState;

use super::mmio::{Registers, Transport};
use super::{Active, Queue, Queues};

/// A device and its registers at one moment.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct State {
    /// The device ID, to check that the device is of the same kind.
    kind: u32,
    registers: Registers,
    interrupt: u32,
    /// The queues as the driver has set them up.
    queues: Vec<Ring>,
    /// The queues' current positions, while a driver uses the device.
    active: Option<Vec<Option<Ring>>>,
    /// [`Device::save`](super::Device::save).
    device: Vec<u8>,
}

/// A queue ([`QueueState`]).
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Ring {
    max_size: u16,
    next_avail: u16,
    next_used: u16,
    event_index: bool,
    size: u16,
    ready: bool,
    descriptors: u64,
    available: u64,
    used: u64,
}

/// A state that no device of this machine has.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("its devices are not this machine's")]
pub(crate) struct Mismatch;

impl From<QueueState> for Ring {
    fn from(state: QueueState) -> Self {
        Self {
            max_size: state.max_size,
            next_avail: state.next_avail,
            next_used: state.next_used,
            event_index: state.event_idx_enabled,
            size: state.size,
            ready: state.ready,
            descriptors: state.desc_table,
            available: state.avail_ring,
            used: state.used_ring,
        }
    }
}

impl From<Ring> for QueueState {
    fn from(ring: Ring) -> Self {
        Self {
            max_size: ring.max_size,
            next_avail: ring.next_avail,
            next_used: ring.next_used,
            event_idx_enabled: ring.event_index,
            size: ring.size,
            ready: ring.ready,
            desc_table: ring.descriptors,
            avail_ring: ring.available,
            used_ring: ring.used,
        }
    }
}

impl Transport {
    /// Returns the whole state. No processor may run, and the device must have no request at work.
    pub(crate) fn save(&self) -> State {
        let rings = |active: &Active| {
            let queues = active.queues.0.iter();
            queues
                .map(|queue| queue.as_ref().map(|queue| queue.state().into()))
                .collect()
        };
        State {
            kind: self.device.id(),
            registers: self.registers.clone(),
            interrupt: self.interrupt.status(),
            queues: self
                .queues
                .iter()
                .map(|queue| queue.state().into())
                .collect(),
            active: self.active.as_ref().map(rings),
            device: self.device.save(),
        }
    }

    /// Restores the state. The interrupt controllers must be restored before.
    pub(crate) fn resume(&mut self, state: State) -> Result<(), Mismatch> {
        let is_ours = state.kind == self.device.id()
            && state.queues.len() == self.queues.len()
            && self.sizes_agree(&state.queues);
        if !is_ours {
            return Err(Mismatch);
        }
        let queues = state.queues.iter().map(|ring| {
            virtio_queue::Queue::try_from(QueueState::from(*ring)).map_err(|_| Mismatch)
        });
        self.queues = queues.collect::<Result<_, _>>()?;
        self.registers = state.registers;
        self.active = match state.active {
            None => None,
            Some(rings) => {
                if rings.len() != self.queues.len() || !self.sizes_agree(rings.iter().flatten()) {
                    return Err(Mismatch);
                }
                let queues = rings.into_iter().map(|ring| match ring {
                    None => Ok(None),
                    Some(ring) => Queue::new(ring.into(), ring.event_index, &self.memory).map(Some),
                });
                let queues = queues.collect::<Result<_, _>>().map_err(|_| Mismatch)?;
                self.device.activate(self.registers.driver_features);
                Some(Active {
                    queues: Queues(queues),
                    memory: self.memory.clone(),
                    interrupt: self.interrupt.clone(),
                })
            }
        };
        self.device.resume(&state.device).map_err(|_| Mismatch)?;
        self.interrupt.resume(state.interrupt);
        if self.active.is_some() {
            self.process_pending();
        }
        Ok(())
    }

    fn sizes_agree<'a>(&self, rings: impl IntoIterator<Item = &'a Ring>) -> bool {
        let most = self.device.queue_sizes().iter().max().copied();
        rings
            .into_iter()
            .all(|ring| ring.max_size <= most.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests;
