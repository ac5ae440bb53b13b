//! Frames that no kernel sends.

use std::io::{ErrorKind, Read};
use std::net::{Ipv4Addr, TcpListener};

use micabox_testing::PATIENCE;
use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendFlags, send};

use crate::link::{ACK, FIN, Link, RST, SYN, frame, packet, segment};

/// The only allowed destination, an address on which nothing listens.
const NOBODY: &str = "127.255.255.254";

/// A destination: the gateway, the one address that is allowed, and any other.
fn destination() -> impl Strategy<Value = [u8; 4]> {
    prop_oneof![
        Just([10, 213, 9, 1]),
        Just([127, 255, 255, 254]),
        any::<[u8; 4]>()
    ]
}

/// A TCP header with arbitrary fields, and in half of the cases a right length.
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
            // To the resolver, with a valid header.
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
    fn a_network_survives_arbitrary_frames(
        frames in proptest::collection::vec(anything(), 1..200)
    ) {
        let link = Link::new(NOBODY);
        for frame in frames {
            link.send(&frame);
        }
        link.is_alive();
    }
}

#[test]
fn a_flood_of_requests_takes_bounded_room() {
    let link = Link::new(NOBODY);
    // Each from another port, to the address that is allowed and where nothing listens; then
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
    // The ends of the tables of connections and of conversations.
    assert!(open < 4096 + 4096 + 100, "{open} descriptors");
}

#[test]
fn a_guest_that_reads_nothing_is_not_read_from() {
    let link = Link::new(NOBODY);
    // Requests whose replies are not read: sooner or later the link is full, in both directions.
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
                    break; // Full, and stays full.
                }
            }
        }
        assert!(sent < 1_000_000, "somewhere they are all kept");
    }
    // The frames taken in were answered, and the network goes on from there.
    link.is_alive();
}

/// A server on the loopback interface, and the address under which a guest reaches it.
fn server() -> (TcpListener, ([u8; 4], u16)) {
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = server.local_addr().unwrap().port();
    (server, ([127, 0, 0, 1], port))
}

/// Connects from one of the guest's ports, sends a byte, and returns the data's sequence number.
fn talk(link: &Link, port: u16, to: ([u8; 4], u16)) {
    link.send(&segment(port, to, [500, 0], SYN, b""));
    let (sequence, flags, _) = link.segment_for(port);
    assert_eq!(flags, SYN | ACK);
    let numbers = [501, sequence.wrapping_add(1)];
    link.send(&segment(port, to, numbers, ACK, b"x"));
}

#[test]
fn a_syn_with_fin_is_ignored() {
    let link = Link::new("127.0.0.1");
    let (server, to) = server();
    for port in 1000..2500 {
        link.send(&segment(port, to, [500, 0], SYN | FIN, b""));
    }
    // The requests take no places, and don't receive other requests' connections.
    talk(&link, 3000, to);
    let (mut stream, _) = server.accept().unwrap();
    stream.read_exact(&mut [0]).unwrap();
    server.set_nonblocking(true).unwrap();
    let more = server.accept().unwrap_err();
    assert_eq!(more.kind(), ErrorKind::WouldBlock);
}

#[test]
fn a_reset_after_the_handshake_ends_the_hosts_connection() {
    let link = Link::new("127.0.0.1");
    let (server, to) = server();
    link.send(&segment(1000, to, [500, 0], SYN, b""));
    assert_eq!(link.segment_for(1000).1, SYN | ACK);
    // What Linux sends when its program has closed the socket in the meantime.
    link.send(&segment(1000, to, [501, 0], RST, b""));
    let (mut stream, _) = server.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let end = stream.read(&mut [0]).unwrap_err();
    assert_eq!(end.kind(), ErrorKind::ConnectionReset);
    // The next connection belongs to another request.
    talk(&link, 1001, to);
    let (mut stream, _) = server.accept().unwrap();
    stream.read_exact(&mut [0]).unwrap();
}
