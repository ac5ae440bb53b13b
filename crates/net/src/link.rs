//! The descriptor that carries the guest's frames.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown,
    socketpair, sockopt,
};
use smoltcp::wire::{EthernetAddress, EthernetFrame, EthernetProtocol};

use crate::address::{Addresses, ETHERNET_HEADER};

/// Bytes that may wait in the kernel in each direction, if its limits allow: some of the
/// largest frames.
const SOCKET_BUFFER: usize = 1 << 20;

/// Bytes of a frame in which something might not be written: the longest headers.
const HEADERS: usize = 128;

/// Frames that may wait here when the kernel takes no more. Everybody asks
/// [`Link::has_room`] first, so that it is replies to single frames that make up these.
const MAX_WAITING: usize = 64;

/// One end of a pair of sockets that keep frames apart; the machine has the other.
#[derive(Debug)]
pub(crate) struct Link {
    socket: OwnedFd,
    addresses: Addresses,
    waiting: VecDeque<Vec<u8>>,
    /// The frame that is being made.
    outgoing: Vec<u8>,
}

impl Drop for Link {
    fn drop(&mut self) {
        // Closing is not enough: a child that another thread has made and that has not yet
        // executed its program holds the socket as well.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

/// What reading a frame came to.
#[derive(Debug)]
pub(crate) enum Received {
    /// A frame of so many bytes, as it came.
    Frame(usize),
    /// None for now.
    Nothing,
    /// The machine has closed its end.
    End,
}

/// The two ends of a link; both keep frames apart and neither blocks.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    for end in [&ours, &theirs] {
        sockopt::set_socket_send_buffer_size(end, SOCKET_BUFFER)?;
    }
    Ok((ours, theirs))
}

impl Link {
    pub(crate) fn new(socket: OwnedFd, addresses: Addresses) -> Self {
        let mut link = Self {
            socket,
            addresses,
            waiting: VecDeque::new(),
            outgoing: Vec::new(),
        };
        link.outgoing = link.room();
        link
    }

    /// Room for any frame. A longer one is cut, and then no frame: nobody may send one.
    pub(crate) fn room(&self) -> Vec<u8> {
        vec![0; ETHERNET_HEADER + usize::from(self.addresses.mtu)]
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    pub(crate) fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// The next frame from the guest.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Received> {
        loop {
            return match recv(&self.socket, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((0, _)) => Ok(Received::End),
                Ok((length, _)) => Ok(Received::Frame(length)),
                // Told once, when the other end closed without reading everything of ours;
                // what it sent before can still be read.
                Err(Errno::INTR | Errno::CONNRESET) => continue,
                Err(Errno::AGAIN) => Ok(Received::Nothing),
                Err(Errno::PIPE) => Ok(Received::End),
                Err(errno) => Err(errno.into()),
            };
        }
    }

    /// Whether the machine takes frames. Who has more of them waits until it does.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Sends a frame to the guest: `fill` writes the `length` bytes after the header, but for
    /// zeros in packets' headers. Drops it if too many wait.
    pub(crate) fn send<R>(
        &mut self,
        protocol: EthernetProtocol,
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> R,
    ) -> R {
        let mut outgoing = std::mem::take(&mut self.outgoing);
        let end = ETHERNET_HEADER + length;
        if outgoing.len() < end {
            outgoing.resize(end, 0); // Not reached: everything keeps to the MTU.
        }
        let bytes = outgoing.get_mut(..end).unwrap_or_default();
        // The rest is all written; to clear it first would be as much work again.
        bytes
            .get_mut(..end.min(HEADERS))
            .unwrap_or_default()
            .fill(0);
        let mut frame = EthernetFrame::new_unchecked(&mut *bytes);
        frame.set_src_addr(EthernetAddress(Addresses::GATEWAY_MAC));
        frame.set_dst_addr(EthernetAddress(self.addresses.guest_mac));
        frame.set_ethertype(protocol);
        let result = fill(frame.payload_mut());
        let blocked = !self.has_room() || self.put(bytes) == Err(Errno::AGAIN);
        if blocked && self.waiting.len() < MAX_WAITING {
            self.waiting.push_back(bytes.to_vec());
        }
        self.outgoing = outgoing;
        result
    }

    /// Sends what waits, as far as the machine takes it.
    pub(crate) fn flush(&mut self) {
        while let Some(frame) = self.waiting.pop_front() {
            if self.put(&frame) == Err(Errno::AGAIN) {
                self.waiting.push_front(frame);
                break;
            }
        }
    }

    /// Errors but a full queue are told by the next [`Link::receive`].
    fn put(&self, frame: &[u8]) -> Result<(), Errno> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match send(&self.socket, frame, flags) {
            Ok(_) => Ok(()),
            Err(Errno::INTR | Errno::NOBUFS) => Err(Errno::AGAIN),
            Err(errno) => Err(errno),
        }
    }
}
