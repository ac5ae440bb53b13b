//! A hostile guest that sends arbitrary packets in valid chains, beside a host that connects,
//! writes, reads and leaves. Fuzzing and a test below use this.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, bind,
    connect, getsockname, listen, recv, socket_with, socketpair,
};
use vm_memory::{Bytes, GuestAddress};

use super::*;
use crate::kvm::virtio::driver::{Driver, READ, WRITE};

/// Bytes of a buffer for packets to the guest, and the number of available buffers.
const BUFFER: u32 = 1024;
const BUFFERS: usize = 32;
/// Maximum number of programs on the host.
const MOST_STREAMS: usize = 32;

/// Runs `script`, a few bytes for each action.
pub(crate) fn talk(script: &[u8]) {
    let mut guest = Guest::new();
    let mut script = script;
    while let Some((action, rest)) = script.split_first() {
        script = rest;
        let mut byte = || {
            let (first, rest) = script.split_first().unwrap_or((&0, &[]));
            script = rest;
            *first
        };
        match action % 8 {
            0..=3 => {
                let operation = action >> 3;
                let (ports, credit, length) = (byte(), byte(), byte());
                guest.send(operation, ports, credit, length);
            }
            4 => guest.client(byte()),
            5 => guest.write(usize::from(byte())),
            6 => guest.leave(usize::from(byte())),
            _ => guest.answer(byte()),
        }
        guest.receive();
        if guest.driver.is_stopped() {
            break;
        }
    }
    guest.driver.write(0x70, 0);
    assert_eq!(guest.driver.register(0x70), 0);
    assert!(!guest.driver.is_stopped());
}

struct Guest {
    driver: Driver,
    owner: OwnedFd,
    path: SocketAddrAny,
    /// Address of packets from the guest.
    packet: u64,
    buffers: HashMap<u16, u64>,
    streams: Vec<UnixStream>,
    /// The host's port in the last packet to the guest.
    port: u32,
    /// Bytes sent at each end.
    from_guest: usize,
    from_host: usize,
    /// Bytes received at each end.
    to_host: usize,
    to_guest: usize,
}

impl Guest {
    fn new() -> Self {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let listener =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("a socket");
        bind(&listener, &SocketAddrUnix::new_unnamed()).expect("the kernel's choice");
        listen(&listener, 64).expect("it is bound");
        let path = getsockname(&listener).expect("it is bound");
        let (theirs, owner) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .expect("two sockets");
        let device = Vsock::new(listener, theirs).expect("descriptors");
        let mut driver = Driver::new(Box::new(device));
        let packet = driver.buffer(&[0; header::LENGTH + 256]);
        let mut guest = Self {
            driver,
            owner,
            path,
            packet,
            buffers: HashMap::new(),
            streams: Vec::new(),
            port: 0,
            from_guest: 0,
            from_host: 0,
            to_host: 0,
            to_guest: 0,
        };
        for _ in 0..BUFFERS {
            let buffer = guest.driver.buffer(&[0; BUFFER as usize]);
            guest.offer(buffer);
        }
        guest.driver.run(RECEIVE);
        guest
    }

    fn offer(&mut self, buffer: u64) {
        let head = self.driver.add(RECEIVE, &[(buffer, BUFFER, WRITE)]);
        self.buffers.insert(head, buffer);
    }

    /// Sends a packet with ports that are in use more often than not, and with any credit.
    fn send(&mut self, operation: u8, ports: u8, credit: u8, length: u8) {
        let host = match ports >> 4 {
            0..=7 => self.port,
            port => u32::from(port),
        };
        let lies = |from: u32| match credit & 7 {
            7 => u32::MAX,
            6 => from.wrapping_sub(1),
            _ => from.wrapping_add(u32::from(credit >> 3) << 6),
        };
        let header = Header {
            source: if credit == 5 { HOST } else { GUEST },
            destination: HOST,
            source_port: u32::from(ports & 0xf),
            destination_port: host,
            length: length.into(),
            kind: if credit == 13 { 2 } else { header::STREAM },
            operation: Operation(operation.into()),
            flags: u32::from(credit & 3),
            room: lies(0),
            forwarded: lies(self.to_guest as u32),
        };
        let bytes = [&header.to_bytes()[..], &[ports; 255]].concat();
        let place = GuestAddress(self.packet);
        self.driver
            .memory
            .ram()
            .write_slice(&bytes, place)
            .expect("it is there");
        let head = header::LENGTH as u32;
        let data = (self.packet + u64::from(head), u32::from(length), READ);
        let chain = [(self.packet, head, READ), data];
        self.driver
            .add(TRANSMIT, &chain[..if length == 0 { 1 } else { 2 }]);
        if header.operation == Operation::DATA {
            self.from_guest += usize::from(length);
        }
        self.driver.run(TRANSMIT);
    }

    /// Connects a program to a port of the guest.
    fn client(&mut self, port: u8) {
        if self.streams.len() >= MOST_STREAMS {
            return;
        }
        let (kind, flags) = (SocketType::STREAM, SocketFlags::NONBLOCK);
        let client = socket_with(AddressFamily::UNIX, kind, flags, None).expect("a socket");
        if connect(&client, &self.path).is_ok() {
            let mut client = UnixStream::from(client);
            let line = format!("CONNECT {}\n", port & 0xf);
            let _ = client.write_all(line.as_bytes());
            self.streams.push(client);
        }
    }

    /// Writes from a program.
    fn write(&mut self, which: usize) {
        let count = self.streams.len().max(1);
        if let Some(stream) = self.streams.get_mut(which % count) {
            self.from_host += stream.write(&[which as u8; 300]).unwrap_or_default();
        }
    }

    /// Ends a program.
    fn leave(&mut self, which: usize) {
        if !self.streams.is_empty() {
            self.streams.swap_remove(which % self.streams.len());
        }
    }

    /// Answers as the owner, with a stream or without one.
    fn answer(&mut self, who: u8) {
        let mut port = [0; 8];
        if !matches!(
            recv(&self.owner, &mut port, RecvFlags::DONTWAIT),
            Ok((4, _))
        ) {
            return;
        }
        let (program, stream) = UnixStream::pair().expect("two sockets");
        for end in [&program, &stream] {
            end.set_nonblocking(true).expect("a socket");
        }
        let with_stream = who & 1 == 1 && self.streams.len() < MOST_STREAMS;
        let descriptors = with_stream.then(|| std::os::fd::AsFd::as_fd(&stream));
        let _ = micabox_socket::send(&self.owner, &[0], descriptors.as_slice());
        if with_stream {
            self.streams.push(program);
        }
    }

    /// Receives at both ends, and checks that no more came out than was sent.
    fn receive(&mut self) {
        self.driver.host();
        for (head, length) in self.driver.used(RECEIVE) {
            let buffer = self.buffers.remove(&head).expect("a buffer of ours");
            assert!(length <= BUFFER);
            let bytes = self.driver.read(buffer, length as usize);
            let (header, data) = bytes.split_first_chunk().expect("a header");
            let header = Header::from_bytes(*header);
            assert_eq!(header.length as usize, data.len());
            assert_eq!((header.source, header.destination), (HOST, GUEST));
            assert!((1..=7).contains(&header.operation.0) && header.kind == header::STREAM);
            assert!(data.is_empty() || header.operation == Operation::DATA);
            self.port = header.source_port;
            self.to_guest += data.len();
            self.offer(buffer);
        }
        self.driver.run(RECEIVE);
        let mut buffer = [0; 4096];
        for stream in &mut self.streams {
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                let got = buffer.get(..count).unwrap_or_default();
                // The answer to a client's first line.
                let greeting = got.starts_with(b"OK ").then(|| {
                    got.iter()
                        .position(|byte| *byte == b'\n')
                        .map_or(0, |at| at + 1)
                });
                self.to_host += count - greeting.unwrap_or_default();
            }
        }
        assert!(self.to_guest <= self.from_host, "bytes from nowhere");
        assert!(self.to_host <= self.from_guest, "bytes from nowhere");
    }
}

/// Returns scripts with a connection of each kind, data both ways and an end.
pub(crate) fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let packet = |operation: u8, credit: u8, length: u8| [operation << 3, 0x07, credit, length];
    let from_host = [
        vec![4, 7],
        packet(2, 0xf0, 0).to_vec(),
        vec![5, 0],
        packet(5, 0xf0, 100).to_vec(),
        packet(6, 0xf0, 0).to_vec(),
        packet(4, 0xf3, 0).to_vec(),
    ];
    let from_guest = [
        vec![1 << 3, 0x97, 0xf0, 0],
        vec![7, 1],
        vec![5 << 3, 0x97, 0xf0, 50],
        vec![5, 0],
        packet(7, 0, 0).to_vec(),
        vec![6, 0],
        packet(3, 0, 0).to_vec(),
    ];
    vec![
        ("from-host", from_host.concat()),
        ("from-guest", from_guest.concat()),
    ]
}

#[cfg(test)]
#[test]
fn a_hostile_guest_never_makes_the_device_invent_bytes() {
    for (_, seed) in seeds() {
        talk(&seed);
    }
    let mut state = 1_u64;
    for _ in 0..400 {
        let script: Vec<u8> = std::iter::repeat_with(|| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 40) as u8
        })
        .take(300)
        .collect();
        talk(&script);
    }
}
