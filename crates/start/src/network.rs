//! Starts a sandbox's network in its owner.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use micabox_error::{Error, random};
use micabox_net::{Addresses, Config};
use micabox_spec::Network;
use micabox_spec::network::Rate;
use micabox_vmm::NetworkInterface;

/// The first byte of locally administered Ethernet addresses, in this program the guests'.
const LOCAL: u8 = 0x06;

/// The link between a machine and its network, which may be started later.
#[derive(Debug)]
pub struct Link {
    /// The machine's end.
    pub interface: NetworkInterface,
    /// The network's end.
    network: OwnedFd,
    addresses: Addresses,
    /// Whether frames for the machine have a header ([`Config::header`]).
    header: bool,
}

/// A running network, with its settings for the guest.
#[derive(Debug)]
pub struct Connection {
    pub network: micabox_net::Network,
    pub boot: micabox_wire::Network,
    pub resolv_conf: Vec<u8>,
}

/// A network in the hands of an owner.
pub struct Running(pub micabox_net::Network);

impl micabox_owner::Network for Running {
    fn traffic(&self) -> (u64, u64) {
        let traffic = self.0.traffic();
        (traffic.received, traffic.sent)
    }

    fn limit(&self, incoming: Option<u64>, outgoing: Option<u64>) {
        self.0.limit(Rate { incoming, outgoing });
    }
}

impl Link {
    /// Makes a link for a machine of a backend that requires a header before frames, or does not.
    pub fn new(header: bool) -> Result<Self, Error> {
        // Each machine has its own address, though no network has two of them.
        let [a, b, c, d, e] = random()?;
        let addresses = Addresses {
            guest_mac: [LOCAL, a, b, c, d, e],
            ..Addresses::default()
        };
        let (network, machine) = micabox_net::link()?;
        Ok(Self {
            interface: NetworkInterface {
                link: Arc::new(machine),
                address: addresses.guest_mac,
                mtu: addresses.mtu,
            },
            network,
            addresses,
            header,
        })
    }
}

/// Starts the network on a machine's link; None if one of the two does not exist.
pub fn start(network: &Network, link: Option<Link>) -> Result<Option<Connection>, Error> {
    let (Network::User(user), Some(link)) = (network, link) else {
        return Ok(None);
    };
    let addresses = link.addresses;
    let config = Config {
        addresses,
        allow: user.allow.clone(),
        deny: user.deny.clone(),
        narrower: user.narrower.clone(),
        publish: user.publish.clone(),
        header: link.header,
        resolvers: user.resolvers.clone(),
        rate: user.rate,
        descriptors: None,
    };
    Ok(Some(Connection {
        network: micabox_net::Network::start_on(link.network, config)?,
        boot: micabox_wire::Network {
            hardware_address: addresses.guest_mac,
            address: addresses.guest.octets(),
            prefix: addresses.prefix,
            gateway: addresses.gateway.octets(),
        },
        resolv_conf: format!("nameserver {}\n", addresses.gateway).into_bytes(),
    }))
}
