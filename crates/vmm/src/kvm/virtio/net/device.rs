//! The network device (specification section 5.1): one pair of queues, and a socket that
//! keeps frames apart.
//!
//! Frames never leave the host's memory, so no checksums are needed to detect damage: both sides
//! leave them out. The host's information about a frame comes with it, as the header that the
//! driver gets; the driver's headers are not passed on.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use virtio_bindings::virtio_ids::VIRTIO_ID_NET;
use vmm_sys_util::epoll::EventSet;

use crate::kvm::virtio::{Active, Device, Violation};

/// Features (section 5.1.3): the driver may leave checksums to the device, and the device to the
/// driver; the configuration space has the largest packet and the address.
const CHECKSUM: u64 = 1 << 0;
const GUEST_CHECKSUM: u64 = 1 << 1;
const MTU: u64 = 1 << 3;
const ADDRESS: u64 = 1 << 5;

/// The queues, from the driver's view.
const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;
const QUEUE_SIZES: [u16; 2] = [256, 256];

/// The header of every frame (section 5.1.6): flags, kind of segmentation, four numbers for that
/// and for checksums, number of buffers.
const HEADER: usize = 12;

/// The configuration space: address, status, number of queue pairs, MTU.
const CONFIG: usize = 12;

/// The device. Either side waits for the other: frames that the host does not take stay in the
/// driver's queue, frames that the driver has no room for stay in the socket.
#[derive(Debug)]
pub(crate) struct Net {
    link: OwnedFd,
    config: [u8; CONFIG],
}

impl Net {
    /// Creates an interface with an ethernet address and a maximum IP packet size in bytes. `link`
    /// is one of a pair of sockets that preserve message boundaries and do not block; messages for
    /// the driver begin with a header.
    pub(crate) fn new(link: OwnedFd, address: [u8; 6], mtu: u16) -> Self {
        let mut config = [0; CONFIG];
        if let Some((place, rest)) = config.split_first_chunk_mut() {
            *place = address;
            if let Some(place) = rest.last_chunk_mut() {
                *place = mtu.to_le_bytes();
            }
        }
        Self { link, config }
    }

    /// Moves frames from the host to the guest.
    fn receive(&mut self, active: &mut Active) -> Result<(), Violation> {
        if !active.queues.has(RECEIVE) {
            return Ok(());
        }
        let mut used = false;
        loop {
            let queue = active.queues.get(RECEIVE)?;
            let Some(chain) = queue.pop(&active.memory)? else {
                break;
            };
            if chain.writable.len() <= HEADER {
                return Err(Violation::BadBuffer);
            }
            // A frame that is longer than the buffer is cut: the driver chose the buffer.
            match chain.writable.receive(self.link.as_raw_fd()) {
                Ok(count) if count > 0 => {
                    queue.complete(&active.memory, chain.head, count)?;
                    used = true;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => queue.undo_pop(),
                // No frame for now; or the host's end is closed.
                Ok(_) | Err(_) => {
                    queue.undo_pop();
                    break;
                }
            }
        }
        if used { active.notify(RECEIVE) } else { Ok(()) }
    }

    /// Moves frames from the guest to the host.
    fn transmit(&mut self, active: &mut Active) -> Result<(), Violation> {
        if !active.queues.has(TRANSMIT) {
            return Ok(());
        }
        let mut used = false;
        loop {
            let queue = active.queues.get(TRANSMIT)?;
            let Some(chain) = queue.pop(&active.memory)? else {
                break;
            };
            // An empty message would not be a frame but the end of the stream.
            let result = if chain.readable.len() > HEADER {
                chain.readable.send(self.link.as_raw_fd(), HEADER)
            } else {
                Ok(0)
            };
            match result {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => queue.undo_pop(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    queue.undo_pop();
                    break;
                }
                // The frame is sent; or dropped, because it is too long or the host's end is
                // closed.
                Ok(_) | Err(_) => {
                    queue.complete(&active.memory, chain.head, 0)?;
                    used = true;
                }
            }
        }
        if used {
            active.notify(TRANSMIT)
        } else {
            Ok(())
        }
    }
}

impl Device for Net {
    fn id(&self) -> u32 {
        VIRTIO_ID_NET
    }

    fn features(&self) -> u64 {
        CHECKSUM | GUEST_CHECKSUM | MTU | ADDRESS
    }

    /// Frames' headers may leave checksums to the driver.
    fn required_features(&self) -> u64 {
        GUEST_CHECKSUM
    }

    fn queue_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    fn config(&self) -> &[u8] {
        &self.config
    }

    fn queue(&mut self, index: usize, active: &mut Active) -> Result<(), Violation> {
        match index {
            RECEIVE => self.receive(active),
            _ => self.transmit(active),
        }
    }

    fn source(&self) -> Option<(RawFd, EventSet)> {
        let events = EventSet::IN | EventSet::OUT | EventSet::EDGE_TRIGGERED;
        Some((self.link.as_raw_fd(), events))
    }

    fn host(&mut self, active: &mut Active) -> Result<(), Violation> {
        self.receive(active)?;
        self.transmit(active)
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};

    use super::*;
    use crate::kvm::virtio::driver::{Driver, PMEM, READ, WRITE};

    const ADDRESS: [u8; 6] = [2, 1, 2, 3, 4, 5];

    /// Returns a device's driver and the other end of its link.
    fn driver() -> (Driver, OwnedFd) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (link, other) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let device = Net::new(link, ADDRESS, 65520);
        (Driver::new(Box::new(device)), other)
    }

    fn read(socket: &OwnedFd) -> Result<Vec<u8>, rustix::io::Errno> {
        let mut frame = vec![0; 1 << 17];
        let length = rustix::io::read(socket, &mut frame)?;
        frame.truncate(length);
        Ok(frame)
    }

    #[test]
    fn the_driver_sees_its_address_and_mtu() {
        let (driver, _link) = driver();
        assert_eq!(driver.config(0, 6), ADDRESS);
        assert_eq!(driver.config(10, 2), 65520_u16.to_le_bytes());
    }

    #[test]
    fn frames_go_out_without_their_headers() {
        let (mut driver, link) = driver();
        // Headers from the driver are ignored.
        let header = driver.buffer(&[0xff; HEADER]);
        let frame = driver.buffer(b"a frame in two pieces");
        let head = driver.add(
            TRANSMIT,
            &[
                (header, 12, READ),
                (frame, 10, READ),
                (frame + 10, 11, READ),
            ],
        );
        driver.run(TRANSMIT);
        assert_eq!(driver.used(TRANSMIT), [(head, 0)]);
        assert_eq!(read(&link).unwrap(), b"a frame in two pieces");
        // Header and frame in one piece, and no frame at all.
        driver.add(TRANSMIT, &[(header, 12 + 7, READ)]);
        driver.add(TRANSMIT, &[(header, 12, READ)]);
        driver.add(TRANSMIT, &[(header, 1, READ)]);
        driver.run(TRANSMIT);
        assert_eq!(driver.used(TRANSMIT).len(), 3);
        assert_eq!(read(&link).unwrap().len(), 7);
        assert_eq!(read(&link), Err(rustix::io::Errno::AGAIN));
    }

    #[test]
    fn frames_come_in_with_their_headers_and_wait_for_room() {
        let (mut driver, link) = driver();
        let header = [1, 0, 0, 0, 0, 0, 34, 0, 16, 0, 1, 0];
        for frame in [&b"first"[..], b"second", b"third, which is cut"] {
            send(&link, &[&header, frame].concat(), SendFlags::empty()).unwrap();
        }
        driver.host();
        assert_eq!(driver.used(RECEIVE), []);
        let buffer = driver.buffer(&[0xff; 64]);
        let head = driver.add(RECEIVE, &[(buffer, 8, WRITE), (buffer + 8, 56, WRITE)]);
        driver.run(RECEIVE);
        assert_eq!(driver.used(RECEIVE), [(head, 12 + 5)]);
        assert_eq!(driver.read(buffer, HEADER), header);
        assert_eq!(driver.read(buffer + 12, 6), b"first\xff");
        let heads = [64, 12 + 5].map(|room| driver.add(RECEIVE, &[(buffer, room, WRITE)]));
        driver.run(RECEIVE);
        assert_eq!(driver.used(RECEIVE), [(heads[0], 18), (heads[1], 17)]);
        assert_eq!(driver.read(buffer + 12, 5), b"third");
    }

    #[test]
    fn a_driver_that_wants_checksums_is_refused() {
        let (driver, _link) = driver();
        for (refused, status) in [(GUEST_CHECKSUM, 3), (CHECKSUM | MTU, 11)] {
            driver.write(0x70, 0);
            driver.write(0x70, 3);
            for half in 0..2 {
                driver.write(0x14, half);
                let offered = driver.register(0x10);
                driver.write(0x24, half);
                let refused = if half == 0 { refused as u32 } else { 0 };
                driver.write(0x20, offered & !refused);
            }
            driver.write(0x70, 11);
            assert_eq!(driver.register(0x70), status, "{refused:#x}");
        }
    }

    #[test]
    fn a_host_that_takes_nothing_stops_the_driver_until_it_does() {
        let (mut driver, link) = driver();
        let frame = driver.buffer(&[0; 12 + 1500]);
        let mut sent = 0;
        loop {
            driver.add(TRANSMIT, &[(frame, 1512, READ)]);
            driver.run(TRANSMIT);
            if driver.used(TRANSMIT).is_empty() {
                break;
            }
            sent += 1;
        }
        for _ in 0..sent {
            assert_eq!(read(&link).unwrap().len(), 1500);
        }
        driver.host();
        assert_eq!(driver.used(TRANSMIT).len(), 1);
        assert_eq!(read(&link).unwrap().len(), 1500);
    }

    #[test]
    fn frames_without_a_peer_are_dropped() {
        let (mut driver, link) = driver();
        drop(link);
        let buffer = driver.buffer(&[0; 100]);
        driver.add(TRANSMIT, &[(buffer, 100, READ)]);
        driver.run(TRANSMIT);
        assert_eq!(driver.used(TRANSMIT).len(), 1);
        driver.add(RECEIVE, &[(buffer, 100, WRITE)]);
        driver.run(RECEIVE);
        assert_eq!(driver.used(RECEIVE), []);
        assert!(!driver.is_stopped());
    }

    #[test]
    fn impossible_buffers_stop_the_device() {
        for (queue, chain) in [
            (RECEIVE, (8192, HEADER as u32, WRITE)),
            (RECEIVE, (8192, 100, READ)),
            (RECEIVE, (PMEM, 100, WRITE)),
            (TRANSMIT, (u64::MAX - 10, 100, READ)),
        ] {
            let (mut driver, link) = driver();
            send(&link, b"frame", SendFlags::empty()).unwrap();
            driver.add(queue, &[chain]);
            driver.run(queue);
            assert!(driver.is_stopped(), "{chain:?}");
        }
    }
}
