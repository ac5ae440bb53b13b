//! Virtio devices, as the Virtio 1.2 specification has them, over MMIO.
//!
//! The transport ([`mmio`]) is apart from the devices, of which each has a folder, and
//! queues ([`queue`], [`chain`]) are apart from what devices remember. Everything that
//! arrives through them is a guest's, who may be hostile: a device does what the driver
//! asks within the driver's own memory, or stops ([`Violation`]) until it is reset.

pub(crate) mod balloon;
pub(crate) mod blk;
pub(crate) mod chain;
pub(crate) mod console;
mod device;
mod interrupt;
pub(crate) mod mmio;
pub(crate) mod net;
pub(crate) mod pmem;
mod queue;
pub(crate) mod rng;
pub(crate) mod state;
pub(crate) mod vsock;

#[cfg(any(test, feature = "fuzzing"))]
#[cfg_attr(
    not(test),
    allow(dead_code, reason = "tests use more of it than fuzzing")
)]
pub(crate) mod driver;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod hostile;

pub(crate) use chain::Chain;
pub(crate) use device::{Active, Device, Queues, Violation};
pub(crate) use interrupt::Interrupt;
pub(crate) use queue::Queue;
