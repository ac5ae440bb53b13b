//! Queues that a driver has made ready.

use virtio_queue::{DescriptorChain, QueueOwnedT, QueueState, QueueT};
use vm_memory::GuestMemoryMmap;

use super::{Chain, Violation};
use crate::kvm::memory::GuestMemory;

/// A ready queue. Its rings lie in RAM: their addresses were checked when the driver made it ready,
/// and every access checks again.
#[derive(Debug)]
pub(crate) struct Queue(virtio_queue::Queue);

impl Queue {
    /// Creates the queue that a driver has set up, if its state is valid.
    pub(super) fn new(
        state: QueueState,
        event_index: bool,
        memory: &GuestMemory,
    ) -> Result<Self, Violation> {
        let mut queue = virtio_queue::Queue::try_from(state).map_err(|_| Violation::BadQueue)?;
        queue.set_event_idx(event_index);
        if queue.is_valid(memory.ram()) {
            Ok(Self(queue))
        } else {
            Err(Violation::BadQueue)
        }
    }

    /// Returns the queue's state, for a copy.
    pub(super) fn state(&self) -> QueueState {
        self.0.state()
    }

    /// Removes and returns the next chain that the driver has added. If there is none, requests a
    /// notification of the next one from the driver.
    pub(crate) fn pop<'m>(
        &mut self,
        memory: &'m GuestMemory,
    ) -> Result<Option<Chain<'m>>, Violation> {
        loop {
            if let Some(descriptors) = self.next(memory.ram())? {
                return Chain::new(descriptors, memory).map(Some);
            }
            let more = self
                .0
                .enable_notification(memory.ram())
                .map_err(|_| Violation::BadQueue)?;
            if !more {
                return Ok(None);
            }
        }
    }

    fn next<'m>(
        &mut self,
        ram: &'m GuestMemoryMmap,
    ) -> Result<Option<DescriptorChain<&'m GuestMemoryMmap>>, Violation> {
        let mut chains = self.0.iter(ram).map_err(|_| Violation::BadQueue)?;
        Ok(chains.next())
    }

    /// Undoes the last [`Queue::pop`]: its chain is the next one again.
    pub(crate) fn undo_pop(&mut self) {
        self.0.go_to_previous_position();
    }

    /// Completes a chain with `written` bytes in its writable part.
    pub(crate) fn complete(
        &mut self,
        memory: &GuestMemory,
        head: u16,
        written: usize,
    ) -> Result<(), Violation> {
        let written = u32::try_from(written).unwrap_or(u32::MAX);
        self.0
            .add_used(memory.ram(), head, written)
            .map_err(|_| Violation::BadQueue)
    }

    pub(super) fn needs_notification(&mut self, memory: &GuestMemory) -> Result<bool, Violation> {
        self.0
            .needs_notification(memory.ram())
            .map_err(|_| Violation::BadQueue)
    }
}
