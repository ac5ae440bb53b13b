//! The context that every protocol works with.

use std::net::Ipv4Addr;
use std::time::Instant;

use crate::dns::Resolvers;
use crate::link::Link;
use crate::policy::{OwnAddresses, Policy};
use crate::poll::Poll;

/// The sockets, rules and time that a protocol works with.
#[derive(Debug)]
pub(crate) struct Io {
    pub(crate) poll: Poll,
    pub(crate) link: Link,
    pub(crate) policy: Policy,
    pub(crate) own: OwnAddresses,
    pub(crate) resolvers: Resolvers,
    /// The time of the batch of events that is being handled.
    pub(crate) now: Instant,
}

impl Io {
    /// Maps the address that the guest sends to, to an address on the host's side; None if the
    /// policy denies it. The gateway is the host's loopback interface, if a rule allows that; the
    /// guest's network has no other host.
    pub(crate) fn route(&self, address: Ipv4Addr, port: u16) -> Option<Ipv4Addr> {
        let own = self.link.addresses();
        let mask = u32::MAX
            .checked_shl(32_u32.saturating_sub(own.prefix.into()))
            .unwrap_or(0);
        let target = if address == own.gateway {
            Ipv4Addr::LOCALHOST
        } else if (address.to_bits() ^ own.guest.to_bits()) & mask == 0 {
            return None;
        } else {
            address
        };
        let own = self.own.contains(target);
        let allowed = self.policy.allows(target, port, own, self.now);
        allowed.then_some(target)
    }
}
