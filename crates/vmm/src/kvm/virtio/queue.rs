//! Queues that a driver has made ready.

use virtio_queue::{DescriptorChain, QueueOwnedT, QueueState, QueueT};
use vm_memory::GuestMemoryMmap;

use super::chain::Places;
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
            if !self.ask(memory)? {
                return Ok(None);
            }
        }
    }

    /// Requests a notification of the next chain. Returns whether there is one already.
    fn ask(&mut self, memory: &GuestMemory) -> Result<bool, Violation> {
        let asked = self.0.enable_notification(memory.ram());
        asked.map_err(|_| Violation::BadQueue)
    }

    fn next<'m>(
        &mut self,
        ram: &'m GuestMemoryMmap,
    ) -> Result<Option<DescriptorChain<&'m GuestMemoryMmap>>, Violation> {
        let mut chains = self.0.iter(ram).map_err(|_| Violation::BadQueue)?;
        Ok(chains.next())
    }

    /// As [`Queue::pop`], but also returns where the buffers are that the device writes, for a request
    /// that is completed later.
    pub(crate) fn pop_to_keep<'m>(
        &mut self,
        memory: &'m GuestMemory,
    ) -> Result<Option<(Chain<'m>, Places)>, Violation> {
        loop {
            if let Some(descriptors) = self.next(memory.ram())? {
                let places = Places::of(&descriptors);
                let chain = Chain::new(descriptors, memory)?;
                return Ok(Some((chain, places)));
            }
            if !self.ask(memory)? {
                return Ok(None);
            }
        }
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
