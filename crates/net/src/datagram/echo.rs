//! ICMP echo: the gateway replies itself; requests to other hosts go through ping sockets.
//!
//! A ping socket (icmp(7)) takes a whole message and sets its own identifier and checksum. The
//! sysctl `net.ipv4.ping_group_range` decides which processes may open one; without it, requests
//! get no reply, as on many networks.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};

use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{Icmpv4Packet, Icmpv4Repr, IpProtocol};

use crate::link::Link;
use crate::packet;

/// An echo request from the guest.
pub(super) struct Request<'a> {
    pub(super) identifier: u16,
    pub(super) sequence: u16,
    pub(super) data: &'a [u8],
}

impl<'a> Request<'a> {
    /// Parses an echo request; None for any other message.
    pub(super) fn parse(payload: &'a [u8]) -> Option<Self> {
        let message = Icmpv4Packet::new_checked(payload).ok()?;
        match Icmpv4Repr::parse(&message, &ChecksumCapabilities::ignored()).ok()? {
            Icmpv4Repr::EchoRequest {
                ident,
                seq_no,
                data,
            } => Some(Self {
                identifier: ident,
                sequence: seq_no,
                data,
            }),
            _ => None,
        }
    }

    /// Returns the message to send on a ping socket.
    pub(super) fn to_message(&self) -> Vec<u8> {
        let message = Icmpv4Repr::EchoRequest {
            ident: self.identifier,
            seq_no: self.sequence,
            data: self.data,
        };
        let mut bytes = vec![0; message.buffer_len()];
        let mut packet = Icmpv4Packet::new_unchecked(&mut bytes);
        message.emit(&mut packet, &ChecksumCapabilities::default());
        bytes
    }
}

/// Opens a ping socket for one address.
pub(super) fn socket(to: Ipv4Addr) -> io::Result<UdpSocket> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let protocol = Some(ipproto::ICMP);
    let socket = UdpSocket::from(socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        flags,
        protocol,
    )?);
    socket.connect((to, 0))?;
    Ok(socket)
}

/// Sends the guest the reply that a ping socket received, under the guest's identifier.
pub(super) fn pass_on(link: &mut Link, from: Ipv4Addr, identifier: u16, message: &[u8]) {
    let Ok(message) = Icmpv4Packet::new_checked(message) else {
        return;
    };
    let reply = Icmpv4Repr::parse(&message, &ChecksumCapabilities::ignored());
    if let Ok(Icmpv4Repr::EchoReply { seq_no, data, .. }) = reply {
        send_reply(link, from, identifier, seq_no, data);
    }
}

/// Sends the guest an echo reply.
pub(super) fn send_reply(
    link: &mut Link,
    from: Ipv4Addr,
    identifier: u16,
    sequence: u16,
    data: &[u8],
) {
    let reply = Icmpv4Repr::EchoReply {
        ident: identifier,
        seq_no: sequence,
        data,
    };
    packet::send(link, from, IpProtocol::Icmp, reply.buffer_len(), |bytes| {
        let mut packet = Icmpv4Packet::new_unchecked(bytes);
        reply.emit(&mut packet, &ChecksumCapabilities::default());
    });
}
