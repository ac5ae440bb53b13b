//! A guest's request for a connection, while the host's side has not answered.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{TcpControl, TcpPacket, TcpRepr};

use crate::packet::Packet;

/// How long a request is kept. A guest that still wants its connection repeats the request after
/// one second (RFC 6298, section 2.1) and then after at most twice the time that it waited before
/// (section 5.5). It gives up silently. These values are a little larger, for slow guests.
const AT_FIRST: Duration = Duration::from_secs(4);
const BACK_OFF: u32 = 3;

/// The last packet with the request, and the time until which it holds.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) packet: Vec<u8>,
    /// Where else to connect to if this attempt fails.
    pub(super) targets: VecDeque<SocketAddr>,
    last: Instant,
    /// If the guest has not repeated the request by then, it has given the request up.
    pub(super) until: Instant,
}

impl Request {
    pub(super) fn new(packet: &[u8], targets: VecDeque<SocketAddr>, now: Instant) -> Self {
        Self {
            packet: packet.to_vec(),
            targets,
            last: now,
            until: now + AT_FIRST,
        }
    }

    /// Records that the guest repeats its request, or makes another one from the same port.
    pub(super) fn repeat(&mut self, packet: &[u8], now: Instant) {
        let waited = now.saturating_duration_since(self.last);
        self.packet.clear();
        self.packet.extend(packet);
        self.last = now;
        self.until = now + AT_FIRST.max(waited * BACK_OFF);
    }
}

/// Whether smoltcp will accept the packet as a request. A socket opened for a packet that smoltcp
/// rejects would keep listening and take the next request.
pub(super) fn is_request(packet: &Packet<'_>, guest: std::net::Ipv4Addr) -> bool {
    let Ok(header) = TcpPacket::new_checked(packet.payload) else {
        return false;
    };
    let (from, to) = (guest.into(), packet.to.into());
    TcpRepr::parse(&header, &from, &to, &ChecksumCapabilities::ignored())
        .is_ok_and(|header| header.control == TcpControl::Syn && header.ack_number.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When Linux repeats a request: at first, and since 6.5.
    const EXPONENTIAL: [u64; 6] = [1, 3, 7, 15, 31, 63];
    const LINEAR: [u64; 9] = [1, 2, 3, 4, 5, 7, 11, 19, 35];

    #[test]
    fn a_guest_that_repeats_itself_has_not_given_up() {
        for times in [&EXPONENTIAL[..], &LINEAR] {
            let start = Instant::now();
            let mut request = Request::new(b"1", VecDeque::new(), start);
            for seconds in times {
                let now = start + Duration::from_secs(*seconds);
                assert!(now < request.until, "{seconds} of {times:?}");
                request.repeat(b"2", now);
            }
            assert_eq!(request.packet, b"2");
            assert!(request.until < start + Duration::from_secs(180));
        }
    }
}
