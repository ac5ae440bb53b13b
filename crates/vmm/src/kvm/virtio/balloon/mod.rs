//! virtio-balloon: returns memory that the guest does not need to the host.

mod device;

pub(crate) use device::Balloon;
