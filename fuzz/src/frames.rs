//! Frames from a guest to a network with one server and one resolver behind it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, OnceLock};

use micabox_net::{Addresses, Config, ETHERNET_HEADER, Network};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

/// The address of the server and the resolver, the only one that the guest may reach.
const HOST: Ipv4Addr = Ipv4Addr::new(127, 255, 255, 254);
/// Longer than any step takes: only a hang reaches it.
const PATIENCE: Timespec = Timespec {
    tv_sec: 20,
    tv_nsec: 0,
};
/// The number of the guest's ports that scripts choose from.
const PORTS: u8 = 3;

/// Sends a script's frames, each with a byte for its kind, a length, and that many bytes.
pub fn frames(script: &[u8]) {
    let mut guest = Guest::new();
    let mut script = script;
    while let Some(([kind, length], rest)) = script.split_first_chunk::<2>() {
        let (bytes, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        script = rest;
        match kind % 8 {
            // The unmodified frame. An empty one would end the link.
            0 => guest.send(if bytes.is_empty() { &[0] } else { bytes }),
            1 => guest.ethernet(kind >> 4, bytes),
            2 => guest.packet(kind >> 3, HOST, bytes),
            3 => guest.datagram(53, Addresses::default().gateway, bytes),
            4 => guest.answer(bytes),
            _ => guest.segment(*kind, bytes),
        }
        guest.is_served();
    }
}

/// The machine's end of a network.
struct Guest {
    link: OwnedFd,
    server: u16,
    /// For each connection: the number that the other end expects next, and the one up to which it
    /// has sent.
    numbers: [(u32, u32); PORTS as usize],
    _network: Network,
}

impl Guest {
    fn new() -> Self {
        let (server, resolver) = servers();
        let allow = [format!("{HOST}:{server}"), "*.test".to_owned()];
        let config = Config {
            allow: allow.map(|rule| rule.parse().expect("a rule")).into(),
            resolvers: vec![resolver],
            ..Config::default()
        };
        let (network, link) = Network::start(config).expect("a network");
        Self {
            link,
            server,
            numbers: Default::default(),
            _network: network,
        }
    }

    fn send(&mut self, frame: &[u8]) {
        while let Err(error) = again(|| send(&self.link, frame, SendFlags::NOSIGNAL)) {
            assert_eq!(error, Errno::AGAIN, "the network is gone");
            if self
                .wait(PollFlags::IN | PollFlags::OUT)
                .contains(PollFlags::IN)
            {
                self.receive();
            }
        }
    }

    fn ethernet(&mut self, kind: u8, payload: &[u8]) {
        let own = Addresses::default();
        let kinds = [[8, 6], [8, 0], [0x86, 0xdd], [0x81, 0]];
        let mut frame = vec![0xff; 6];
        frame.extend(own.guest_mac);
        frame.extend(kinds.get(usize::from(kind)).unwrap_or(&[8, 6]));
        frame.extend(payload);
        self.send(&frame);
    }

    /// Sends a packet with a valid header.
    fn packet(&mut self, protocol: u8, to: Ipv4Addr, payload: &[u8]) {
        let protocol = [1, 17, 6, protocol]
            .get(usize::from(protocol))
            .map_or(17, |one| *one);
        let length = (20 + payload.len()) as u16;
        let mut packet = vec![0x45, 0];
        packet.extend(length.to_be_bytes());
        packet.extend([0, 0, 0, 0, 64, protocol, 0, 0]);
        packet.extend(Addresses::default().guest.octets());
        packet.extend(to.octets());
        packet.extend(payload);
        self.ethernet(1, &packet);
    }

    fn datagram(&mut self, port: u16, to: Ipv4Addr, payload: &[u8]) {
        let mut datagram = 4000_u16.to_be_bytes().to_vec();
        datagram.extend(port.to_be_bytes());
        datagram.extend((8 + payload.len() as u16).to_be_bytes());
        datagram.extend([0, 0]);
        datagram.extend(payload);
        self.packet(1, to, &datagram);
    }

    /// Sets the records that the resolver appends to its next responses.
    fn answer(&mut self, records: &[u8]) {
        *ANSWER.lock().expect("no holder panics") = records.to_vec();
    }

    /// Sends a segment to the server: flags, then changes to the numbers that it expects, then
    /// data.
    fn segment(&mut self, kind: u8, bytes: &[u8]) {
        let port = (kind >> 3) % PORTS;
        let (head, data) = bytes.split_at(bytes.len().min(4));
        let at = |index: usize| head.get(index).copied().unwrap_or_default();
        let (next, seen) = self
            .numbers
            .get(usize::from(port))
            .copied()
            .unwrap_or_default();
        let sequence = next.wrapping_add(i32::from(at(1) as i8) as u32);
        let acknowledged = seen.wrapping_add(i32::from(at(2) as i8) as u32);
        let options = usize::from(at(3) & 3) * 4;
        let (options, data) = data.split_at(if data.len() < options { 0 } else { options });
        let mut segment = (4000 + u16::from(port)).to_be_bytes().to_vec();
        segment.extend(self.server.to_be_bytes());
        segment.extend(sequence.to_be_bytes());
        segment.extend(acknowledged.to_be_bytes());
        segment.push((((20 + options.len()) / 4) << 4) as u8);
        segment.extend([at(0) & 0x3f, 0xff, 0xff, 0, 0, 0, 0]);
        segment.extend(options);
        segment.extend(data);
        let mut length = data.len() as u32;
        length += u32::from(at(0) & 1) + u32::from(at(0) >> 1 & 1);
        if let Some((next, _)) = self.numbers.get_mut(usize::from(port)) {
            *next = sequence.wrapping_add(length);
        }
        self.packet(2, HOST, &segment);
    }

    fn wait(&self, flags: PollFlags) -> PollFlags {
        let mut sockets = [PollFd::new(&self.link, flags)];
        let count = again(|| poll(&mut sockets, Some(&PATIENCE)));
        let count = count.expect("it can be asked");
        assert_eq!(count, 1, "the network hangs");
        sockets[0].revents()
    }

    /// Sends an ARP request for the gateway, which replies after handling all earlier frames.
    fn is_served(&mut self) {
        let own = Addresses::default();
        let mut request = vec![0, 1, 8, 0, 6, 4, 0, 1];
        request.extend(own.guest_mac);
        request.extend(own.guest.octets());
        request.extend([0; 6]);
        request.extend(own.gateway.octets());
        self.ethernet(0, &request);
        while !self.receive() {}
    }

    /// Receives a frame, which must be valid for this guest; returns whether it is the gateway's
    /// ARP reply.
    fn receive(&mut self) -> bool {
        self.wait(PollFlags::IN);
        let own = Addresses::default();
        let mut frame = vec![0; ETHERNET_HEADER + 65536];
        let got = again(|| recv(&self.link, &mut frame[..], RecvFlags::empty()));
        let (length, _) = got.expect("a frame");
        frame.truncate(length);
        assert!(
            length <= ETHERNET_HEADER + usize::from(own.mtu),
            "{length} bytes"
        );
        assert_eq!(frame[..6], own.guest_mac, "another's frame");
        let payload = &frame[ETHERNET_HEADER..];
        match frame[12..14] {
            [8, 6] => {
                assert_eq!((payload.len(), payload[7]), (28, 2), "no answer");
                assert_eq!(payload[14..18], own.gateway.octets());
                payload[24..28] == own.guest.octets()
            }
            [8, 0] => {
                self.check_packet(payload);
                false
            }
            _ => panic!("a frame of type {:?}", &frame[12..14]),
        }
    }

    fn check_packet(&mut self, packet: &[u8]) {
        assert_eq!(packet[0], 0x45);
        let length = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
        assert_eq!(length, packet.len());
        assert_eq!(sum(&[&packet[..20]]), 0xffff, "the header's checksum");
        assert_eq!(packet[16..20], Addresses::default().guest.octets());
        let payload = &packet[20..];
        let pseudo = [
            &packet[12..20],
            &[0, packet[9]],
            &(payload.len() as u16).to_be_bytes(),
        ];
        let pseudo = pseudo.concat();
        match packet[9] {
            1 => assert_eq!(sum(&[payload]), 0xffff, "ICMP's checksum"),
            17 => {
                let none = payload[6..8] == [0, 0];
                assert!(none || sum(&[&pseudo, payload]) == 0xffff, "UDP's checksum");
                assert_eq!(payload[4..6], (payload.len() as u16).to_be_bytes());
            }
            6 => {
                assert_eq!(sum(&[&pseudo, payload]), 0xffff, "TCP's checksum");
                self.note(payload);
            }
            other => panic!("a packet of protocol {other}"),
        }
    }

    /// Records the numbers that a connection's other end has sent.
    fn note(&mut self, segment: &[u8]) {
        let port = u16::from_be_bytes([segment[2], segment[3]]);
        let sent = u32::from_be_bytes(segment[4..8].try_into().expect("four bytes"));
        let data = segment.len() - usize::from(segment[12] >> 4) * 4;
        let flags = u32::from(segment[13] & 1) + u32::from(segment[13] >> 1 & 1);
        if let Some((_, seen)) = self.numbers.get_mut(usize::from(port.wrapping_sub(4000))) {
            *seen = sent.wrapping_add(data as u32 + flags);
        }
    }
}

/// Repeats a call that a signal interrupted: libFuzzer has a timer.
fn again<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Computes the Internet checksum (RFC 1071): all ones if it is right.
fn sum(parts: &[&[u8]]) -> u16 {
    let mut total = 0_u32;
    for part in parts {
        for pair in part.chunks(2) {
            let low = pair.get(1).copied().unwrap_or_default();
            total += u32::from(u16::from_be_bytes([pair[0], low]));
        }
    }
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

/// The records that the resolver appends to a query.
static ANSWER: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// Starts a server that echoes its input, and a resolver that responds with [`ANSWER`]. Both live
/// as long as the process.
fn servers() -> (u16, SocketAddr) {
    static SERVERS: OnceLock<(u16, SocketAddr)> = OnceLock::new();
    *SERVERS.get_or_init(|| {
        let server = TcpListener::bind((HOST, 0)).expect("a port");
        let port = server.local_addr().expect("its own").port();
        std::thread::spawn(move || {
            for stream in server.incoming() {
                std::thread::spawn(move || {
                    let Ok(mut stream) = stream else { return };
                    let mut buffer = [0; 4096];
                    while let Ok(count @ 1..) = stream.read(&mut buffer) {
                        if stream.write_all(&buffer[..count]).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        let resolver = UdpSocket::bind((HOST, 0)).expect("a port");
        let address = resolver.local_addr().expect("its own");
        std::thread::spawn(move || {
            let mut buffer = [0; 65536];
            while let Ok((length, from)) = resolver.recv_from(&mut buffer) {
                let mut answer = buffer[..length].to_vec();
                if let Some(flags) = answer.get_mut(2) {
                    *flags |= 0x80;
                }
                if let Some(count) = answer.get_mut(7) {
                    *count = 4;
                }
                answer.extend(&*ANSWER.lock().expect("no holder panics"));
                let _ = resolver.send_to(&answer, from);
            }
        });
        (port, address)
    })
}

/// A connection that is opened, used and closed; a query; an echo request; and frames that cause
/// errors.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    const SYN: u8 = 2;
    let record = |kind: u8, bytes: &[u8]| [&[kind, bytes.len() as u8], bytes].concat();
    let open = [
        record(5, &[SYN, 0, 0, 1, 2, 4, 5, 0xb4]),
        record(0x16, &[0]),
        record(5, &[0x10, 0, 0, 0]),
        record(5, b"\x18\0\0\0hello"),
    ];
    let close = [
        record(5, &[0x10, 0, 0, 0]),
        record(5, &[0x11, 0, 0, 0]),
        record(5, &[0x10, 0, 0, 0]),
    ];
    let reset = [record(13, &[SYN, 0, 0, 0]), record(13, &[4, 0, 0, 0])];
    let question = b"\x12\x34\x01\x00\0\x01\0\0\0\0\0\0\x03www\x07example\x04test\0\0\x01\0\x01";
    let address = b"\xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04\x7f\xff\xff\xfe";
    let ask = [record(4, &address.repeat(4)), record(3, question)];
    let echo = record(2, &[8, 0, 0, 0, 0, 1, 0, 1, b'x', b'y']);
    let closed = record(2 | 1 << 3, &[1, 1, 0, 9, 0, 10, 0, 0, 1, 2]);
    let raw = record(0, &[0xff; 60]);
    vec![
        ("connection", [open.concat(), close.concat()].concat()),
        ("reset", [open.concat(), reset.concat()].concat()),
        ("question", ask.concat()),
        ("others", [echo, closed, raw].concat()),
    ]
}
