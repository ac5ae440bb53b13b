//! The socket device (specification section 5.10): packets to and from connections.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{OwnedFd, RawFd};

use virtio_bindings::virtio_ids::VIRTIO_ID_VSOCK;
use vmm_sys_util::epoll::EventSet;

use super::connection::{Broken, Connection, Packet, Ports, ROOM, Stage};
use super::header::{self, Header, Operation};
use super::host::{Event, FIRST_CONNECTION, Greeting, Host, greeting};
use crate::kvm::virtio::chain::Buffers;
use crate::kvm::virtio::{Active, Device, Violation};

/// Addresses: the host's is always the same, and so is every guest's, since the two are connected
/// directly.
const HOST: u64 = 2;
const GUEST: u64 = 3;

/// The queues, from the driver's view.
const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;
const EVENTS: usize = 2;
const QUEUE_SIZES: [u16; 3] = [128, 128, 8];

/// The only event, `VIRTIO_VSOCK_EVENT_TRANSPORT_RESET` in little endian: all connections are gone.
const TRANSPORT_RESET: [u8; 4] = 0_u32.to_le_bytes();

/// Maximum number of connections, including those that are being set up or closed.
const MOST_CONNECTIONS: usize = 256;

/// Maximum number of resets that wait for the guest. Packets from a guest that does not take them
/// are not read until it does.
const MOST_RESETS: usize = 256;

/// Ports of connections from the host, away from those that people choose.
const FIRST_PORT: u32 = 1 << 30;
const LAST_PORT: u32 = (1 << 31) - 1;

/// The device.
#[derive(Debug)]
pub(crate) struct Vsock {
    host: Host,
    /// The guest's address, little endian.
    config: [u8; 8],
    connections: BTreeMap<u64, Connection>,
    /// Connections that are known to the guest.
    ports: BTreeMap<Ports, u64>,
    next_token: u64,
    next_port: u32,
    /// Connections that may have a packet for the guest, each once.
    ready: VecDeque<u64>,
    resets: VecDeque<Header>,
    /// Connections for which the owner was asked, in the order of its answers.
    asked: VecDeque<u64>,
    /// Whether clients may wait at the listener.
    clients: bool,
    /// Whether the guest is a copy that was not told yet that its connections stayed with the
    /// original.
    is_copy: bool,
}

impl Vsock {
    /// Creates the device. Clients come from `listener`. `owner`, a socket that preserves message
    /// boundaries, receives port numbers of four bytes and answers each with one byte and, if a
    /// program listens at that port, a stream. Neither socket may block.
    ///
    /// # Errors
    /// If the host is out of descriptors.
    pub(crate) fn new(listener: OwnedFd, owner: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            host: Host::new(listener, owner)?,
            config: GUEST.to_le_bytes(),
            connections: BTreeMap::new(),
            ports: BTreeMap::new(),
            next_token: FIRST_CONNECTION,
            next_port: FIRST_PORT,
            ready: VecDeque::new(),
            resets: VecDeque::new(),
            asked: VecDeque::new(),
            clients: true,
            is_copy: false,
        })
    }

    /// Does all work that is possible now.
    fn work(&mut self, active: &mut Active) -> Result<(), Violation> {
        loop {
            self.attend();
            let held_up = self.transmit(active)?;
            self.receive(active)?;
            if !held_up || self.resets.len() >= MOST_RESETS {
                return Ok(());
            }
        }
    }

    /// Sends a copy the event that its connections are gone.
    fn announce(&mut self, active: &mut Active) -> Result<(), Violation> {
        if !self.is_copy || !active.queues.has(EVENTS) {
            return Ok(());
        }
        let queue = active.queues.get(EVENTS)?;
        let Some(mut chain) = queue.pop(&active.memory)? else {
            return Ok(());
        };
        let place = chain.writable.take(TRANSPORT_RESET.len());
        if place.len() != TRANSPORT_RESET.len() {
            return Err(Violation::BadBuffer);
        }
        place.copy_from(&TRANSPORT_RESET);
        queue.complete(&active.memory, chain.head, TRANSPORT_RESET.len())?;
        self.is_copy = false;
        active.notify(EVENTS)
    }

    /// Handles the host's events.
    fn attend(&mut self) {
        loop {
            let events = self.host.events();
            if events.is_empty() {
                break;
            }
            for event in events {
                match event {
                    Event::Client => self.clients = true,
                    Event::Answer => self.take_answers(),
                    Event::Stream { token, hung_up } => self.wake(token, hung_up),
                }
            }
        }
        while self.clients && self.connections.len() < MOST_CONNECTIONS {
            match self.host.accept() {
                Some(client) => {
                    let ports = Ports { host: 0, guest: 0 };
                    let connection = Connection::new(Stage::Greeting, ports, Some(client));
                    let token = self.insert(connection);
                    if self.watch(token).is_err() {
                        self.remove(token);
                    } else {
                        self.wake(token, false);
                    }
                }
                None => self.clients = false,
            }
        }
    }

    fn insert(&mut self, connection: Connection) -> u64 {
        let token = self.next_token;
        self.next_token = self.next_token.wrapping_add(1).max(FIRST_CONNECTION);
        self.connections.insert(token, connection);
        token
    }

    fn watch(&self, token: u64) -> io::Result<()> {
        let connection = self.connections.get(&token);
        match connection.and_then(|connection| connection.stream.as_ref()) {
            Some(stream) => self.host.watch(stream, token),
            None => Ok(()),
        }
    }

    /// Removes a connection, which closes its stream.
    fn remove(&mut self, token: u64) {
        if let Some(connection) = self.connections.remove(&token)
            && self.ports.get(&connection.ports) == Some(&token)
        {
            self.ports.remove(&connection.ports);
        }
    }

    /// Removes a connection that is known to the guest, and resets it.
    fn break_off(&mut self, token: u64) {
        if let Some(connection) = self.connections.get(&token) {
            let ports = connection.ports;
            self.remove(token);
            self.reset_ports(ports);
        }
    }

    fn reset_ports(&mut self, ports: Ports) {
        let packet = Packet {
            operation: Operation::RESET,
            flags: 0,
            length: 0,
        };
        self.resets.push_back(header_of(ports, packet, 0));
    }

    /// Queues a connection that may have a packet for the guest.
    fn mark(&mut self, token: u64) {
        if let Some(connection) = self.connections.get_mut(&token)
            && !std::mem::replace(&mut connection.queued, true)
        {
            self.ready.push_back(token);
        }
    }

    /// Handles an event of a connection's stream.
    fn wake(&mut self, token: u64, hung_up: bool) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        connection.wake(hung_up);
        match connection.stage {
            Stage::Greeting => {
                let stream = connection.stream.as_ref();
                match stream.map_or(Greeting::Invalid, greeting) {
                    Greeting::Port(port) => self.request(token, port),
                    Greeting::Incomplete if !connection.is_hung_up() => {}
                    Greeting::Incomplete | Greeting::Invalid => self.remove(token),
                }
            }
            Stage::Requested if connection.is_hung_up() => self.break_off(token),
            Stage::Draining => {
                if connection.flush() {
                    self.remove(token);
                }
            }
            Stage::Open => {
                connection.flush();
            }
            Stage::Requested | Stage::Asked => {}
        }
        self.mark(token);
    }

    /// Requests port `guest` of the guest for a client.
    fn request(&mut self, token: u64, guest: u32) {
        // There are more ports than connections.
        let ports = loop {
            let host = self.next_port;
            self.next_port = match host {
                LAST_PORT => FIRST_PORT,
                port => port.saturating_add(1),
            };
            let ports = Ports { host, guest };
            if !self.ports.contains_key(&ports) {
                break ports;
            }
        };
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.request(ports);
            self.ports.insert(ports, token);
        }
    }

    /// Handles the guest's request for port `ports.host` of the host.
    fn ask(&mut self, ports: Ports, header: &Header) {
        let full = self.connections.len() >= MOST_CONNECTIONS;
        // The owner also answers requests that were given up meanwhile.
        let busy = self.asked.len() >= MOST_CONNECTIONS;
        if full || busy || !self.host.ask(ports.host) {
            self.reset_ports(ports);
            return;
        }
        let mut connection = Connection::new(Stage::Asked, ports, None);
        connection.set_credit(header.room, header.forwarded);
        let token = self.insert(connection);
        self.ports.insert(ports, token);
        self.asked.push_back(token);
    }

    fn take_answers(&mut self) {
        while let Some(answer) = self.host.answer() {
            let Some(token) = self.asked.pop_front() else {
                continue;
            };
            let Some(connection) = self.connections.get_mut(&token) else {
                continue;
            };
            match answer {
                Some(stream) => {
                    connection.answer(stream);
                    match self.watch(token) {
                        Ok(()) => self.mark(token),
                        Err(_) => self.break_off(token),
                    }
                }
                None => self.break_off(token),
            }
        }
    }

    /// Reads packets from the guest. Returns true if chains are left because too many resets wait.
    fn transmit(&mut self, active: &mut Active) -> Result<bool, Violation> {
        if !active.queues.has(TRANSMIT) {
            return Ok(false);
        }
        let mut used = false;
        let held_up = loop {
            if self.resets.len() >= MOST_RESETS {
                break true;
            }
            let queue = active.queues.get(TRANSMIT)?;
            let Some(chain) = queue.pop(&active.memory)? else {
                break false;
            };
            let mut data = chain.readable;
            let bytes = data.take(header::LENGTH).read();
            let header = Header::from_bytes(bytes.ok_or(Violation::BadChain)?);
            let length = usize::try_from(header.length).unwrap_or(usize::MAX);
            let data = data.take(length);
            if data.len() != length {
                return Err(Violation::BadChain);
            }
            self.handle(&header, data);
            let queue = active.queues.get(TRANSMIT)?;
            queue.complete(&active.memory, chain.head, 0)?;
            used = true;
        };
        if used {
            active.notify(TRANSMIT)?;
        }
        Ok(held_up)
    }

    /// Handles a packet from the guest.
    fn handle(&mut self, header: &Header, data: Buffers<'_>) {
        // Packets from or to other addresses are ignored.
        if header.source != GUEST || header.destination != HOST {
            return;
        }
        let ports = Ports {
            host: header.destination_port,
            guest: header.source_port,
        };
        let known = self
            .ports
            .get(&ports)
            .copied()
            .filter(|_| header.kind == header::STREAM);
        match (known, header.operation) {
            (Some(token), Operation::RESET) => self.remove(token),
            (Some(token), operation) => match self.handle_known(token, operation, header, data) {
                Ok(()) => self.mark(token),
                Err(Broken) => self.break_off(token),
            },
            (None, Operation::REQUEST) if header.kind == header::STREAM => self.ask(ports, header),
            (None, Operation::RESET) => {}
            (None, _) => self.reset_ports(ports),
        }
    }

    /// Handles a packet of an existing connection.
    fn handle_known(
        &mut self,
        token: u64,
        operation: Operation,
        header: &Header,
        data: Buffers<'_>,
    ) -> Result<(), Broken> {
        let connection = self.connections.get_mut(&token).ok_or(Broken)?;
        connection.set_credit(header.room, header.forwarded);
        match (connection.stage, operation) {
            (Stage::Requested, Operation::RESPONSE) => connection.accepted(),
            (Stage::Open, Operation::DATA) => connection.deliver(data),
            (Stage::Open, Operation::CREDIT) => Ok(()),
            (Stage::Open, Operation::CREDIT_REQUEST) => {
                connection.owe_credit();
                Ok(())
            }
            (Stage::Open | Stage::Asked, Operation::SHUTDOWN) => {
                if connection.guest_stops(header.flags) {
                    self.conclude(token);
                }
                Ok(())
            }
            _ => Err(Broken),
        }
    }

    /// Handles that the guest has closed a connection. The guest gets its reset immediately, while
    /// the host may take its time to read the remaining data.
    fn conclude(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        let ports = connection.ports;
        connection.stage = Stage::Draining;
        let done = connection.flush();
        self.ports.remove(&ports);
        self.reset_ports(ports);
        if done {
            self.remove(token);
        }
    }

    /// Sends packets to the guest.
    fn receive(&mut self, active: &mut Active) -> Result<(), Violation> {
        if !active.queues.has(RECEIVE) {
            return Ok(());
        }
        let mut used = false;
        while !(self.resets.is_empty() && self.ready.is_empty()) {
            let queue = active.queues.get(RECEIVE)?;
            let Some(mut chain) = queue.pop(&active.memory)? else {
                break;
            };
            let place = chain.writable.take(header::LENGTH);
            if chain.writable.len() == 0 {
                return Err(Violation::BadBuffer);
            }
            let Some(packet) = self.next(chain.writable) else {
                queue.undo_pop();
                break;
            };
            place.copy_from(&packet.to_bytes());
            let length = usize::try_from(packet.length).unwrap_or(usize::MAX);
            let written = header::LENGTH.saturating_add(length);
            queue.complete(&active.memory, chain.head, written)?;
            used = true;
        }
        if used { active.notify(RECEIVE) } else { Ok(()) }
    }

    /// Returns the next packet for the guest, whose data is already in `room`.
    fn next(&mut self, room: Buffers<'_>) -> Option<Header> {
        loop {
            if let Some(reset) = self.resets.pop_front() {
                return Some(reset);
            }
            let token = self.ready.pop_front()?;
            let Some(connection) = self.connections.get_mut(&token) else {
                continue;
            };
            connection.queued = false;
            match connection.next(&mut room.clone()) {
                Ok(Some(packet)) => {
                    let packet = header_of(connection.ports, packet, connection.forwarded());
                    // It may have more data, but other connections are first.
                    self.mark(token);
                    return Some(packet);
                }
                Ok(None) => {}
                Err(Broken) => self.break_off(token),
            }
        }
    }
}

/// Returns the header of a packet to the guest.
fn header_of(ports: Ports, packet: Packet, forwarded: u32) -> Header {
    Header {
        source: HOST,
        destination: GUEST,
        source_port: ports.host,
        destination_port: ports.guest,
        length: packet.length,
        kind: header::STREAM,
        operation: packet.operation,
        flags: packet.flags,
        room: ROOM,
        forwarded,
    }
}

impl Device for Vsock {
    fn id(&self) -> u32 {
        VIRTIO_ID_VSOCK
    }

    fn queue_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    fn config(&self) -> &[u8] {
        &self.config
    }

    fn reset(&mut self) {
        self.connections.clear();
        self.ports.clear();
        self.ready.clear();
        self.resets.clear();
        self.clients = true;
        self.is_copy = false;
    }

    fn resume(&mut self, _saved: &[u8]) -> Result<(), postcard::Error> {
        self.is_copy = true;
        Ok(())
    }

    fn queue(&mut self, index: usize, active: &mut Active) -> Result<(), Violation> {
        match index {
            RECEIVE | TRANSMIT => self.work(active),
            _events => self.announce(active),
        }
    }

    fn source(&self) -> Option<(RawFd, EventSet)> {
        Some((self.host.source(), EventSet::IN | EventSet::EDGE_TRIGGERED))
    }

    fn host(&mut self, active: &mut Active) -> Result<(), Violation> {
        self.work(active)
    }
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod hostile;
#[cfg(test)]
mod tests;
