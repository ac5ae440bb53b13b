//! virtio-blk: files as disks.

mod device;
mod request;
mod storage;

pub(crate) use device::Blk;
pub(crate) use storage::Storage;
