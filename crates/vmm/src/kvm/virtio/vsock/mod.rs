//! virtio-vsock: stream sockets between the guest's programs and the host's, without a
//! network.
//!
//! On the host every connection is a Unix stream socket, as in Firecracker. To reach port P of the
//! guest, a program connects to one path, sends `CONNECT P\n` and receives `OK Q\n`, where Q is the
//! connection's other port; if no program of the guest listens at P, the stream ends. To be reached
//! at port P of the host, which has address 2, a program listens at that path with `_P` appended.
//!
//! The worker has no paths: it is given the listener ([`host`]), and its owner connects for it. A
//! connection ([`connection`]) is identified by its ports. Packets ([`header`]) come from a guest,
//! which may be hostile.

mod connection;
mod device;
mod header;
mod host;

pub(crate) use device::Vsock;
#[cfg(feature = "fuzzing")]
pub(crate) use device::hostile;
#[cfg(test)]
pub(crate) use host::Host;
