//! The socket that carries the guest's frames.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use micabox_rate::Bucket;
use micabox_spec::network::Rate;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown,
    socketpair, sockopt,
};
use smoltcp::wire::{EthernetAddress, EthernetFrame, EthernetProtocol};

use crate::address::{Addresses, ETHERNET_HEADER};

/// Bytes of the header before a frame (`struct virtio_net_hdr_v1`, Virtio 1.2, section 5.1.6). It
/// describes the work left to the driver: flags, kind of segmentation, header length, segment size,
/// where a checksum begins and where it goes, number of buffers.
const HEADER: usize = 12;

/// The header of a frame whose checksums are right (`VIRTIO_NET_HDR_F_DATA_VALID`).
const WHOLE: [u8; HEADER] = [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0];

/// The header of a frame whose TCP checksum is left to the driver (`VIRTIO_NET_HDR_F_NEEDS_CSUM`),
/// behind an IPv4 header without options: it covers the bytes from byte 34 of the frame, and goes
/// to byte 16 from there.
const UNSUMMED: [u8; HEADER] = [1, 0, 0, 0, 0, 0, 34, 0, 16, 0, 1, 0];

/// Bytes that may wait in the kernel in each direction, if its limits allow: some of the largest
/// frames.
const SOCKET_BUFFER: usize = 1 << 20;

/// Bytes at a frame's beginning that may contain fields not written: the longest headers.
const HEADERS: usize = 128;

/// Maximum number of frames that wait here when the socket is full. Bulk senders check
/// [`Link::has_room`] first, so only replies to single frames wait here, of which one batch of events
/// has fewer.
const MAX_WAITING: usize = 256;

/// Bytes of frames since the network's start.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// From the guest.
    pub(crate) sent: AtomicU64,
    /// To the guest.
    pub(crate) received: AtomicU64,
}

/// The network's end of a pair of sockets that preserve frame boundaries; the machine has the
/// other.
#[derive(Debug)]
pub(crate) struct Link {
    socket: OwnedFd,
    addresses: Addresses,
    /// Whether frames for the guest have a [`HEADER`].
    has_header: bool,
    waiting: VecDeque<Vec<u8>>,
    /// The buffer for the frame that is being made.
    outgoing: Vec<u8>,
    counters: Arc<Counters>,
    /// What limits frames to the guest, and how long they wait.
    to_guest: Limit,
    /// What limits frames from the guest, and how long they wait.
    from_guest: Limit,
    /// The time of the batch of events that is being handled.
    now: Instant,
}

/// The limit of one direction.
#[derive(Debug, Default)]
struct Limit {
    bucket: Option<Bucket>,
    /// From the last [`Link::advance`] on.
    wait: Option<Duration>,
}

impl Limit {
    fn new(rate: Option<u64>, now: Instant) -> Self {
        Self {
            bucket: rate.map(|rate| Bucket::new(rate, now)),
            wait: None,
        }
    }

    fn advance(&mut self, now: Instant) {
        self.wait = self.bucket.as_mut().and_then(|bucket| bucket.wait(now));
    }

    /// Counts a frame at the time `now`.
    fn count(&mut self, length: usize, now: Instant) {
        if let Some(bucket) = &mut self.bucket {
            bucket.take(length as u64);
            self.wait = bucket.wait(now);
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Closing is not enough: a child that another thread has forked and that has not yet
        // executed its program holds the socket as well.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

/// The result of reading a frame.
#[derive(Debug)]
pub(crate) enum Received {
    /// A frame of so many bytes.
    Frame(usize),
    /// No frame for now.
    Nothing,
    /// The machine has closed its end.
    End,
}

/// Creates the two ends of a link, which preserve frame boundaries and do not block.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    for end in [&ours, &theirs] {
        sockopt::set_socket_send_buffer_size(end, SOCKET_BUFFER)?;
    }
    Ok((ours, theirs))
}

impl Link {
    pub(crate) fn new(socket: OwnedFd, addresses: Addresses, has_header: bool) -> Self {
        Self {
            socket,
            addresses,
            has_header,
            waiting: VecDeque::new(),
            outgoing: Vec::new(),
            counters: Arc::default(),
            to_guest: Limit::default(),
            from_guest: Limit::default(),
            now: Instant::now(),
        }
    }

    /// Limits the traffic from `now` on, in place of all earlier limits.
    pub(crate) fn limit(&mut self, rate: Rate, now: Instant) {
        self.to_guest = Limit::new(rate.incoming, now);
        self.from_guest = Limit::new(rate.outgoing, now);
        self.now = now;
    }

    /// Moves the time on.
    pub(crate) fn advance(&mut self, now: Instant) {
        self.now = now;
        self.to_guest.advance(now);
        self.from_guest.advance(now);
    }

    /// Returns the time until frames to the guest pass again that the rate holds back, and frames
    /// from it if there are any.
    pub(crate) fn held_for(&self, has_frames: bool) -> Option<Duration> {
        let from_guest = self.from_guest.wait.filter(|_| has_frames);
        self.to_guest.wait.into_iter().chain(from_guest).min()
    }

    /// Whether frames may be read from the guest. Not while the link is full: most frames cause
    /// replies.
    pub(crate) fn is_open(&self) -> bool {
        self.waiting.is_empty() && self.from_guest.wait.is_none()
    }

    /// Counts a frame that was read.
    pub(crate) fn received(&mut self, length: usize) {
        self.from_guest.count(length, self.now);
    }

    /// Returns the counters, which the link updates.
    pub(crate) fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Returns a buffer for the longest valid frame. A longer one is truncated, and then discarded
    /// as invalid.
    pub(crate) fn room(&self) -> Vec<u8> {
        vec![0; ETHERNET_HEADER + usize::from(self.addresses.mtu)]
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    pub(crate) fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Reads the next frame from the guest.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Received> {
        loop {
            return match recv(&self.socket, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((0, _)) => Ok(Received::End),
                Ok((length, _)) => {
                    self.counters
                        .sent
                        .fetch_add(length as u64, Ordering::Relaxed);
                    Ok(Received::Frame(length))
                }
                // Reported once, when the other end closed without reading all of our frames; the
                // frames that it sent before can still be read.
                Err(Errno::INTR | Errno::CONNRESET) => continue,
                Err(Errno::AGAIN) => Ok(Received::Nothing),
                Err(Errno::PIPE) => Ok(Received::End),
                Err(errno) => Err(errno.into()),
            };
        }
    }

    /// Whether the link accepts frames. A sender with more of them waits until it does.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.is_empty() && self.to_guest.wait.is_none()
    }

    /// Whether TCP checksums are left to the guest, as [`Link::send_tcp`] describes.
    pub(crate) fn leaves_sums(&self) -> bool {
        self.has_header
    }

    /// Sends a frame to the guest. `fill` writes the `length` bytes after the ethernet header; the
    /// bytes of packet headers are zero before. Drops the frame if too many wait.
    pub(crate) fn send<R>(
        &mut self,
        protocol: EthernetProtocol,
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> R,
    ) -> R {
        self.send_behind(WHOLE, protocol, length, fill)
    }

    /// Sends a frame with a TCP segment in an IPv4 packet without options. If the link leaves
    /// checksums to the guest, the segment's checksum must be that of the pseudo-header.
    pub(crate) fn send_tcp<R>(&mut self, length: usize, fill: impl FnOnce(&mut [u8]) -> R) -> R {
        self.send_behind(UNSUMMED, EthernetProtocol::Ipv4, length, fill)
    }

    fn send_behind<R>(
        &mut self,
        header: [u8; HEADER],
        protocol: EthernetProtocol,
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> R,
    ) -> R {
        let mut outgoing = std::mem::take(&mut self.outgoing);
        let end = HEADER + ETHERNET_HEADER + length;
        if outgoing.len() < end {
            outgoing.resize(end, 0);
        }
        let (place, rest) = outgoing.split_at_mut(HEADER);
        place.copy_from_slice(&header);
        let frame = rest.get_mut(..ETHERNET_HEADER + length).unwrap_or_default();
        // Everything after the headers gets written; clearing it first would be as much work again.
        let headers = frame.len().min(HEADERS);
        frame.get_mut(..headers).unwrap_or_default().fill(0);
        let mut frame = EthernetFrame::new_unchecked(frame);
        frame.set_src_addr(EthernetAddress(Addresses::GATEWAY_MAC));
        frame.set_dst_addr(EthernetAddress(self.addresses.guest_mac));
        frame.set_ethertype(protocol);
        let result = fill(frame.payload_mut());
        let start = if self.has_header { 0 } else { HEADER };
        let message = outgoing.get(start..end).unwrap_or_default();
        let blocked = !self.waiting.is_empty() || self.put(message) == Err(Errno::AGAIN);
        self.to_guest.count(length, self.now);
        if blocked && self.waiting.len() < MAX_WAITING {
            self.waiting.push_back(message.to_vec());
        }
        self.outgoing = outgoing;
        result
    }

    /// Sends the waiting frames, as far as the socket accepts them.
    pub(crate) fn flush(&mut self) {
        while let Some(frame) = self.waiting.pop_front() {
            if self.put(&frame) == Err(Errno::AGAIN) {
                self.waiting.push_front(frame);
                break;
            }
        }
    }

    /// Sends a frame. Errors other than a full socket are reported by the next [`Link::receive`].
    fn put(&self, frame: &[u8]) -> Result<(), Errno> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match send(&self.socket, frame, flags) {
            Ok(_) => {
                let header = if self.has_header { HEADER } else { 0 };
                let length = frame.len().saturating_sub(header) as u64;
                self.counters.received.fetch_add(length, Ordering::Relaxed);
                Ok(())
            }
            Err(Errno::INTR | Errno::NOBUFS) => Err(Errno::AGAIN),
            Err(errno) => Err(errno),
        }
    }
}
