//! What a device is to the transport.

use std::os::fd::RawFd;
use std::time::Duration;

use vmm_sys_util::epoll::EventSet;

use super::{Interrupt, Queue};
use crate::kvm::memory::GuestMemory;

/// A virtio device apart from its registers and queues.
///
/// All calls come from the thread that serves the device, but for [`Device::config`],
/// [`Device::write_config`], [`Device::finish`], [`Device::reset`] and those about a queue that
/// the driver waits for ([`Device::is_awaited`]), which are a processor's; none at the same time
/// as another.
pub(crate) trait Device: Send {
    /// The device ID, specification section 5.
    fn id(&self) -> u32;

    /// Features on offer, beyond those that belong to queues and transport.
    fn features(&self) -> u64 {
        0
    }

    /// Those of them without which a driver can't be served.
    fn required_features(&self) -> u64 {
        0
    }

    /// The greatest size of each queue; a power of two each.
    fn queue_sizes(&self) -> &[u16];

    /// The configuration space.
    fn config(&self) -> &[u8] {
        &[]
    }

    /// Whether it takes as long over a request as a disk of the host's does. Such a device
    /// has a thread of its own, so that nothing else waits for it.
    fn is_slow(&self) -> bool {
        false
    }

    /// How long to wait before its queues are looked at again, if it could not go on with what
    /// is in them; said once. For slow devices only.
    fn stalled(&mut self) -> Option<Duration> {
        None
    }

    /// Whether a processor stands still until the device has taken what the driver has put
    /// into queue `index`. Then it does so itself, and waits for no thread.
    fn is_awaited(&self, _index: usize) -> bool {
        false
    }

    /// The driver writes to the configuration space.
    fn write_config(&mut self, _offset: u64, _data: &[u8]) {}

    /// The driver is ready and has accepted these features.
    fn activate(&mut self, _features: u64) {}

    /// The driver is about to reset the device; what it has put into queues may still be
    /// looked at, if that takes no system call that a processor's thread does not make.
    fn finish(&mut self, _active: &mut Active) -> Result<(), Violation> {
        Ok(())
    }

    /// Forgets the driver.
    fn reset(&mut self) {}

    /// The driver has put something into queue `index`.
    fn queue(&mut self, index: usize, active: &mut Active) -> Result<(), Violation>;

    /// A descriptor of the host's to wait for. Unless `EDGE_TRIGGERED` is among them,
    /// [`Device::host`] is called for as long as an event holds.
    fn source(&self) -> Option<(RawFd, EventSet)> {
        None
    }

    /// What the device remembers beside its queues, in words of its own.
    fn save(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Goes on from what [`Device::save`] said of the machine that this is a copy of, with
    /// the same driver. Comes after [`Device::activate`].
    fn resume(&mut self, _saved: &[u8]) -> Result<(), postcard::Error> {
        Ok(())
    }

    /// What [`Device::source`] waits for has happened. Not called without a driver;
    /// [`Device::activate`]'s return is followed by a call, so that nothing is missed.
    fn host(&mut self, _active: &mut Active) -> Result<(), Violation> {
        Ok(())
    }
}

/// What a device has while a driver drives it.
#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) queues: Queues,
    pub(crate) memory: GuestMemory,
    pub(crate) interrupt: Interrupt,
}

impl Active {
    /// Tells the driver about used buffers of a queue, if it wants to know.
    pub(crate) fn notify(&mut self, index: usize) -> Result<(), Violation> {
        if self.queues.get(index)?.needs_notification(&self.memory)? {
            self.interrupt.used();
        }
        Ok(())
    }
}

/// The queues, of which a driver makes ready what it likes.
#[derive(Debug)]
pub(crate) struct Queues(pub(super) Vec<Option<Queue>>);

impl Queues {
    pub(crate) fn get(&mut self, index: usize) -> Result<&mut Queue, Violation> {
        let queue = self.0.get_mut(index).and_then(Option::as_mut);
        queue.ok_or(Violation::NoSuchQueue)
    }

    /// Whether the driver has made queue `index` ready.
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
