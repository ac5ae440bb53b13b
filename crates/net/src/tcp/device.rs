//! The link as smoltcp sees it: IP packets, one in at a time.

use smoltcp::phy::{self, Checksum, ChecksumCapabilities, DeviceCapabilities, Medium};
use smoltcp::time::Instant;
use smoltcp::wire::EthernetProtocol;

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
        // The link is memory: what the guest wrote is what we read. It checks ours.
        capabilities.checksum = ChecksumCapabilities::default();
        capabilities.checksum.ipv4 = Checksum::Tx;
        capabilities.checksum.tcp = Checksum::Tx;
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
        self.0.send(EthernetProtocol::Ipv4, length, fill)
    }
}
