//! The network's event loop, which takes frames from the guest and events from the host's sockets.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use micabox_ground::{lock, random};
use micabox_spec::network::{Protocol, Publish, Rate};
use rustix::io::Errno;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, IpProtocol,
};

use crate::address::Addresses;
use crate::datagram::Datagrams;
use crate::dns::Proxy;
use crate::io::Io;
use crate::link::Received;
use crate::packet::Packet;
use crate::places::Places;
use crate::poll::{Event, Token};
use crate::tcp::Tcp;

/// Frames taken from the guest before the host's sockets have their turn.
const TURN: usize = 64;

/// How long a network outlives its machine, to deliver data to hosts that are slow to read.
const LAST_WORDS: Duration = Duration::from_secs(5);

pub(crate) struct Engine {
    pub(crate) io: Io,
    tcp: Tcp,
    datagrams: Datagrams,
    dns: Proxy,
    /// The buffer for the frame that is being read.
    incoming: Vec<u8>,
    /// Readable when `rate` has changed; its other end is closed to stop the network.
    control: OwnedFd,
    rate: Arc<Mutex<Option<Rate>>>,
}

impl Engine {
    pub(crate) fn new(
        mut io: Io,
        control: OwnedFd,
        rate: Arc<Mutex<Option<Rate>>>,
        places: Places,
    ) -> io::Result<Self> {
        io.poll.add(io.link.socket(), Token::Link)?;
        io.poll.add(&control, Token::Control)?;
        let seed = u64::from_ne_bytes(random()?);
        let tcp = Tcp::new(&mut io.link, io.now, seed, places.connections);
        Ok(Self {
            incoming: io.link.room(),
            io,
            tcp,
            datagrams: Datagrams::new(places),
            dns: Proxy::new(places.questions),
            control,
            rate,
        })
    }

    /// Starts to listen for a published port, on the first of the host's ports that is free. Returns
    /// it with the port that it has.
    pub(crate) fn publish(&mut self, port: Publish) -> io::Result<Publish> {
        let mut taken = io::ErrorKind::AddrInUse.into();
        for host in port.hosts() {
            let address = match port.protocol {
                Protocol::Tcp => self.tcp.publish(&mut self.io, host, port.guest),
                Protocol::Udp => self.datagrams.publish(&mut self.io, host, port.guest),
            };
            match address {
                Ok(address) => return Ok(port.at(address.port())),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => taken = error,
                Err(error) => return Err(error),
            }
        }
        Err(taken)
    }

    /// Runs until the machine is gone or the [`crate::Network`] is dropped.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut events = Vec::new();
        // Whether the link may have frames from the guest, and whether a socket has more datagrams
        // than fit into one turn.
        let (mut readable, mut more) = (false, false);
        loop {
            let busy = more || (readable && self.io.link.is_open());
            let timeout = if busy {
                Some(Duration::ZERO)
            } else {
                self.quiet_for(readable)
            };
            self.io.poll.wait(&mut events, timeout)?;
            self.io.now = Instant::now();
            self.io.link.advance(self.io.now);
            let mut stop = false;
            for event in &events {
                match event.token {
                    // After the others, which come only once.
                    Token::Control => stop |= self.read_control(),
                    Token::Link => {
                        readable |= event.readable;
                        self.io.link.flush();
                    }
                    _ => self.event(*event),
                }
            }
            if stop {
                return self.finish();
            }
            let mut turn = 0;
            while readable && turn < TURN && self.io.link.is_open() {
                match self.io.link.receive(&mut self.incoming)? {
                    Received::Frame(length) => {
                        self.io.link.received(length);
                        self.frame(length);
                    }
                    Received::Nothing => readable = false,
                    Received::End => return self.finish(),
                }
                turn += 1;
            }
            self.dns.advance(&mut self.io);
            more = self.datagrams.advance(&mut self.io);
            self.tcp.advance(&mut self.io);
        }
    }

    /// Applies a changed rate. Returns whether the network is to stop.
    fn read_control(&mut self) -> bool {
        loop {
            match rustix::io::read(&self.control, &mut [0; 16]) {
                Ok(0) => return true,
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        let rate = lock(&self.rate).take();
        if let Some(rate) = rate {
            self.io.link.limit(rate, self.io.now);
        }
        false
    }

    /// Delivers to the host's side what the guest sent and the network has acknowledged: the last
    /// bytes of a machine that then ends must not be lost here.
    fn finish(mut self) -> io::Result<()> {
        let deadline = Instant::now() + LAST_WORDS;
        self.io.link.flush();
        while Instant::now() < deadline
            && let Received::Frame(length) = self.io.link.receive(&mut self.incoming)?
        {
            self.frame(length);
        }
        let mut events = Vec::new();
        loop {
            self.io.now = Instant::now();
            self.tcp.advance(&mut self.io);
            let left = deadline.saturating_duration_since(self.io.now);
            if left.is_zero() || !self.tcp.has_undelivered() {
                return Ok(());
            }
            self.io.poll.wait(&mut events, Some(left))?;
            for event in &events {
                if let Token::Tcp(id) = event.token {
                    self.tcp.event(&mut self.io, id, *event);
                }
            }
        }
    }

    fn event(&mut self, event: Event) {
        let io = &mut self.io;
        match event.token {
            Token::Link | Token::Control => {}
            Token::Tcp(id) => self.tcp.event(io, id, event),
            Token::TcpPort(id) => self.tcp.port_event(id),
            Token::Datagram(id) => self.datagrams.event(id, event),
            Token::UdpPort(id) => self.datagrams.port_event(id, event),
            Token::Dns(id) => self.dns.event(id),
        }
    }

    /// Returns the time until a timer is due; None if no timer runs. Frames from the guest wait for
    /// their rate if there are any.
    fn quiet_for(&mut self, has_frames: bool) -> Option<Duration> {
        let now = self.io.now;
        let all = [
            self.tcp.quiet_for(&self.io),
            self.datagrams.quiet_for(now),
            self.dns.quiet_for(&self.io),
            self.io.link.held_for(has_frames),
        ];
        all.into_iter().flatten().min()
    }

    /// Handles the received frame of `length` bytes; its contents are untrusted.
    fn frame(&mut self, length: usize) {
        let incoming = std::mem::take(&mut self.incoming);
        let frame = incoming.get(..length).unwrap_or_default();
        if let Ok(frame) = EthernetFrame::new_checked(frame) {
            match frame.ethertype() {
                EthernetProtocol::Arp => self.arp(frame.payload()),
                EthernetProtocol::Ipv4 => self.ipv4(frame.payload()),
                _ => {}
            }
        }
        self.incoming = incoming;
    }

    /// Answers ARP requests for the gateway, which is the guest's only neighbour.
    fn arp(&mut self, payload: &[u8]) {
        let own = *self.io.link.addresses();
        let request = ArpPacket::new_checked(payload).and_then(|packet| ArpRepr::parse(&packet));
        let Ok(ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Request,
            source_hardware_addr,
            source_protocol_addr,
            target_protocol_addr,
            ..
        }) = request
        else {
            return;
        };
        if target_protocol_addr != own.gateway {
            return;
        }
        let reply = ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Reply,
            source_hardware_addr: EthernetAddress(Addresses::GATEWAY_MAC),
            source_protocol_addr: own.gateway,
            target_hardware_addr: source_hardware_addr,
            target_protocol_addr: source_protocol_addr,
        };
        let link = &mut self.io.link;
        link.send(EthernetProtocol::Arp, reply.buffer_len(), |bytes| {
            reply.emit(&mut ArpPacket::new_unchecked(bytes));
        });
    }

    fn ipv4(&mut self, payload: &[u8]) {
        let guest: Ipv4Addr = self.io.link.addresses().guest;
        let Some(packet) = Packet::parse(payload, guest) else {
            return;
        };
        match packet.protocol {
            IpProtocol::Tcp => self.tcp.receive(&mut self.io, &packet),
            IpProtocol::Udp => self.datagrams.receive(&mut self.io, &mut self.dns, &packet),
            IpProtocol::Icmp => self.datagrams.receive_icmp(&mut self.io, &packet),
            _ => {}
        }
    }
}
