//! A folder of the host (virtio-fs).

mod device;

pub(crate) use device::Fs;
