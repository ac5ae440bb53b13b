//! TCP: the guest's connections end in smoltcp, and each has a socket of the host's.

mod device;
mod flow;

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, Shutdown, SocketFlags, SocketType, connect, shutdown, socket_with,
};
use smoltcp::iface::{Config, Interface, PollResult, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::wire::{
    HardwareAddress, Icmpv4DstUnreachable, IpAddress, IpCidr, IpListenEndpoint, TcpPacket,
};

use crate::Publish;
use crate::dns::PORT as DNS_PORT;
use crate::io::Io;
use crate::link::Link;
use crate::packet::{Packet, send_unreachable, unreachable};
use crate::poll::{Event, Id, Token};
use device::Device;
use flow::{Fate, Flow, Key, Origin, Stage};

/// Most connections at a time, both ways together; a request beyond waits, as the guest's
/// kernel repeats it. A process may have 1024 descriptors by default, and this one needs
/// others too.
const MAX_FLOWS: usize = 512;

/// Bytes on the way in each direction of a connection: two of the largest segments.
const BUFFER: usize = 128 << 10;

/// So long may the guest leave data unacknowledged, paused machines included.
const PATIENCE: Duration = Duration::from_secs(15 * 60);

/// Ports of the gateway's that connections to published ports come from.
const CALLING_PORTS: std::ops::Range<u16> = 32768..61000;

pub(crate) struct Tcp {
    interface: Interface,
    sockets: SocketSet<'static>,
    flows: HashMap<Id, Flow>,
    by_guest: HashMap<Key, Id>,
    calling: HashSet<u16>,
    next_port: u16,
    published: HashMap<Id, Published>,
    /// smoltcp counts from here.
    start: Instant,
}

/// A published port.
struct Published {
    listener: TcpListener,
    guest_port: u16,
    /// Connections may wait to be accepted.
    readable: bool,
}

impl Drop for Published {
    fn drop(&mut self) {
        // The port is free from here on, even if a child that another thread is just starting
        // holds the socket as well.
        let _ = shutdown(&self.listener, Shutdown::Both);
    }
}

impl Tcp {
    pub(crate) fn new(link: &mut Link, now: Instant, seed: u64) -> Self {
        let own = *link.addresses();
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = seed;
        let mut device = Device {
            incoming: None,
            link,
        };
        let mut interface = Interface::new(config, &mut device, smoltcp::time::Instant::ZERO);
        // It answers for every address that the guest sends to.
        interface.set_any_ip(true);
        interface.update_ip_addrs(|addresses| {
            // There is room for two.
            let _ = addresses.push(IpCidr::new(own.gateway.into(), own.prefix));
        });
        Self {
            interface,
            sockets: SocketSet::new(Vec::new()),
            flows: HashMap::new(),
            by_guest: HashMap::new(),
            calling: HashSet::new(),
            next_port: CALLING_PORTS.start,
            published: HashMap::new(),
            start: now,
        }
    }

    /// Starts to listen for a published port.
    pub(crate) fn publish(&mut self, io: &mut Io, port: &Publish) -> io::Result<()> {
        let listener = TcpListener::bind(port.host)?;
        listener.set_nonblocking(true)?;
        let id = io.poll.next_id();
        io.poll.add(&listener, Token::TcpPort(id))?;
        let published = Published {
            listener,
            guest_port: port.guest,
            readable: false,
        };
        self.published.insert(id, published);
        Ok(())
    }

    /// Takes in a packet of the guest's.
    pub(crate) fn receive(&mut self, io: &mut Io, packet: &Packet<'_>) {
        let Ok(header) = TcpPacket::new_checked(packet.payload) else {
            return;
        };
        if header.syn() && !header.ack() && !header.rst() {
            let key = Key {
                guest_port: header.src_port(),
                to: SocketAddrV4::new(packet.to, header.dst_port()),
            };
            let known = self.by_guest.get(&key).and_then(|id| self.flows.get(id));
            match known.map(|flow| &flow.stage) {
                None => return self.open(io, key, packet.bytes),
                // The guest repeats itself; the answer is on its way.
                Some(Stage::Connecting { .. }) => return,
                Some(Stage::Open(_)) => {}
            }
        }
        self.ingress(io, packet.bytes);
    }

    fn ingress(&mut self, io: &mut Io, packet: &[u8]) {
        let now = self.clock(io.now);
        let mut device = Device {
            incoming: Some(packet),
            link: &mut io.link,
        };
        self.interface
            .poll_ingress_single(now, &mut device, &mut self.sockets);
    }

    /// Asks the host's side for what the guest asks for.
    fn open(&mut self, io: &mut Io, key: Key, request: &[u8]) {
        if self.flows.len() >= MAX_FLOWS {
            return;
        }
        let is_resolver = *key.to.ip() == io.link.addresses().gateway && key.to.port() == DNS_PORT;
        let target = if is_resolver {
            // Long answers come by TCP. Rules about names need to see the questions, and
            // those they see by UDP only.
            match io.resolvers.get(0, io.now).filter(|_| io.policy.is_open()) {
                Some(address) => address,
                None => return self.refuse(io, request),
            }
        } else {
            match io.route(*key.to.ip(), key.to.port()) {
                Some(address) => SocketAddr::from((address, key.to.port())),
                None => {
                    let why = Icmpv4DstUnreachable::CommProhibited;
                    return send_unreachable(&mut io.link, why, request);
                }
            }
        };
        let id = io.poll.next_id();
        let host = match start_connecting(target)
            .and_then(|host| io.poll.add(&host, Token::Tcp(id)).map(|()| host))
        {
            Ok(host) => host,
            Err(error) => return self.fail(io, &error, request),
        };
        let stage = Stage::Connecting {
            request: request.to_vec(),
        };
        self.by_guest.insert(key, id);
        self.flows
            .insert(id, Flow::new(Origin::Guest(key), host, stage));
    }

    /// The guest's request gets what a closed port would answer.
    fn refuse(&mut self, io: &mut Io, request: &[u8]) {
        // No socket listens, so this makes a reset.
        self.ingress(io, request);
    }

    fn fail(&mut self, io: &mut Io, error: &io::Error, request: &[u8]) {
        if error.kind() == io::ErrorKind::ConnectionRefused {
            self.refuse(io, request);
        } else {
            send_unreachable(&mut io.link, unreachable(error), request);
        }
    }

    /// Something happened to a host's socket.
    pub(crate) fn event(&mut self, io: &mut Io, id: Id, event: Event) {
        let Some(flow) = self.flows.get_mut(&id) else {
            return;
        };
        flow.readable |= event.readable;
        flow.writable |= event.writable;
        let Stage::Connecting { request } = &mut flow.stage else {
            return;
        };
        let request = std::mem::take(request);
        match flow.host.take_error() {
            Ok(None) if event.writable => self.accept(io, id, &request),
            Ok(None) => flow.stage = Stage::Connecting { request },
            Ok(Some(error)) | Err(error) => {
                self.forget(id);
                self.fail(io, &error, &request);
            }
        }
    }

    /// Accepts the guest's request.
    fn accept(&mut self, io: &mut Io, id: Id, request: &[u8]) {
        let Some(flow) = self.flows.get_mut(&id) else {
            return;
        };
        let Origin::Guest(key) = flow.origin else {
            return;
        };
        let mut socket = new_socket();
        let endpoint = IpListenEndpoint {
            addr: Some(IpAddress::Ipv4(*key.to.ip())),
            port: key.to.port(),
        };
        if socket.listen(endpoint).is_err() {
            // Port 0, which nobody can listen on.
            return self.forget(id);
        }
        flow.stage = Stage::Open(self.sockets.add(socket));
        self.ingress(io, request);
    }

    /// A published port has connections waiting.
    pub(crate) fn port_event(&mut self, id: Id) {
        if let Some(port) = self.published.get_mut(&id) {
            port.readable = true;
        }
    }

    /// Takes connections to published ports and starts to connect them to the guest.
    fn take_calls(&mut self, io: &mut Io) {
        let mut calls = Vec::new();
        for port in self.published.values_mut() {
            while port.readable && self.flows.len() + calls.len() < MAX_FLOWS {
                match port.listener.accept() {
                    Ok((host, _)) => calls.push((host, port.guest_port)),
                    // Of this port, or of descriptors: either way another event follows,
                    // and what waits goes on waiting.
                    Err(_) => port.readable = false,
                }
            }
        }
        for (host, guest_port) in calls {
            // One that fails is closed, which its other end notices.
            let _ = self.call(io, host, guest_port);
        }
    }

    fn call(&mut self, io: &mut Io, host: TcpStream, guest_port: u16) -> io::Result<()> {
        host.set_nonblocking(true)?;
        host.set_nodelay(true)?;
        let own = *io.link.addresses();
        let port = self.calling_port().ok_or(io::ErrorKind::AddrInUse)?;
        let mut socket = new_socket();
        let (to, from) = ((own.guest, guest_port), (own.gateway, port));
        socket
            .connect(self.interface.context(), to, from)
            .map_err(|_| io::ErrorKind::InvalidInput)?;
        let id = io.poll.next_id();
        io.poll.add(&host, Token::Tcp(id))?;
        let stage = Stage::Open(self.sockets.add(socket));
        self.calling.insert(port);
        self.flows
            .insert(id, Flow::new(Origin::Host(port), host, stage));
        Ok(())
    }

    fn calling_port(&mut self) -> Option<u16> {
        for _ in 0..CALLING_PORTS.len() {
            let port = self.next_port;
            self.next_port = match port + 1 {
                next if CALLING_PORTS.contains(&next) => next,
                _ => CALLING_PORTS.start,
            };
            if !self.calling.contains(&port) {
                return Some(port);
            }
        }
        None
    }

    /// Moves everything that can be moved.
    pub(crate) fn advance(&mut self, io: &mut Io) {
        self.take_calls(io);
        let mut over = Vec::new();
        for (id, flow) in &mut self.flows {
            if let Stage::Open(handle) = flow.stage
                && flow.pump(self.sockets.get_mut::<Socket>(handle)) == Fate::Over
            {
                over.push(*id);
            }
        }
        let now = self.clock(io.now);
        while io.link.has_room() {
            let mut device = Device {
                incoming: None,
                link: &mut io.link,
            };
            let sent = self
                .interface
                .poll_egress(now, &mut device, &mut self.sockets);
            if sent == PollResult::None {
                // Everybody has had a say: whoever is over has said its last.
                for id in over.drain(..) {
                    self.forget(id);
                }
                break;
            }
        }
    }

    /// Whether the host's side has yet to take something that the guest sent.
    pub(crate) fn has_undelivered(&self) -> bool {
        self.flows.values().any(|flow| match flow.stage {
            Stage::Open(handle) => self.sockets.get::<Socket>(handle).can_recv(),
            Stage::Connecting { .. } => false,
        })
    }

    fn forget(&mut self, id: Id) {
        let Some(flow) = self.flows.remove(&id) else {
            return;
        };
        match flow.origin {
            Origin::Guest(key) => {
                self.by_guest.remove(&key);
            }
            Origin::Host(port) => {
                self.calling.remove(&port);
            }
        }
        if let Stage::Open(handle) = flow.stage {
            self.sockets.remove(handle);
        }
    }

    /// How long nothing happens if nobody does anything.
    pub(crate) fn quiet_for(&mut self, io: &Io) -> Option<Duration> {
        if !io.link.has_room() {
            return None; // Whatever is due has to wait until there is.
        }
        let delay = self
            .interface
            .poll_delay(self.clock(io.now), &self.sockets)?;
        Some(delay.into())
    }

    fn clock(&self, now: Instant) -> smoltcp::time::Instant {
        let micros = now.saturating_duration_since(self.start).as_micros();
        smoltcp::time::Instant::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
    }
}

fn new_socket() -> Socket<'static> {
    let buffer = || SocketBuffer::new(vec![0; BUFFER]);
    let mut socket = Socket::new(buffer(), buffer());
    socket.set_timeout(Some(PATIENCE.into()));
    socket.set_nagle_enabled(false);
    socket.set_ack_delay(None);
    socket
}

fn start_connecting(target: SocketAddr) -> io::Result<TcpStream> {
    let family = match target {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let host = TcpStream::from(socket_with(family, SocketType::STREAM, flags, None)?);
    host.set_nodelay(true)?;
    match connect(&host, &target) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(host),
        Err(errno) => Err(errno.into()),
    }
}
