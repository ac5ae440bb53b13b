//! Parses IPv4 packets from the guest, and writes packets to it.

use std::net::Ipv4Addr;

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetProtocol, Icmpv4DstUnreachable, Icmpv4Message, Icmpv4Packet, IpProtocol, Ipv4Packet,
    Ipv4Repr, UdpPacket, UdpRepr,
};

use crate::link::Link;

/// The TTL of every packet to the guest, whatever route its data took.
const HOP_LIMIT: u8 = 64;

/// Bytes of the original packet that an ICMP error quotes: the header, options included, and the
/// ports (RFC 792).
const QUOTE: usize = 60 + 8;

/// A valid, unfragmented IPv4 packet from the guest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet<'a> {
    /// The whole packet.
    pub(crate) bytes: &'a [u8],
    pub(crate) to: Ipv4Addr,
    pub(crate) protocol: IpProtocol,
    pub(crate) payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Parses a packet from `guest`; None if it is invalid or a fragment. With an MTU like ours,
    /// only datagrams of more than 65,492 bytes are fragmented.
    pub(crate) fn parse(bytes: &'a [u8], guest: Ipv4Addr) -> Option<Self> {
        let packet = Ipv4Packet::new_checked(bytes).ok()?;
        // The link is memory: packets arrive unchanged, so checksums are not verified.
        let header = Ipv4Repr::parse(&packet, &ChecksumCapabilities::ignored()).ok()?;
        if packet.more_frags() || packet.frag_offset() != 0 || header.src_addr != guest {
            return None;
        }
        let total = usize::from(packet.total_len());
        Some(Self {
            bytes: bytes.get(..total)?,
            to: header.dst_addr,
            protocol: header.next_header,
            payload: bytes.get(usize::from(packet.header_len())..total)?,
        })
    }
}

/// Sends a packet to the guest: `fill` writes the `length` bytes after the header.
pub(crate) fn send(
    link: &mut Link,
    from: Ipv4Addr,
    protocol: IpProtocol,
    length: usize,
    fill: impl FnOnce(&mut [u8]),
) {
    let header = Ipv4Repr {
        src_addr: from,
        dst_addr: link.addresses().guest,
        next_header: protocol,
        payload_len: length,
        hop_limit: HOP_LIMIT,
    };
    let total = header.buffer_len() + length;
    if total > usize::from(link.addresses().mtu) {
        return; // The host reads longer datagrams only if they came in fragments.
    }
    link.send(EthernetProtocol::Ipv4, total, |bytes| {
        let mut packet = Ipv4Packet::new_unchecked(bytes);
        header.emit(&mut packet, &ChecksumCapabilities::default());
        fill(packet.payload_mut());
    });
}

/// Sends a datagram to one of the guest's ports.
pub(crate) fn send_udp(link: &mut Link, from: Ipv4Addr, from_port: u16, port: u16, data: &[u8]) {
    let header = UdpRepr {
        src_port: from_port,
        dst_port: port,
    };
    let to = link.addresses().guest;
    let length = header.header_len() + data.len();
    send(link, from, IpProtocol::Udp, length, |bytes| {
        header.emit(
            &mut UdpPacket::new_unchecked(bytes),
            &from.into(),
            &to.into(),
            data.len(),
            |payload| payload.copy_from_slice(data),
            &ChecksumCapabilities::default(),
        );
    });
}

/// Notifies the guest that one of its packets could not be delivered. The error comes from the
/// gateway, as from a router.
pub(crate) fn send_unreachable(link: &mut Link, why: Icmpv4DstUnreachable, original: &[u8]) {
    let from = link.addresses().gateway;
    let quote = original.get(..QUOTE).unwrap_or(original);
    // The message's own header is 8 bytes: type, code, checksum, unused.
    send(link, from, IpProtocol::Icmp, 8 + quote.len(), |bytes| {
        let mut message = Icmpv4Packet::new_unchecked(bytes);
        message.set_msg_type(Icmpv4Message::DstUnreachable);
        message.set_msg_code(why.into());
        message.data_mut().copy_from_slice(quote);
        message.fill_checksum();
    });
}

/// Maps an error of a host's socket to its ICMP code.
pub(crate) fn unreachable(error: &std::io::Error) -> Icmpv4DstUnreachable {
    use std::io::ErrorKind;

    use rustix::io::Errno;
    // The host has no descriptors or no memory for it. Linux tells a program of this code, and not of
    // an unreachable host.
    let spent = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM].map(Some);
    if spent.contains(&Errno::from_io_error(error)) {
        return Icmpv4DstUnreachable::CommProhibited;
    }
    match error.kind() {
        ErrorKind::ConnectionRefused => Icmpv4DstUnreachable::PortUnreachable,
        ErrorKind::NetworkUnreachable => Icmpv4DstUnreachable::NetUnreachable,
        // A firewall on the host.
        ErrorKind::PermissionDenied => Icmpv4DstUnreachable::CommProhibited,
        _ => Icmpv4DstUnreachable::HostUnreachable,
    }
}
