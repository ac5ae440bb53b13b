//! virtio-balloon: memory that the guest does not need goes back to the host.

mod device;

pub(crate) use device::Balloon;
