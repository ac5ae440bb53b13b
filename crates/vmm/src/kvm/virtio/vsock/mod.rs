//! virtio-vsock: stream sockets between the guest's programs and the host's, without a
//! network.
//!
//! On the host every connection is a Unix stream socket, as users of Firecracker know it.
//! Who wants to reach port P of the guest connects to one path, says `CONNECT P\n` and is
//! told `OK Q\n`, where Q is the connection's other port, or sees the end of the stream if
//! the guest has nobody at P. Who wants to be reached at port P of the host, which has
//! address 2, listens at that path with `_P` behind it.
//!
//! The worker has no paths: it is given the listener ([`host`]), and its owner connects
//! for it. A connection ([`connection`]) is as its ports name it; packets ([`header`]) are
//! a guest's, who may be hostile.

mod connection;
mod device;
mod header;
mod host;

pub(crate) use device::Vsock;
#[cfg(feature = "fuzzing")]
pub(crate) use device::hostile;
#[cfg(test)]
pub(crate) use host::Host;
