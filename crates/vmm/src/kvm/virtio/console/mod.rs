//! virtio-console: the byte stream to the guest's agent.

mod control;
mod device;
mod state;

pub(crate) use device::Console;
