//! The addresses on the sandbox's network.

use std::net::Ipv4Addr;

/// Bytes of an ethernet header (IEEE 802.3): two addresses and a type.
pub const ETHERNET_HEADER: usize = 14;

/// The network that a guest sees: itself and a gateway, which is this crate. Every sandbox has the
/// same addresses, since no sandbox can see another's network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The guest's ethernet address, in the order of transmission.
    pub guest_mac: [u8; 6],
    /// The guest's address.
    pub guest: Ipv4Addr,
    /// Number of bits of [`Self::guest`] that name the network.
    pub prefix: u8,
    /// The route to all other addresses, the resolver, and, if a rule allows it, the host's
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
            // A private network, and not one that home routers, clouds or VPNs usually have: the
            // guest can't reach outside hosts with the same addresses.
            guest: Ipv4Addr::new(10, 213, 9, 2),
            prefix: 24,
            gateway: Ipv4Addr::new(10, 213, 9, 1),
            // Both ends are software, so fewer packets are better. This is the largest multiple of
            // 16 that fits into 16 bits, as in other implementations.
            mtu: 65520,
        }
    }
}
