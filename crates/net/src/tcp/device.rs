//! The link as smoltcp sees it: IP packets, of which one at a time comes in.

use smoltcp::phy::{self, Checksum, ChecksumCapabilities, DeviceCapabilities, Medium};
use smoltcp::time::Instant;
use smoltcp::wire::{IpProtocol, Ipv4Packet, TcpPacket, checksum};

use crate::link::Link;

pub(super) struct Device<'a> {
    /// The packet that smoltcp receives next.
    pub(super) incoming: Option<&'a [u8]>,
    pub(super) link: &'a mut Link,
}

pub(super) struct Incoming<'a>(&'a [u8]);

pub(super) struct Outgoing<'a>(&'a mut Link);

impl phy::Device for Device<'_> {
    type RxToken<'t>
        = Incoming<'t>
    where
        Self: 't;
    type TxToken<'t>
        = Outgoing<'t>
    where
        Self: 't;

    fn receive(&mut self, _: Instant) -> Option<(Incoming<'_>, Outgoing<'_>)> {
        let packet = self.incoming.take()?;
        Some((Incoming(packet), Outgoing(self.link)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Outgoing<'_>> {
        self.link.has_room().then_some(Outgoing(self.link))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.link.addresses().mtu.into();
        // The link is memory, so what the guest wrote arrives intact. The checksums of our own
        // packets are set when a packet is sent.
        capabilities.checksum = ChecksumCapabilities::default();
        capabilities.checksum.ipv4 = Checksum::Tx;
        capabilities.checksum.tcp = Checksum::None;
        capabilities
    }
}

impl phy::RxToken for Incoming<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(self.0)
    }
}

impl phy::TxToken for Outgoing<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, fill: F) -> R {
        let is_left = self.0.leaves_sums();
        self.0.send_tcp(length, |bytes| {
            let result = fill(bytes);
            put_checksum(bytes, is_left);
            result
        })
    }
}

/// Sets the checksum of the TCP segment in a packet; if it is left to the guest, the sum of the
/// pseudo-header. smoltcp sends no other packets here, and no IPv4 options.
fn put_checksum(packet: &mut [u8], is_left: bool) {
    let mut packet = Ipv4Packet::new_unchecked(packet);
    let (from, to) = (packet.src_addr(), packet.dst_addr());
    let Ok(mut segment) = TcpPacket::new_checked(packet.payload_mut()) else {
        return; // Not reached.
    };
    let length = u32::try_from(segment.as_ref().len()).unwrap_or_default();
    let pseudo = checksum::pseudo_header_v4(&from, &to, IpProtocol::Tcp, length);
    let checksum = if is_left {
        pseudo
    } else {
        !checksum::combine(&[pseudo, sum(segment.as_ref())])
    };
    segment.set_checksum(checksum);
}

/// Returns the Internet checksum's sum (RFC 1071). It adds eight bytes at a time and counts the
/// carries separately: fewer instructions per byte than smoltcp's.
fn sum(bytes: &[u8]) -> u16 {
    let (words, rest) = bytes.as_chunks::<8>();
    let (mut sum, mut carries) = (0_u64, 0_u64);
    for word in words {
        let (next, carry) = sum.overflowing_add(u64::from_ne_bytes(*word));
        sum = next;
        carries += u64::from(carry);
    }
    let mut last = [0; 8];
    for (to, from) in last.iter_mut().zip(rest) {
        *to = *from;
    }
    let total = u128::from(sum) + u128::from(carries) + u128::from(u64::from_ne_bytes(last));
    let mut folded = total;
    while folded > 0xffff {
        folded = (folded & 0xffff) + (folded >> 16);
    }
    u16::from_be((folded & 0xffff) as u16)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An IPv4 packet with a TCP segment without a checksum.
    fn packet(data: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; 40];
        packet.extend(data);
        let length = packet.len() as u16;
        let mut ip = Ipv4Packet::new_unchecked(&mut packet);
        ip.set_version(4);
        ip.set_header_len(20);
        ip.set_total_len(length);
        ip.set_src_addr([192, 0, 2, 1].into());
        ip.set_dst_addr([10, 213, 9, 2].into());
        TcpPacket::new_unchecked(ip.payload_mut()).set_header_len(20);
        packet
    }

    proptest! {
        #[test]
        fn a_partial_checksum_completes_to_the_full_one(data: Vec<u8>) {
            let (mut whole, mut left) = (packet(&data), packet(&data));
            put_checksum(&mut whole, false);
            put_checksum(&mut left, true);
            // What a driver does: the sum from byte 34 of the frame, to byte 16 from there.
            let checksum = !checksum::data(&left[20..]);
            left[36..38].copy_from_slice(&checksum.to_be_bytes());
            prop_assert_eq!(&left, &whole);
            let ip = Ipv4Packet::new_unchecked(&whole);
            let (from, to) = (ip.src_addr().into(), ip.dst_addr().into());
            prop_assert!(TcpPacket::new_unchecked(ip.payload()).verify_checksum(&from, &to));
        }

        #[test]
        fn a_checksum_is_the_one_smoltcp_computes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(sum(&bytes), checksum::data(&bytes));
        }

        #[test]
        fn a_checksum_keeps_its_carries(length in 0..70_000_usize, last in any::<u8>()) {
            let mut bytes = vec![0xff; length];
            bytes.push(last);
            prop_assert_eq!(sum(&bytes), checksum::data(&bytes));
        }
    }
}
