//! The loop: frames and events in, frames and bytes out.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, IpProtocol,
};

use crate::address::Addresses;
use crate::datagram::Datagrams;
use crate::dns::Proxy;
use crate::io::Io;
use crate::link::Received;
use crate::packet::Packet;
use crate::poll::{Event, Token};
use crate::tcp::Tcp;
use crate::{Protocol, Publish};

/// Frames taken from the guest before the host's sockets have their turn.
const TURN: usize = 64;

/// So long a network outlives its machine for the sake of hosts that are slow to read.
const LAST_WORDS: Duration = Duration::from_secs(5);

pub(crate) struct Engine {
    pub(crate) io: Io,
    tcp: Tcp,
    datagrams: Datagrams,
    dns: Proxy,
    /// The frame that is being read.
    incoming: Vec<u8>,
    /// Its other end is closed when all this is to stop.
    _stop: OwnedFd,
}

impl Engine {
    pub(crate) fn new(mut io: Io, stop: OwnedFd) -> io::Result<Self> {
        io.poll.add(io.link.socket(), Token::Link)?;
        io.poll.add(&stop, Token::Stop)?;
        let mut seed = [0; 8];
        rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())?;
        let tcp = Tcp::new(&mut io.link, io.now, u64::from_ne_bytes(seed));
        Ok(Self {
            incoming: io.link.room(),
            io,
            tcp,
            datagrams: Datagrams::new(),
            dns: Proxy::new(),
            _stop: stop,
        })
    }

    /// Starts to listen for a published port.
    pub(crate) fn publish(&mut self, port: &Publish) -> io::Result<()> {
        match port.protocol {
            Protocol::Tcp => self.tcp.publish(&mut self.io, port),
            Protocol::Udp => self.datagrams.publish(&mut self.io, port),
        }
    }

    /// Runs until the machine is gone or its owner says stop.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut events = Vec::new();
        // Whether the guest has frames for us, as far as the link has told; and whether
        // somebody has more than one turn's worth.
        let (mut readable, mut more) = (false, false);
        loop {
            let busy = more || (readable && self.io.link.has_room());
            let timeout = if busy {
                Some(Duration::ZERO)
            } else {
                self.quiet_for()
            };
            self.io.poll.wait(&mut events, timeout)?;
            self.io.now = Instant::now();
            let mut stop = false;
            for event in &events {
                match event.token {
                    Token::Stop => stop = true, // after the others, which come only once
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
            // Nothing is taken from a guest that takes nothing: its frames have answers.
            let mut turn = 0;
            while readable && turn < TURN && self.io.link.has_room() {
                match self.io.link.receive(&mut self.incoming)? {
                    Received::Frame(length) => self.frame(length),
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

    /// Hands the host's side what the guest sent and was told has arrived: a machine that
    /// sends its last words and ends is not to lose them here.
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
            Token::Link | Token::Stop => {}
            Token::Tcp(id) => self.tcp.event(io, id, event),
            Token::TcpPort(id) => self.tcp.port_event(id),
            Token::Datagram(id) => self.datagrams.event(io, id, event),
            Token::UdpPort(id) => self.datagrams.port_event(id, event),
            Token::Dns(id) => self.dns.event(io, id),
        }
    }

    /// How long nothing happens if nobody does anything; None for ever.
    fn quiet_for(&mut self) -> Option<Duration> {
        let now = self.io.now;
        let all = [
            self.tcp.quiet_for(&self.io),
            self.datagrams.quiet_for(now),
            self.dns.quiet_for(now),
        ];
        all.into_iter().flatten().min()
    }

    /// Takes in the frame of so many bytes that has come in, and may hold anything.
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

    /// Tells the guest where its gateway is. Nobody else is on its network.
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
