//! virtio-net: ethernet frames to and from the other end of a socket.

mod device;

pub(crate) use device::Net;
