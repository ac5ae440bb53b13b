//! A sandbox's network: which addresses it reaches, and which ports lead to it.

mod name;
mod publish;
mod rule;

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

pub use name::Name;
pub use publish::{Protocol, Publish, PublishError};
pub use rule::{Block, Rule, RuleError, Target};

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
    pub rate: Rate,
}

fn is_open(rules: &Rules) -> bool {
    *rules == Rules::default()
}

impl Default for Network {
    fn default() -> Self {
        Self::User(UserNetwork::default())
    }
}

impl Network {
    /// Returns the same network without published ports, which only one sandbox can have.
    #[must_use]
    pub fn unpublished(&self) -> Self {
        match self {
            Self::None => Self::None,
            Self::User(user) => Self::User(UserNetwork {
                publish: Vec::new(),
                ..user.clone()
            }),
        }
    }

    /// Returns the network of a copy on another machine: what was closed stays closed, and nothing of that machine's is
    /// open or named.
    ///
    /// # Errors
    /// Its rules can't be combined.
    pub(crate) fn elsewhere(&self) -> Result<Self, &'static str> {
        let Self::User(user) = self else {
            return Ok(Self::None);
        };
        let UserNetwork {
            allow,
            deny,
            narrower,
            publish: _,   // ports of its machine
            resolvers: _, // addresses that its machine reaches
            rate,
        } = user;
        // In `allow` itself, a rule would open private networks.
        let allow = match (allow.is_empty(), narrower.allow.is_empty()) {
            (true, _) => narrower.allow.clone(),
            (false, true) => allow.clone(),
            (false, false) => return Err("its network has two lists of what it may reach"),
        };
        Ok(Self::User(UserNetwork {
            narrower: Rules {
                allow,
                deny: [&deny[..], &narrower.deny].concat(),
            },
            rate: *rate,
            ..UserNetwork::default()
        }))
    }

    /// Returns whether there is a network.
    #[must_use]
    pub fn is_some(&self) -> bool {
        matches!(self, Self::User(_))
    }

    /// Returns the ports of the host that lead to the sandbox, 0 for any.
    #[must_use]
    pub fn published(&self) -> &[Publish] {
        match self {
            Self::None => &[],
            Self::User(user) => &user.publish,
        }
    }
}

/// What may be reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rules {
    /// If there are any, nothing else.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<Rule>,
    /// What may not be reached even if it is allowed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<Rule>,
}

/// Limits of a guest's traffic, in bytes of frames a second. What is beyond them waits; packets are
/// not dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rate {
    /// To the guest.
    pub incoming: Option<u64>,
    /// From the guest.
    pub outgoing: Option<u64>,
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
            rate: Rate {
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
