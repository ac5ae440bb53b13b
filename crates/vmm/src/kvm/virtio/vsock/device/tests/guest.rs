//! A guest that a test controls, and its host.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use rustix::net::{
    AddressFamily, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, bind, connect,
    getsockname, listen, socket_with, socketpair,
};

use super::*;

/// Bytes of a buffer for packets to the guest.
const BUFFER: u32 = 4096;

/// The driver and the host's end.
pub struct Guest {
    pub driver: Driver,
    pub owner: OwnedFd,
    path: SocketAddrAny,
    buffers: HashMap<u16, u64>,
    /// Address of the guest's packets: tests send one at a time.
    pub packet: u64,
}

impl Guest {
    pub fn new() -> Self {
        let (kind, flags) = (SocketType::STREAM, SocketFlags::NONBLOCK);
        let listener = socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
        bind(&listener, &SocketAddrUnix::new_unnamed()).unwrap();
        listen(&listener, 1000).unwrap();
        let path = getsockname(&listener).unwrap();
        let kind = SocketType::SEQPACKET;
        let (theirs, owner) = socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
        let device = Vsock::new(listener, theirs).unwrap();
        let mut driver = Driver::new(Box::new(device));
        let packet = driver.buffer(&[0; header::LENGTH + (64 << 10)]);
        let mut guest = Self {
            driver,
            owner,
            path,
            buffers: HashMap::new(),
            packet,
        };
        for _ in 0..64 {
            let buffer = guest.driver.buffer(&[0; BUFFER as usize]);
            guest.offer(buffer);
        }
        guest
    }

    fn offer(&mut self, buffer: u64) {
        let head = self.driver.add(RECEIVE, &[(buffer, BUFFER, WRITE)]);
        self.buffers.insert(head, buffer);
    }

    /// Connects a program on the host that sends no request.
    pub fn stranger(&self) -> UnixStream {
        let flags = SocketFlags::empty();
        let client = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        connect(&client, &self.path).unwrap();
        client.into()
    }

    /// Connects a program on the host that requests port `port`.
    pub fn client(&self, port: u32) -> UnixStream {
        let mut client = self.stranger();
        client
            .write_all(format!("CONNECT {port}\n").as_bytes())
            .unwrap();
        client
    }

    pub fn send(&mut self, packet: Header, data: &[u8]) {
        let ram = self.driver.memory.ram();
        let bytes = [&packet.to_bytes()[..], data].concat();
        vm_memory::Bytes::write_slice(ram, &bytes, vm_memory::GuestAddress(self.packet)).unwrap();
        // Header and data in separate pieces, as Linux sends them.
        let (header, length) = (header::LENGTH as u32, data.len() as u32);
        let data = (self.packet + u64::from(header), length, READ);
        let chain = [(self.packet, header, READ), data];
        let pieces = if length == 0 { 1 } else { 2 };
        self.driver.add(TRANSMIT, &chain[..pieces]);
        self.driver.run(TRANSMIT);
    }

    /// Returns the packets that the device sent since the last call.
    pub fn receive(&mut self) -> Vec<(Header, Vec<u8>)> {
        self.driver.host();
        let mut received = Vec::new();
        loop {
            let used = self.driver.used(RECEIVE);
            if used.is_empty() {
                return received;
            }
            for (head, length) in used {
                let buffer = self.buffers.remove(&head).unwrap();
                let bytes = self.driver.read(buffer, length as usize);
                let (header, data) = bytes.split_first_chunk().unwrap();
                let header = Header::from_bytes(*header);
                assert_eq!(header.length as usize, data.len());
                assert_eq!((header.source, header.destination), (HOST, GUEST));
                received.push((header, data.to_vec()));
                self.offer(buffer);
            }
            self.driver.run(RECEIVE);
        }
    }

    /// Returns the only packet that the device sent.
    pub fn receive_one(&mut self) -> (Header, Vec<u8>) {
        let mut received = self.receive();
        assert_eq!(received.len(), 1, "{received:?}");
        received.remove(0)
    }

    /// Connects to port 7 of the guest, which accepts.
    pub fn connected(&mut self) -> (UnixStream, Header) {
        let mut client = self.client(7);
        let (request, _) = self.receive_one();
        assert_eq!(request.operation, Operation::REQUEST);
        assert_eq!(request.destination_port, 7);
        let guest = reply(&request);
        self.send(with(guest, Operation::RESPONSE), b"");
        let line = format!("OK {}\n", request.source_port);
        assert_eq!(read(&mut client, line.len()), line.as_bytes());
        assert!(self.receive().is_empty());
        (client, guest)
    }
}

/// Returns a header of the other direction, with much room.
pub fn reply(to: &Header) -> Header {
    Header {
        source: to.destination,
        destination: to.source,
        source_port: to.destination_port,
        destination_port: to.source_port,
        kind: header::STREAM,
        room: 1 << 20,
        ..Header::default()
    }
}

pub fn with(header: Header, operation: Operation) -> Header {
    Header {
        operation,
        ..header
    }
}

pub fn data(header: Header, length: usize) -> Header {
    Header {
        length: length as u32,
        ..with(header, Operation::DATA)
    }
}

pub fn shutdown(header: Header, flags: u32) -> Header {
    Header {
        flags,
        ..with(header, Operation::SHUTDOWN)
    }
}

pub fn read(stream: &mut UnixStream, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// Reads a stream to its end.
pub fn rest(mut stream: UnixStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    bytes
}
