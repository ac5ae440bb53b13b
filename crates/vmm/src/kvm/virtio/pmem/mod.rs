//! virtio-pmem: a region of the guest's memory that the host's files are mapped in.

mod device;

pub(crate) use device::Pmem;
