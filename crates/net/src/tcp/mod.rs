//! TCP: each of the guest's connections ends in smoltcp and continues in a socket of the host.

mod device;
mod flow;
mod request;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Shutdown, SocketFlags, SocketType, connect, listen, shutdown, socket_with,
};
use smoltcp::iface::{Config, Interface, PollResult, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr, IpListenEndpoint, TcpPacket};

use crate::dns::PORT as DNS_PORT;
use crate::io::Io;
use crate::link::Link;
use crate::packet::{Packet, send_unreachable, unreachable};
use crate::poll::{Event, Id, Token};
use device::Device;
use flow::{Fate, Flow, Key, Origin, Stage};
use request::{Request, is_request};

/// Bytes buffered in each direction of a connection: a few of the largest segments, so that neither
/// side has to be woken up for each. The more connections there are, the fewer for a new one, so that
/// a guest with all of them has half a GiB.
const BUFFERS: [(std::ops::RangeToInclusive<usize>, usize); 2] =
    [(..=32, 1 << 20), (..=1024, 128 << 10)];

/// The same for a connection beyond those.
const NARROW_BUFFER: usize = 32 << 10;

/// Callers of a published port that may wait until they are accepted, as far as the host allows
/// (`net.core.somaxconn`).
const BACKLOG: i32 = 4096;

/// How long the guest may leave data unacknowledged, including the time that its machine is paused.
const PATIENCE: Duration = Duration::from_secs(15 * 60);

/// The gateway's ports that connections to published ports come from.
const CALLING_PORTS: std::ops::Range<u16> = 32768..61000;

pub(crate) struct Tcp {
    interface: Interface,
    sockets: SocketSet<'static>,
    flows: BTreeMap<Id, Flow>,
    by_guest: BTreeMap<Key, Id>,
    calling: HashSet<u16>,
    next_port: u16,
    published: HashMap<Id, Published>,
    /// Maximum number of connections at a time, in both directions together, including those that are
    /// not established yet. When it is reached, the oldest of the latter makes room for a new one; if
    /// all are established, the guest's request is refused and the host's waits.
    max_flows: usize,
    /// No pending request expires before this time.
    next_check: Option<Instant>,
    /// The zero of smoltcp's clock.
    start: Instant,
}

/// A published port.
struct Published {
    listener: TcpListener,
    guest_port: u16,
    /// Whether connections may wait to be accepted.
    readable: bool,
}

impl Drop for Published {
    fn drop(&mut self) {
        // Shutting down frees the port here, even if a child that another thread is just starting
        // holds the socket as well.
        let _ = shutdown(&self.listener, Shutdown::Both);
    }
}

impl Tcp {
    pub(crate) fn new(link: &mut Link, now: Instant, seed: u64, max_flows: usize) -> Self {
        let own = *link.addresses();
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = seed;
        let mut device = Device {
            incoming: None,
            link,
        };
        let mut interface = Interface::new(config, &mut device, smoltcp::time::Instant::ZERO);
        // The interface accepts packets to every address that the guest sends to.
        interface.set_any_ip(true);
        interface.update_ip_addrs(|addresses| {
            // smoltcp has room for two addresses.
            let _ = addresses.push(IpCidr::new(own.gateway.into(), own.prefix));
        });
        Self {
            interface,
            sockets: SocketSet::new(Vec::new()),
            flows: BTreeMap::new(),
            by_guest: BTreeMap::new(),
            calling: HashSet::new(),
            next_port: CALLING_PORTS.start,
            published: HashMap::new(),
            max_flows,
            next_check: None,
            start: now,
        }
    }

    /// Starts to listen at an address of the host, for a port of the guest's. Returns the address.
    pub(crate) fn publish(
        &mut self,
        io: &mut Io,
        host: SocketAddr,
        guest_port: u16,
    ) -> io::Result<SocketAddr> {
        let listener = TcpListener::bind(host)?;
        listen(&listener, BACKLOG)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let id = io.poll.next_id();
        io.poll.add(&listener, Token::TcpPort(id))?;
        let published = Published {
            listener,
            guest_port,
            readable: false,
        };
        self.published.insert(id, published);
        Ok(address)
    }

    /// Handles a TCP packet from the guest.
    pub(crate) fn receive(&mut self, io: &mut Io, packet: &Packet<'_>) {
        let Ok(header) = TcpPacket::new_checked(packet.payload) else {
            return;
        };
        let key = Key {
            guest_port: header.src_port(),
            to: SocketAddrV4::new(packet.to, header.dst_port()),
        };
        let id = self.by_guest.get(&key).copied();
        let flow = id.and_then(|id| self.flows.get_mut(&id));
        let is_new = header.syn() && !header.ack() && !header.rst();
        match flow.map(|flow| &mut flow.stage) {
            Some(Stage::Open(_)) => {}
            _ if is_new && !is_request(packet, io.link.addresses().guest) => return,
            None if is_new => return self.open(io, key, packet.bytes),
            // The host's side has not answered yet.
            Some(Stage::Connecting(request)) if is_new => {
                return request.repeat(packet.bytes, io.now);
            }
            Some(Stage::Connecting(_)) if header.rst() || header.fin() => {
                self.forget(id.unwrap_or_default());
            }
            _ => {}
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

    /// Starts to connect the host's side to the destination that the guest requests.
    fn open(&mut self, io: &mut Io, key: Key, request: &[u8]) {
        let is_resolver = *key.to.ip() == io.link.addresses().gateway && key.to.port() == DNS_PORT;
        let targets = if !is_resolver {
            let address = io.route(*key.to.ip(), key.to.port());
            Vec::from_iter(address.map(|address| (address, key.to.port()).into()))
        } else if io.policy.is_open() {
            io.resolvers.by_tcp(io.now)
        } else {
            // Long DNS answers come over TCP. Rules about names must see the queries, and they see
            // only those over UDP: TCP is allowed only without such rules.
            Vec::new()
        };
        if targets.is_empty() || (self.flows.len() >= self.max_flows && !self.make_room()) {
            return self.refuse(io, request);
        }
        self.connect(io, key, Request::new(request, targets.into(), io.now));
    }

    /// Starts to connect to the first of the request's targets with which that is possible.
    fn connect(&mut self, io: &mut Io, key: Key, mut request: Request) {
        let id = io.poll.next_id();
        let mut failure = io::ErrorKind::ConnectionRefused.into();
        while let Some(target) = request.targets.pop_front() {
            let host = start_connecting(target)
                .and_then(|host| io.poll.add(&host, Token::Tcp(id)).map(|()| host));
            let host = match host {
                Ok(host) => host,
                Err(error) => {
                    failure = error;
                    continue;
                }
            };
            let until = request.until;
            self.next_check = Some(self.next_check.map_or(until, |check| check.min(until)));
            self.by_guest.insert(key, id);
            let stage = Stage::Connecting(request);
            self.flows
                .insert(id, Flow::new(Origin::Guest(key), host, stage));
            return;
        }
        self.fail(io, &failure, &request.packet);
    }

    /// Drops the oldest request that the host's side has not answered; false if there is none. A
    /// guest that still wants the connection repeats its request.
    fn make_room(&mut self) -> bool {
        let oldest = self.requests().map(|(id, _)| id).min();
        oldest.is_some_and(|id| self.forget(id).is_some())
    }

    fn requests(&self) -> impl Iterator<Item = (Id, &Request)> {
        self.flows
            .iter()
            .filter_map(|(id, flow)| match &flow.stage {
                Stage::Connecting(request) => Some((*id, request)),
                Stage::Open(_) => None,
            })
    }

    /// Drops the requests that the guest has given up.
    fn give_up(&mut self, now: Instant) {
        if self.next_check.is_none_or(|check| now < check) {
            return;
        }
        let requests = self.requests().map(|(id, request)| (id, request.until));
        let (late, others): (Vec<_>, Vec<_>) = requests.partition(|(_, until)| *until <= now);
        self.next_check = others.into_iter().map(|(_, until)| until).min();
        for (id, _) in late {
            self.forget(id);
        }
    }

    /// Answers the guest's request as a closed port would.
    fn refuse(&mut self, io: &mut Io, request: &[u8]) {
        // No socket listens, so smoltcp replies with a reset.
        self.ingress(io, request);
    }

    fn fail(&mut self, io: &mut Io, error: &io::Error, request: &[u8]) {
        let errno = Errno::from_io_error(error);
        let is_full = matches!(errno, Some(Errno::MFILE | Errno::NFILE));
        if is_full || error.kind() == io::ErrorKind::ConnectionRefused {
            self.refuse(io, request);
        } else {
            send_unreachable(&mut io.link, unreachable(error), request);
        }
    }

    /// Handles an event of a host's socket.
    pub(crate) fn event(&mut self, io: &mut Io, id: Id, event: Event) {
        let Some(flow) = self.flows.get_mut(&id) else {
            return;
        };
        flow.readable |= event.readable;
        flow.writable |= event.writable;
        if matches!(flow.stage, Stage::Open(_)) {
            return;
        }
        match flow.host.take_error() {
            Ok(None) if event.writable => self.accept(io, id),
            Ok(None) => {}
            Ok(Some(error)) | Err(error) => {
                let origin = flow.origin;
                let (Some(Stage::Connecting(request)), Origin::Guest(key)) =
                    (self.forget(id), origin)
                else {
                    return;
                };
                if request.targets.is_empty() {
                    self.fail(io, &error, &request.packet);
                } else {
                    self.connect(io, key, request);
                }
            }
        }
    }

    /// Accepts the guest's request.
    fn accept(&mut self, io: &mut Io, id: Id) {
        let flows = self.flows.len();
        let Some(flow) = self.flows.get_mut(&id) else {
            return;
        };
        let Origin::Guest(key) = flow.origin else {
            return;
        };
        let mut socket = new_socket(flows);
        let endpoint = IpListenEndpoint {
            addr: Some(IpAddress::Ipv4(*key.to.ip())),
            port: key.to.port(),
        };
        if socket.listen(endpoint).is_err() {
            // Port 0, on which smoltcp can't listen.
            self.forget(id);
            return;
        }
        let handle = self.sockets.add(socket);
        let stage = std::mem::replace(&mut flow.stage, Stage::Open(handle));
        if let Stage::Connecting(request) = stage {
            self.ingress(io, &request.packet);
        }
        if self.sockets.get::<Socket>(handle).state() == State::Listen {
            self.forget(id);
        }
    }

    /// Notes that a published port has connections waiting.
    pub(crate) fn port_event(&mut self, id: Id) {
        if let Some(port) = self.published.get_mut(&id) {
            port.readable = true;
        }
    }

    /// Accepts connections to published ports and starts to connect them to the guest.
    fn take_calls(&mut self, io: &mut Io) {
        let ports = self.published.iter().filter(|(_, port)| port.readable);
        for id in ports.map(|(id, _)| *id).collect::<Vec<Id>>() {
            while self.flows.len() < self.max_flows || self.make_room() {
                let Some(port) = self.published.get_mut(&id) else {
                    break;
                };
                let guest_port = port.guest_port;
                let Ok((host, _)) = port.listener.accept() else {
                    // The queue is empty, or the process is out of descriptors: in both cases
                    // another event follows, and waiting connections keep waiting.
                    port.readable = false;
                    break;
                };
                // On failure the connection is closed, which the other end notices.
                let _ = self.call(io, host, guest_port);
            }
        }
    }

    fn call(&mut self, io: &mut Io, host: TcpStream, guest_port: u16) -> io::Result<()> {
        host.set_nonblocking(true)?;
        host.set_nodelay(true)?;
        let own = *io.link.addresses();
        let port = self.calling_port().ok_or(io::ErrorKind::AddrInUse)?;
        let mut socket = new_socket(self.flows.len() + 1);
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

    /// Moves all data that can be moved, and sends smoltcp's packets as far as the link has room.
    pub(crate) fn advance(&mut self, io: &mut Io) {
        self.give_up(io.now);
        self.take_calls(io);
        let (mut over, mut gone) = (Vec::new(), Vec::new());
        for (id, flow) in &mut self.flows {
            if let Stage::Open(handle) = flow.stage {
                match flow.pump(self.sockets.get_mut::<Socket>(handle)) {
                    Fate::Alive => {}
                    Fate::Over => over.push(*id),
                    Fate::Gone => gone.push(*id),
                }
            }
        }
        for id in gone {
            self.forget(id);
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
                // smoltcp has nothing left to send, so the flows that are over have sent their last
                // packet.
                for id in over.drain(..) {
                    self.forget(id);
                }
                break;
            }
        }
    }

    /// Whether the host's side has yet to take data that the guest sent.
    pub(crate) fn has_undelivered(&self) -> bool {
        self.flows.values().any(|flow| match flow.stage {
            Stage::Open(handle) => self.sockets.get::<Socket>(handle).can_recv(),
            Stage::Connecting(_) => false,
        })
    }

    /// Removes a connection, closes the host's socket, and returns the stage that the connection
    /// was in.
    fn forget(&mut self, id: Id) -> Option<Stage> {
        let flow = self.flows.remove(&id)?;
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
        Some(flow.stage)
    }

    /// Returns the time until a timer is due; None if no timer runs.
    pub(crate) fn quiet_for(&mut self, io: &Io) -> Option<Duration> {
        let now = self.clock(io.now);
        // Packets that are due wait until the link has room.
        let delay = if io.link.has_room() {
            self.interface.poll_delay(now, &self.sockets)
        } else {
            None
        };
        let check = self
            .next_check
            .map(|check| check.saturating_duration_since(io.now));
        [delay.map(Duration::from), check]
            .into_iter()
            .flatten()
            .min()
    }

    fn clock(&self, now: Instant) -> smoltcp::time::Instant {
        let micros = now.saturating_duration_since(self.start).as_micros();
        smoltcp::time::Instant::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
    }
}

/// Creates the guest's end of a connection; `flows` is the number of connections, this one
/// included.
fn new_socket(flows: usize) -> Socket<'static> {
    let mut sizes = BUFFERS.iter();
    let size = sizes.find(|(flow, _)| flow.contains(&flows));
    let size = size.map_or(NARROW_BUFFER, |(_, size)| *size);
    let buffer = || SocketBuffer::new(vec![0; size]);
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
