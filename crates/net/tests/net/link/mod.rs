//! The machine's end of a network's link, for frames that no kernel sends.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use micabox_net::{Addresses, Config, Network};
use micabox_testing::PATIENCE;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvFlags, SendFlags, recv, send};

pub struct Link {
    pub socket: OwnedFd,
    _network: Network,
}

impl Link {
    /// Starts a network in which every destination but this one is denied.
    pub fn new(allowed: &str) -> Self {
        Self::with(Config {
            allow: vec![allowed.parse().unwrap()],
            ..Config::default()
        })
    }

    pub fn with(config: Config) -> Self {
        let (network, socket) = Network::start(config).unwrap();
        Self {
            socket,
            _network: network,
        }
    }

    pub fn wait(&self, flags: PollFlags) -> PollFlags {
        let events = self.events_within(PATIENCE, flags);
        assert!(!events.is_empty(), "neither frames nor room");
        events
    }

    fn events_within(&self, time: Duration, flags: PollFlags) -> PollFlags {
        let mut sockets = [PollFd::new(&self.socket, flags)];
        poll(&mut sockets, Some(&time.try_into().unwrap())).unwrap();
        sockets[0].revents()
    }

    /// Sends a frame; reads and drops frames that block it.
    pub fn send(&self, frame: &[u8]) {
        while send(&self.socket, frame, SendFlags::NOSIGNAL) == Err(rustix::io::Errno::AGAIN) {
            if self
                .wait(PollFlags::IN | PollFlags::OUT)
                .contains(PollFlags::IN)
            {
                self.receive();
            }
        }
    }

    pub fn receive(&self) -> Vec<u8> {
        let mut frame = vec![0; 1 << 17];
        let (length, _) = recv(&self.socket, &mut frame[..], RecvFlags::empty()).unwrap();
        assert!((14..=14 + 65520).contains(&length), "{length}");
        frame.truncate(length);
        frame
    }

    /// Sends an ARP request for the gateway, and waits for the reply.
    pub fn is_alive(&self) {
        let own = Addresses::default();
        let mut request = vec![0xff; 6];
        request.extend(own.guest_mac);
        request.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        request.extend(own.guest_mac);
        request.extend(own.guest.octets());
        request.extend([0; 6]);
        request.extend(own.gateway.octets());
        self.send(&request);
        let start = Instant::now();
        loop {
            self.wait(PollFlags::IN);
            let frame = self.receive();
            if frame[12..14] == [8, 6] {
                assert_eq!(frame[28..32], own.gateway.octets());
                return;
            }
            assert!(start.elapsed() < PATIENCE, "no answer");
        }
    }
}

pub fn frame(kind: [u8; 2], payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend(kind);
    frame.extend(payload);
    frame
}

/// An IPv4 packet from the guest, with a valid header.
pub fn packet(to: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(20 + payload.len()).unwrap().to_be_bytes();
    let mut packet = vec![
        0x45, 0, length[0], length[1], 0, 0, 0, 0, 64, protocol, 0, 0,
    ];
    packet.extend(Addresses::default().guest.octets());
    packet.extend(to);
    packet.extend(payload);
    frame([8, 0], &packet)
}

/// Flags of a TCP header.
pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const ACK: u8 = 16;

/// A TCP segment from one of the guest's ports.
pub fn segment(
    port: u16,
    to: ([u8; 4], u16),
    [sequence, acknowledged]: [u32; 2],
    flags: u8,
    data: &[u8],
) -> Vec<u8> {
    let mut bytes = [port.to_be_bytes(), to.1.to_be_bytes()].concat();
    bytes.extend(sequence.to_be_bytes());
    bytes.extend(acknowledged.to_be_bytes());
    bytes.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    bytes.extend(data);
    packet(to.0, 6, &bytes)
}

/// A datagram from one of the guest's ports.
pub fn datagram(port: u16, to: ([u8; 4], u16), data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(8 + data.len()).unwrap();
    let mut bytes = [port, to.1, length, 0].map(u16::to_be_bytes).concat();
    bytes.extend(data);
    packet(to.0, 17, &bytes)
}

/// What comes of a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A datagram to this port of the guest.
    Datagram(u16, Vec<u8>),
    /// An ICMP error with this code about a datagram from this port of the guest.
    Unreachable(u16, u8),
}

impl Link {
    /// Reads frames until a datagram comes, or an error about one.
    pub fn reply(&self) -> Reply {
        let port = |frame: &[u8], at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        loop {
            self.wait(PollFlags::IN);
            let frame = self.receive();
            match (&frame[12..14], frame[23]) {
                ([8, 0], 17) => return Reply::Datagram(port(&frame, 36), frame[42..].to_vec()),
                // The quoted packet begins behind two headers.
                ([8, 0], 1) => return Reply::Unreachable(port(&frame, 62), frame[35]),
                _ => {}
            }
        }
    }

    /// Reads frames until a TCP segment for this port of the guest comes; returns its sequence
    /// number, flags, and the number that it acknowledges.
    pub fn segment_for(&self, port: u16) -> (u32, u8, u32) {
        loop {
            self.wait(PollFlags::IN);
            if let Some(segment) = segment_in(&self.receive(), port) {
                return segment;
            }
        }
    }

    /// Does the same, and until then sends a frame every second, as a guest repeats a request.
    pub fn segment_for_repeated(&self, frame: &[u8], port: u16) -> (u32, u8, u32) {
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < PATIENCE, "no answer");
            self.send(frame);
            while !self
                .events_within(Duration::from_secs(1), PollFlags::IN)
                .is_empty()
            {
                if let Some(segment) = segment_in(&self.receive(), port) {
                    return segment;
                }
            }
        }
    }
}

/// Returns what [`Link::segment_for`] does of a frame, if it is one for that port.
fn segment_in(frame: &[u8], port: u16) -> Option<(u32, u8, u32)> {
    let is_it = frame[12..14] == [8, 0] && frame[23] == 6 && frame[36..38] == port.to_be_bytes();
    let number = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
    is_it.then(|| (number(38), frame[47], number(42)))
}
