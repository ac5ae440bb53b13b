//! UDP and ICMP echo: each conversation of the guest has a socket of the host, and each published
//! port has one socket for all its callers.

mod echo;
mod table;

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};

use smoltcp::wire::{Icmpv4DstUnreachable, UdpPacket};

use crate::dns::{self, Proxy};
use crate::io::Io;
use crate::packet::{Packet, send_udp, send_unreachable, unreachable};
use crate::places::Places;
use crate::poll::{Event, Id, Token};
use echo::Request;
use table::Table;

/// How long an idle conversation is kept. RFC 4787 requires an address translator to keep one for
/// at least two minutes.
const IDLE: Duration = Duration::from_secs(120);

/// How long a conversation is kept that awaits an answer, while others want its place: as long as
/// Linux's own address translator keeps one (`nf_conntrack_udp_timeout`).
const UNANSWERED: Duration = Duration::from_secs(30);

/// Datagrams taken from one socket before the other sockets have their turn.
const TURN: usize = 32;

/// Bytes of the longest datagram.
const MAX_DATAGRAM: usize = 65535;

/// The gateway's ports that stand for callers of published ports.
const CALLING_PORTS: std::ops::Range<u16> = 32768..61000;

pub(crate) struct Datagrams {
    flows: Table<Key, Flow>,
    /// Conversations whose socket may have something to read.
    readable: BTreeSet<Id>,
    published: HashMap<Id, Published>,
    callers: Table<Caller, u16>,
    by_port: HashMap<u16, Caller>,
    next_port: u16,
    buffer: Vec<u8>,
}

/// Identifies a conversation that the guest began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    Udp { guest_port: u16, to: SocketAddrV4 },
    Echo { identifier: u16, to: Ipv4Addr },
}

#[derive(Debug)]
struct Flow {
    socket: UdpSocket,
    /// Whether something has come since the guest last sent something.
    is_answered: bool,
    /// The beginning of the last packet sent, as much as an ICMP error quotes.
    last: Vec<u8>,
}

/// A sender of datagrams to a published port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Caller {
    published: Id,
    address: SocketAddr,
}

#[derive(Debug)]
struct Published {
    socket: UdpSocket,
    guest_port: u16,
    readable: bool,
}

impl Datagrams {
    /// Makes the tables, with as many places as given.
    pub(crate) fn new(places: Places) -> Self {
        Self {
            flows: Table::new(places.conversations, IDLE),
            readable: BTreeSet::new(),
            published: HashMap::new(),
            callers: Table::new(places.callers, IDLE),
            by_port: HashMap::new(),
            next_port: CALLING_PORTS.start,
            buffer: vec![0; MAX_DATAGRAM],
        }
    }

    /// Starts to listen at an address of the host, for a port of the guest's. Returns the address.
    pub(crate) fn publish(
        &mut self,
        io: &mut Io,
        host: SocketAddr,
        guest_port: u16,
    ) -> io::Result<SocketAddr> {
        let socket = UdpSocket::bind(host)?;
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        let id = io.poll.next_id();
        io.poll.add(&socket, Token::UdpPort(id))?;
        let published = Published {
            socket,
            guest_port,
            readable: false,
        };
        self.published.insert(id, published);
        Ok(address)
    }

    /// Handles a UDP packet from the guest.
    pub(crate) fn receive(&mut self, io: &mut Io, dns: &mut Proxy, packet: &Packet<'_>) {
        let Ok(datagram) = UdpPacket::new_checked(packet.payload) else {
            return;
        };
        let (guest_port, port) = (datagram.src_port(), datagram.dst_port());
        let data = datagram.payload();
        if packet.to == io.link.addresses().gateway {
            if port == dns::PORT {
                return dns.receive(io, guest_port, data);
            }
            if let Some(caller) = self.by_port.get(&port) {
                return self.answer(io.now, *caller, guest_port, data);
            }
        }
        let key = Key::Udp {
            guest_port,
            to: SocketAddrV4::new(packet.to, port),
        };
        if self.flows.by_key(&key, io.now).is_none() {
            let Some(target) = io.route(packet.to, port) else {
                return prohibit(io, packet);
            };
            self.open(io, key, packet, || {
                let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
                socket.set_nonblocking(true)?;
                socket.connect((target, port))?;
                Ok(socket)
            });
        }
        self.send(io, key, data, packet);
    }

    /// Handles an ICMP packet from the guest.
    pub(crate) fn receive_icmp(&mut self, io: &mut Io, packet: &Packet<'_>) {
        let Some(request) = Request::parse(packet.payload) else {
            return;
        };
        let Request {
            identifier,
            sequence,
            data,
        } = request;
        if packet.to == io.link.addresses().gateway {
            return echo::send_reply(&mut io.link, packet.to, identifier, sequence, data);
        }
        let key = Key::Echo {
            identifier,
            to: packet.to,
        };
        if self.flows.by_key(&key, io.now).is_none() {
            // ICMP has no ports: rules with a port don't apply.
            match io.route(packet.to, 0) {
                Some(target) => self.open(io, key, packet, || echo::socket(target)),
                None => return prohibit(io, packet),
            }
        }
        self.send(io, key, &request.to_message(), packet);
    }

    /// Begins a conversation. When all places are taken, one that owes the guest no answer makes room;
    /// without one, the guest learns that there is none.
    fn open(
        &mut self,
        io: &mut Io,
        key: Key,
        packet: &Packet<'_>,
        socket: impl FnOnce() -> io::Result<UdpSocket>,
    ) {
        let may_go = |flow: &Flow, idle: Duration| flow.is_answered || idle >= UNANSWERED;
        if self.flows.is_full() && self.flows.remove_idle(io.now, may_go).is_none() {
            return prohibit(io, packet);
        }
        let id = io.poll.next_id();
        let opened = socket().and_then(|socket| {
            io.poll.add(&socket, Token::Datagram(id))?;
            Ok(socket)
        });
        match opened {
            Ok(socket) => {
                let flow = Flow {
                    socket,
                    is_answered: false,
                    last: Vec::new(),
                };
                self.flows.insert(id, key, flow, io.now);
            }
            Err(error) => send_unreachable(&mut io.link, unreachable(&error), packet.bytes),
        }
    }

    fn send(&mut self, io: &mut Io, key: Key, data: &[u8], packet: &Packet<'_>) {
        let Some((_, flow)) = self.flows.by_key(&key, io.now) else {
            return;
        };
        let quote = packet.bytes.len().min(MAX_QUOTE);
        flow.last.clear();
        flow.last
            .extend(packet.bytes.get(..quote).unwrap_or_default());
        flow.is_answered = false;
        match flow.socket.send(data) {
            // A full buffer drops the datagram, as networks do.
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                flow.is_answered = true;
                send_unreachable(&mut io.link, unreachable(&error), packet.bytes);
            }
        }
    }

    /// Sends the guest's datagram to a caller of a published port.
    fn answer(&mut self, now: Instant, caller: Caller, guest_port: u16, data: &[u8]) {
        let Some(port) = self.published.get(&caller.published) else {
            return;
        };
        if port.guest_port == guest_port && self.callers.by_key(&caller, now).is_some() {
            let _ = port.socket.send_to(data, caller.address);
        }
    }

    /// Handles an event of a conversation's socket.
    pub(crate) fn event(&mut self, id: Id, event: Event) {
        if event.readable {
            self.readable.insert(id);
        }
    }

    /// Handles an event of a published port's socket.
    pub(crate) fn port_event(&mut self, id: Id, event: Event) {
        if let Some(port) = self.published.get_mut(&id) {
            port.readable |= event.readable;
        }
    }

    /// Sends received datagrams to the guest, as far as the link has room. Returns whether there
    /// may be more.
    pub(crate) fn advance(&mut self, io: &mut Io) -> bool {
        while self.flows.expire(io.now).is_some() {}
        while let Some(port) = self.callers.expire(io.now) {
            self.by_port.remove(&port);
        }
        let mut more = false;
        for id in std::mem::take(&mut self.readable) {
            match self.drain(io, id) {
                Drained::Empty => {}
                Drained::Full => {
                    self.readable.insert(id);
                }
                Drained::Partly => {
                    self.readable.insert(id);
                    more = true;
                }
            }
        }
        let ports = self.published.iter().filter(|(_, port)| port.readable);
        for id in ports.map(|(id, _)| *id).collect::<Vec<Id>>() {
            more |= self.drain_port(io, id);
        }
        more
    }

    /// Sends one conversation's datagrams to the guest.
    fn drain(&mut self, io: &mut Io, id: Id) -> Drained {
        let Some((key, flow)) = self.flows.by_id(id, io.now) else {
            return Drained::Empty;
        };
        for _ in 0..TURN {
            if !io.link.has_room() {
                return Drained::Full;
            }
            match flow.socket.recv(&mut self.buffer) {
                Ok(length) => {
                    flow.is_answered = true;
                    let data = self.buffer.get(..length).unwrap_or_default();
                    match key {
                        Key::Udp { guest_port, to } => {
                            send_udp(&mut io.link, *to.ip(), to.port(), guest_port, data);
                        }
                        Key::Echo { identifier, to } => {
                            echo::pass_on(&mut io.link, to, identifier, data);
                        }
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Drained::Empty,
                // An ICMP error that the host received; the guest has not seen it yet.
                Err(error) => {
                    flow.is_answered = true;
                    send_unreachable(&mut io.link, unreachable(&error), &flow.last);
                }
            }
        }
        Drained::Partly
    }

    /// Sends a published port's datagrams to the guest. Returns whether there may be more.
    fn drain_port(&mut self, io: &mut Io, id: Id) -> bool {
        for _ in 0..TURN {
            if !io.link.has_room() {
                return false;
            }
            let Some(port) = self.published.get_mut(&id) else {
                return false;
            };
            let (length, address) = match port.socket.recv_from(&mut self.buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    port.readable = false;
                    return false;
                }
                Err(_) => continue,
            };
            let guest_port = port.guest_port;
            let caller = Caller {
                published: id,
                address,
            };
            let Some(shown) = self.shown_as(io, caller) else {
                continue; // Not reached: there are more ports than callers.
            };
            let gateway = io.link.addresses().gateway;
            let data = self.buffer.get(..length).unwrap_or_default();
            send_udp(&mut io.link, gateway, shown, guest_port, data);
        }
        true
    }

    /// Returns the gateway's port that stands for a caller. The caller that has been idle longest makes
    /// room for a new one; what the guest still sends to it is answered as by a closed port.
    fn shown_as(&mut self, io: &mut Io, caller: Caller) -> Option<u16> {
        if let Some((_, port)) = self.callers.by_key(&caller, io.now) {
            return Some(*port);
        }
        if self.callers.is_full()
            && let Some(port) = self.callers.remove_idle(io.now, |_, _| true)
        {
            self.by_port.remove(&port);
        }
        let port = self.calling_port()?;
        let id = io.poll.next_id();
        self.callers.insert(id, caller, port, io.now);
        self.by_port.insert(port, caller);
        Some(port)
    }

    fn calling_port(&mut self) -> Option<u16> {
        for _ in 0..CALLING_PORTS.len() {
            let port = self.next_port;
            self.next_port = match port + 1 {
                next if CALLING_PORTS.contains(&next) => next,
                _ => CALLING_PORTS.start,
            };
            if !self.by_port.contains_key(&port) {
                return Some(port);
            }
        }
        None
    }

    /// Returns the time until an entry expires; None without entries.
    pub(crate) fn quiet_for(&self, now: Instant) -> Option<Duration> {
        let both = [self.flows.quiet_for(now), self.callers.quiet_for(now)];
        both.into_iter().flatten().min()
    }
}

/// How far a socket was read.
enum Drained {
    /// To its end.
    Empty,
    /// Until the link was full: an event follows when it has room again.
    Full,
    /// As far as a turn goes.
    Partly,
}

/// Bytes of a packet that are kept for a quote.
const MAX_QUOTE: usize = 68;

fn prohibit(io: &mut Io, packet: &Packet<'_>) {
    // Packets to multicast and broadcast addresses get no ICMP error (RFC 1122, section 3.2.2).
    if !packet.to.is_multicast() && !packet.to.is_broadcast() {
        let why = Icmpv4DstUnreachable::CommProhibited;
        send_unreachable(&mut io.link, why, packet.bytes);
    }
}
