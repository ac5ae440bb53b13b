//! A sandbox's network: which addresses it reaches, and which ports lead to it.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use micabox_net::{Addresses, Config, Publish, Rate as NetRate, Rule, Rules};
use micabox_vmm::NetworkInterface;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::builder::random;

/// The first byte of locally administered Ethernet addresses, in this program the guests'.
const LOCAL: u8 = 0x06;

/// A sandbox's network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// Only the guest's loopback interface.
    None,
    /// What the owner process reaches, through its own sockets; no privileges needed.
    User(UserNetwork),
}

/// The settings of a user-mode network.
///
/// By default, everything is reachable but the host's own addresses, link-local ones and those
/// where clouds hand out credentials.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UserNetwork {
    /// What the sandbox may reach. If there are any rules here, nothing else is reachable. What is
    /// closed by default is opened only by a block with nothing else in it, as 127.0.0.0/8 and not
    /// 0.0.0.0/0; an address in a private network (RFC 1918, RFC 6598) only by a block, never by a
    /// name.
    pub allow: Vec<Rule>,
    /// What the sandbox may not reach; overrides `allow`. A name stands for the addresses that the
    /// sandbox's queries for it were answered with.
    pub deny: Vec<Rule>,
    /// What narrows the two: a destination has to pass here as well. Nothing here opens what is closed otherwise.
    #[serde(skip_serializing_if = "is_open")]
    pub narrower: Rules,
    /// Ports of the host that lead to the sandbox.
    pub publish: Vec<Publish>,
    /// Resolvers for the sandbox's DNS queries, in place of the host's.
    pub resolvers: Vec<SocketAddr>,
    /// What limits its traffic.
    pub rate: NetRate,
}

fn is_open(rules: &Rules) -> bool {
    *rules == Rules::default()
}

impl Default for Network {
    fn default() -> Self {
        Self::User(UserNetwork::default())
    }
}

/// The link between a machine and its network, which may be started later.
#[derive(Debug)]
pub(crate) struct Link {
    /// The machine's end.
    pub(crate) interface: NetworkInterface,
    /// The network's end.
    network: OwnedFd,
    addresses: Addresses,
    /// Whether frames for the machine have a header ([`Config::header`]).
    header: bool,
}

/// A running network, with its settings for the guest.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) network: micabox_net::Network,
    pub(crate) boot: micabox_wire::Network,
    pub(crate) resolv_conf: Vec<u8>,
}

/// A network in the hands of an owner.
pub(crate) struct Running(pub(crate) micabox_net::Network);

impl micabox_owner::Network for Running {
    fn traffic(&self) -> (u64, u64) {
        let traffic = self.0.traffic();
        (traffic.received, traffic.sent)
    }

    fn limit(&self, incoming: Option<u64>, outgoing: Option<u64>) {
        self.0.limit(NetRate { incoming, outgoing });
    }
}

impl Link {
    /// Makes a link for a machine of a backend that requires a header before frames, or does not.
    pub(crate) fn new(header: bool) -> Result<Self, Error> {
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

impl Network {
    /// Returns the same network without published ports, which only one sandbox can have.
    pub(crate) fn unpublished(&self) -> Self {
        match self {
            Self::None => Self::None,
            Self::User(user) => Self::User(UserNetwork {
                publish: Vec::new(),
                ..user.clone()
            }),
        }
    }

    /// Starts the network on a machine's link; None if one of the two does not exist.
    pub(crate) fn start(&self, link: Option<Link>) -> Result<Option<Connection>, Error> {
        let (Self::User(user), Some(link)) = (self, link) else {
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

    /// Returns whether there is a network.
    pub(crate) fn is_some(&self) -> bool {
        matches!(self, Self::User(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_networks_rules_are_serialised_as_text() {
        let network = Network::User(UserNetwork {
            allow: vec!["*.example.com:443".parse().unwrap()],
            deny: vec!["10.0.0.0/8".parse().unwrap()],
            narrower: Rules::default(),
            publish: vec!["8080:80".parse().unwrap()],
            resolvers: vec!["192.0.2.1:53".parse().unwrap()],
            rate: NetRate {
                incoming: Some(1),
                outgoing: None,
            },
        });
        let text = serde_json::to_string(&network).unwrap();
        assert!(text.contains("127.0.0.1:8080:80/tcp"), "{text}");
        assert_eq!(serde_json::from_str::<Network>(&text).unwrap(), network);
        assert_eq!(
            serde_json::from_str::<Network>(r#"{"user":{}}"#).unwrap(),
            Network::default()
        );
    }
}
