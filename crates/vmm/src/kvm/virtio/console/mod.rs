//! virtio-console: the byte stream to the guest's agent.

mod control;
mod device;

pub(crate) use device::Console;
