//! virtio-rng: the host's random numbers.

mod device;

pub(crate) use device::Rng;
