//! A sandbox's network: which addresses it reaches, and which ports lead to it.

use std::net::SocketAddr;
use std::sync::Arc;

use micabox_net::{Addresses, Config, Publish, Rule};
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
    /// Ports of the host that lead to the sandbox.
    pub publish: Vec<Publish>,
    /// Resolvers for the sandbox's DNS queries, in place of the host's.
    pub resolvers: Vec<SocketAddr>,
}

impl Default for Network {
    fn default() -> Self {
        Self::User(UserNetwork::default())
    }
}

/// A running network, with its settings for the machine and the guest.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) network: micabox_net::Network,
    pub(crate) interface: NetworkInterface,
    pub(crate) boot: micabox_wire::Network,
    pub(crate) resolv_conf: Vec<u8>,
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

    /// Starts the network; None if there is none to start.
    pub(crate) fn start(&self, frame_header: bool) -> Result<Option<Connection>, Error> {
        let Self::User(user) = self else {
            return Ok(None);
        };
        // Each machine has its own address, though no network has two of them.
        let [a, b, c, d, e] = random()?;
        let addresses = Addresses {
            guest_mac: [LOCAL, a, b, c, d, e],
            ..Addresses::default()
        };
        let (network, link) = micabox_net::Network::start(Config {
            addresses,
            allow: user.allow.clone(),
            deny: user.deny.clone(),
            publish: user.publish.clone(),
            header: frame_header,
            resolvers: user.resolvers.clone(),
        })?;
        Ok(Some(Connection {
            network,
            interface: NetworkInterface {
                link: Arc::new(link),
                address: addresses.guest_mac,
                mtu: addresses.mtu,
            },
            boot: micabox_wire::Network {
                hardware_address: addresses.guest_mac,
                address: addresses.guest.octets(),
                prefix: addresses.prefix,
                gateway: addresses.gateway.octets(),
            },
            resolv_conf: format!("nameserver {}\n", addresses.gateway).into_bytes(),
        }))
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
            publish: vec!["8080:80".parse().unwrap()],
            resolvers: vec!["192.0.2.1:53".parse().unwrap()],
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
