//! Frames that no kernel sends.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use micabox_net::{Addresses, Config, Network};
use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, recv, send};

/// Far longer than anything takes: only a hang ends it.
const PATIENCE: Duration = Duration::from_secs(60);

struct Link {
    socket: OwnedFd,
    _network: Network,
}

impl Link {
    fn new() -> Self {
        // Nothing in here talks to anybody: every destination is denied but one that is
        // nowhere.
        let config = Config {
            allow: vec!["127.255.255.254".parse().unwrap()],
            ..Config::default()
        };
        let (network, socket) = Network::start(config).unwrap();
        Self {
            socket,
            _network: network,
        }
    }

    fn wait(&self, flags: PollFlags) -> PollFlags {
        let timeout = Timespec {
            tv_sec: 60,
            tv_nsec: 0,
        };
        let mut sockets = [PollFd::new(&self.socket, flags)];
        assert_eq!(poll(&mut sockets, Some(&timeout)).unwrap(), 1);
        sockets[0].revents()
    }

    /// Sends a frame; takes and drops what is in the way of that.
    fn send(&self, frame: &[u8]) {
        while send(&self.socket, frame, SendFlags::NOSIGNAL) == Err(rustix::io::Errno::AGAIN) {
            if self
                .wait(PollFlags::IN | PollFlags::OUT)
                .contains(PollFlags::IN)
            {
                self.receive();
            }
        }
    }

    fn receive(&self) -> Vec<u8> {
        let mut frame = vec![0; 1 << 17];
        let (length, _) = recv(&self.socket, &mut frame[..], RecvFlags::empty()).unwrap();
        assert!((14..=14 + 65520).contains(&length), "{length}");
        frame.truncate(length);
        frame
    }

    /// Asks who the gateway is, and waits for the answer.
    fn is_alive(&self) {
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

fn frame(kind: [u8; 2], payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend(kind);
    frame.extend(payload);
    frame
}

/// An IPv4 packet from the guest, with a right header.
fn packet(to: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(20 + payload.len()).unwrap().to_be_bytes();
    let mut packet = vec![
        0x45, 0, length[0], length[1], 0, 0, 0, 0, 64, protocol, 0, 0,
    ];
    packet.extend(Addresses::default().guest.octets());
    packet.extend(to);
    packet.extend(payload);
    frame([8, 0], &packet)
}

/// Somewhere: the gateway, the one address that is allowed, and anywhere.
fn destination() -> impl Strategy<Value = [u8; 4]> {
    prop_oneof![
        Just([10, 213, 9, 1]),
        Just([127, 255, 255, 254]),
        any::<[u8; 4]>()
    ]
}

/// A TCP header with anything in it but its length, which is right half of the time.
fn tcp() -> impl Strategy<Value = Vec<u8>> {
    let ports = prop_oneof![Just(53_u16), Just(80), any::<u16>()];
    (
        ports,
        any::<[u8; 8]>(),
        any::<u8>(),
        5..16_u8,
        proptest::collection::vec(any::<u8>(), 0..80),
    )
        .prop_map(|(port, numbers, flags, words, rest)| {
            let mut bytes = vec![0x99, 0x99];
            bytes.extend(port.to_be_bytes());
            bytes.extend(numbers);
            bytes.extend([words << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
            bytes.extend(rest);
            bytes
        })
}

fn anything() -> impl Strategy<Value = Vec<u8>> {
    let bytes = || proptest::collection::vec(any::<u8>(), 0..200);
    let kind = prop_oneof![
        Just([8, 0]),
        Just([8, 6]),
        Just([0x86, 0xdd]),
        any::<[u8; 2]>()
    ];
    let protocol = prop_oneof![Just(1), Just(6), Just(17), any::<u8>()];
    prop_oneof![
        bytes().prop_filter("an empty frame is an end", |bytes| !bytes.is_empty()),
        (kind, bytes()).prop_map(|(kind, bytes)| frame(kind, &bytes)),
        (destination(), protocol, bytes()).prop_map(|(to, kind, bytes)| packet(to, kind, &bytes)),
        (destination(), tcp()).prop_map(|(to, bytes)| packet(to, 6, &bytes)),
        (destination(), bytes()).prop_map(|(to, bytes)| {
            // To the resolver, with a right header.
            let length = u16::try_from(8 + bytes.len()).unwrap().to_be_bytes();
            let mut datagram = vec![1, 1, 0, 53, length[0], length[1], 0, 0];
            datagram.extend(bytes);
            packet(to, 17, &datagram)
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_guest_sends_its_network_goes_on(
        frames in proptest::collection::vec(anything(), 1..200)
    ) {
        let link = Link::new();
        for frame in frames {
            link.send(&frame);
        }
        link.is_alive();
    }
}

#[test]
fn a_flood_of_requests_takes_bounded_room() {
    let link = Link::new();
    // Each from another port, to the address that may be asked and has nobody; then
    // packets of the largest size and beyond.
    for port in 0..20_000_u16 {
        let mut request = port.to_be_bytes().to_vec();
        request.extend([
            0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0,
        ]);
        link.send(&packet([127, 255, 255, 254], 6, &request));
        request[2..4].copy_from_slice(&[0, 9]);
        request[4..8].copy_from_slice(&[0, 18, 0, 0]);
        link.send(&packet([127, 255, 255, 254], 17, &request));
    }
    for length in [65_500, 65_515] {
        link.send(&packet([127, 255, 255, 254], 17, &vec![0; length]));
    }
    link.is_alive();
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count();
    assert!(open < 1024, "{open} descriptors");
}

#[test]
fn a_guest_that_takes_nothing_is_not_listened_to() {
    let link = Link::new();
    // Requests whose answers nobody takes: sooner or later the link is full, both ways.
    let ping = packet(
        [10, 213, 9, 1],
        1,
        &[&[8, 0, 0, 0, 0, 1, 0, 1][..], &[0; 1400]].concat(),
    );
    let mut sent = 0_u32;
    loop {
        match send(&link.socket, &ping, SendFlags::NOSIGNAL) {
            Ok(_) => sent += 1,
            Err(_) => {
                let timeout = Timespec {
                    tv_sec: 0,
                    tv_nsec: 300_000_000,
                };
                let mut sockets = [PollFd::new(&link.socket, PollFlags::OUT)];
                if poll(&mut sockets, Some(&timeout)).unwrap() == 0 {
                    break; // Full and staying so.
                }
            }
        }
        assert!(sent < 1_000_000, "somewhere they are all kept");
    }
    // What has been taken in was answered, and it goes on from there.
    link.is_alive();
}
