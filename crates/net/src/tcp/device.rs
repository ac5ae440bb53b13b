//! The link as smoltcp sees it: IP packets, one in at a time.

use smoltcp::phy::{self, Checksum, ChecksumCapabilities, DeviceCapabilities, Medium};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetProtocol, IpProtocol, Ipv4Packet, TcpPacket, checksum};

use crate::link::Link;

pub(super) struct Device<'a> {
    /// The packet to take in next.
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
        // The link is memory: what the guest wrote is what we read. It checks ours, which
        // are made when the packet is.
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
        self.0.send(EthernetProtocol::Ipv4, length, |bytes| {
            let result = fill(bytes);
            put_checksum(bytes);
            result
        })
    }
}

/// Puts the checksum into the TCP segment of a packet. smoltcp sends no others here.
fn put_checksum(packet: &mut [u8]) {
    let mut packet = Ipv4Packet::new_unchecked(packet);
    let (from, to) = (packet.src_addr(), packet.dst_addr());
    let Ok(mut segment) = TcpPacket::new_checked(packet.payload_mut()) else {
        return; // Not reached.
    };
    let length = u32::try_from(segment.as_ref().len()).unwrap_or_default();
    let pseudo = checksum::pseudo_header_v4(&from, &to, IpProtocol::Tcp, length);
    let sums = [pseudo, sum(segment.as_ref())];
    segment.set_checksum(!checksum::combine(&sums));
}

/// The sum of RFC 1071, eight bytes at a time and the carries apart: fewer instructions a byte
/// than smoltcp's.
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

    proptest! {
        #[test]
        fn a_sum_is_what_smoltcp_says(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(sum(&bytes), checksum::data(&bytes));
        }

        #[test]
        fn carries_are_not_lost(length in 0..70_000_usize, last in any::<u8>()) {
            let mut bytes = vec![0xff; length];
            bytes.push(last);
            prop_assert_eq!(sum(&bytes), checksum::data(&bytes));
        }
    }
}
