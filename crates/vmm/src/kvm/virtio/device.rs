//! The interface between devices and the transport.

use std::os::fd::RawFd;
use std::time::Duration;

use vmm_sys_util::epoll::EventSet;

use super::{Interrupt, Queue};
use crate::kvm::memory::GuestMemory;

/// A virtio device, without its registers and queues.
///
/// All calls come from the thread that serves the device, except for [`Device::config`],
/// [`Device::write_config`], [`Device::finish`], [`Device::reset`] and those about a queue that the
/// driver waits for ([`Device::is_awaited`]), which a processor's thread makes. No two calls run at
/// the same time.
pub(crate) trait Device: Send {
    /// Returns the device ID, specification section 5.
    fn id(&self) -> u32;

    /// Returns the features on offer, beyond those of queues and transport.
    fn features(&self) -> u64 {
        0
    }

    /// Returns the features without which a driver can't be served.
    fn required_features(&self) -> u64 {
        0
    }

    /// Returns the maximum size of each queue; a power of two each.
    fn queue_sizes(&self) -> &[u16];

    /// Returns the configuration space.
    fn config(&self) -> &[u8] {
        &[]
    }

    /// Returns whether a request may take as long as one to a disk of the host. Such a device has a
    /// thread of its own, so that no other device waits for it.
    fn is_slow(&self) -> bool {
        false
    }

    /// Returns, once, how long to wait before its queues are processed again, if it could not
    /// continue with their contents. For slow devices only.
    fn stalled(&mut self) -> Option<Duration> {
        None
    }

    /// Returns whether a virtual processor waits until the device has taken what the driver put
    /// into queue `index`. The processor's thread then processes the queue itself, and waits for no
    /// other thread.
    fn is_awaited(&self, _index: usize) -> bool {
        false
    }

    /// Handles the driver's write to the configuration space.
    fn write_config(&mut self, _offset: u64, _data: &[u8]) {}

    /// Handles that the driver is ready and has accepted these features.
    fn activate(&mut self, _features: u64) {}

    /// Called before the driver resets the device. May still process the queues, if that takes only
    /// system calls that a processor's thread may make.
    fn finish(&mut self, _active: &mut Active) -> Result<(), Violation> {
        Ok(())
    }

    /// Forgets the driver.
    fn reset(&mut self) {}

    /// Processes queue `index`, to which the driver has added a chain.
    fn queue(&mut self, index: usize, active: &mut Active) -> Result<(), Violation>;

    /// Returns a descriptor of the host to wait for. Unless `EDGE_TRIGGERED` is among the events,
    /// [`Device::host`] is called for as long as an event holds.
    fn source(&self) -> Option<(RawFd, EventSet)> {
        None
    }

    /// Returns the device's state beside its queues, in a format of its own.
    fn save(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Restores what [`Device::save`] returned in the saved machine, with the same driver. Called
    /// after [`Device::activate`].
    fn resume(&mut self, _saved: &[u8]) -> Result<(), postcard::Error> {
        Ok(())
    }

    /// Handles an event of [`Device::source`]. Not called without a driver. A call follows the
    /// return of [`Device::activate`], so that no event is missed.
    fn host(&mut self, _active: &mut Active) -> Result<(), Violation> {
        Ok(())
    }
}

/// A device's queues and memory while a driver uses it.
#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) queues: Queues,
    pub(crate) memory: GuestMemory,
    pub(crate) interrupt: Interrupt,
}

impl Active {
    /// Notifies the driver of a queue's used buffers, if it requested that.
    pub(crate) fn notify(&mut self, index: usize) -> Result<(), Violation> {
        if self.queues.get(index)?.needs_notification(&self.memory)? {
            self.interrupt.used();
        }
        Ok(())
    }
}

/// The queues; a driver need not make all of them ready.
#[derive(Debug)]
pub(crate) struct Queues(pub(super) Vec<Option<Queue>>);

impl Queues {
    pub(crate) fn get(&mut self, index: usize) -> Result<&mut Queue, Violation> {
        let queue = self.0.get_mut(index).and_then(Option::as_mut);
        queue.ok_or(Violation::NoSuchQueue)
    }

    /// Returns whether the driver has made queue `index` ready.
    pub(crate) fn has(&self, index: usize) -> bool {
        self.0.get(index).is_some_and(Option::is_some)
    }
}

/// The driver broke the protocol: the device needs a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Violation {
    #[error("a queue that does not exist or is not ready")]
    NoSuchQueue,
    #[error("a queue outside of RAM or with impossible indices")]
    BadQueue,
    #[error("a buffer outside of memory, or one to write to outside of RAM")]
    BadBuffer,
    #[error("a chain of too many buffers, or with one to read behind one to write")]
    BadChain,
}
