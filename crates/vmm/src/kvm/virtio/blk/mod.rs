//! virtio-blk: files as disks.

mod device;
mod request;
mod storage;
mod throttle;

pub(crate) use device::Blk;
pub(crate) use storage::Storage;
pub(crate) use throttle::Throttle;
