//! Virtio devices according to the Virtio 1.2 specification, over MMIO.
//!
//! The transport ([`mmio`]) is separate from the devices, each of which has a folder, and queues
//! ([`queue`], [`chain`]) are separate from devices' state. All data that arrives through them
//! comes from a guest, which may be hostile: a device serves the driver's requests within the
//! driver's own memory, or stops ([`Violation`]) until it is reset.

pub(crate) mod balloon;
pub(crate) mod blk;
pub(crate) mod chain;
pub(crate) mod console;
mod device;
pub(crate) mod fs;
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
