//! Who is who on the sandbox's network.

use std::net::Ipv4Addr;

/// Bytes of an ethernet header (IEEE 802.3): two addresses and a type.
pub const ETHERNET_HEADER: usize = 14;

/// The network that a guest sees: itself and a gateway, which is this crate. Every
/// sandbox has the same one, since none can see another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The guest's ethernet address, in the order of transmission.
    pub guest_mac: [u8; 6],
    /// The guest's address.
    pub guest: Ipv4Addr,
    /// Bits of [`Self::guest`] that name the network.
    pub prefix: u8,
    /// The way to everywhere else, the resolver, and with permission the host's
    /// loopback interface.
    pub gateway: Ipv4Addr,
    /// Bytes of the largest IP packet.
    pub mtu: u16,
}

impl Addresses {
    /// The gateway's ethernet address; locally administered, as is the guest's.
    pub(crate) const GATEWAY_MAC: [u8; 6] = [0x02, 0x6d, 0x69, 0x63, 0x61, 0x01];
}

impl Default for Addresses {
    fn default() -> Self {
        Self {
            guest_mac: [0x02, 0x6d, 0x69, 0x63, 0x61, 0x02],
            // Private, and not where home routers, clouds or VPNs usually are: what has
            // the same addresses out there is out of the guest's reach.
            guest: Ipv4Addr::new(10, 213, 9, 2),
            prefix: 24,
            gateway: Ipv4Addr::new(10, 213, 9, 1),
            // Both ends are software: the fewer packets the better. The largest that a
            // multiple of 16 can say, as others that do this have it.
            mtu: 65520,
        }
    }
}
