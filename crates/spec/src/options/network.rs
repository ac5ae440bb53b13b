//! What a sandbox reaches, and what reaches it.

use std::path::PathBuf;

use serde::Deserialize;

use super::error::OptionError;
use super::late::in_time;
use super::path;
use super::row::{Heading, Kind, Opt, Row, Whose};
use super::taken::{Taken, nothing, shown};
use crate::network::{Rate, Rule, Rules};
use crate::words::{self, Exposed, Published, Resolver};
use crate::{Spec, UserNetwork};

/// What a sandbox reaches, and what reaches it; beside whether it has a network.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[serde(default, rename_all = "kebab-case")]
pub struct NetworkOptions {
    /// Publish ports of the sandbox on this machine, on any that is free unless HOST is given; both may
    /// be ranges [[[IP:][HOST]:]GUEST[/udp]; IP is 127.0.0.1 unless given, 0.0.0.0 is every address]
    #[cfg_attr(feature = "clap", arg(short, long, value_name = "PORTS"))]
    pub publish: Vec<Published>,

    /// Publish all ports that the image or --expose names
    #[cfg_attr(feature = "clap", arg(short = 'P', long))]
    pub publish_all: bool,

    /// Name ports for --publish-all; any port can be published without
    #[cfg_attr(feature = "clap", arg(long, value_name = "PORTS"))]
    pub expose: Vec<Exposed>,

    /// Let the sandbox reach only this, and resolve only allowed names; may be repeated. This
    /// machine's own addresses, loopback and link-local ones are opened only by a block that
    /// covers nothing else; private networks (such as 10.0.0.0/8) by a block, but not by a name [10.0.0.0/8, 10.1.2.3:443, example.com:443, *.example.com]
    #[cfg_attr(feature = "clap", arg(long, value_name = "CIDR|DOMAIN[:PORT]"))]
    pub net_allow: Vec<Rule>,

    /// Keep the sandbox from reaching this, even if it is allowed; may be repeated. A denied name
    /// is not resolved, and the addresses that it was last resolved to are closed. Only
    /// --net-allow stops a program that knows the addresses from elsewhere
    #[cfg_attr(feature = "clap", arg(long, value_name = "CIDR|DOMAIN[:PORT]"))]
    pub net_deny: Vec<Rule>,

    /// Resolver for the sandbox's names in place of this machine's; may be repeated
    #[cfg_attr(feature = "clap", arg(long, value_name = "IP[:PORT]"))]
    pub dns: Vec<Resolver>,

    /// Limit the network's traffic, in bytes a second [10m; in=10m,out=1m]
    #[cfg_attr(feature = "clap", arg(long, value_name = "RATE"))]
    #[serde(deserialize_with = "words::optional")]
    pub net_rate: Option<Rate>,

    /// Connect sockets of sandbox and host (AF_VSOCK, backend kvm only): a client that connects to
    /// this Unix socket and sends `CONNECT PORT` reaches that port of the sandbox; the sandbox
    /// reaches the socket PATH_PORT as port PORT of address 2
    #[cfg_attr(feature = "clap", arg(long, value_name = "PATH"))]
    #[serde(deserialize_with = "path::one")]
    pub vsock: Option<PathBuf>,

    /// What narrows the network that the flags describe. No flag: a server's clients ask for it
    #[cfg_attr(feature = "clap", arg(skip))]
    #[serde(skip)]
    pub net_narrower: Option<Rules>,
}

impl NetworkOptions {
    /// Applies them, but for the network.
    pub(super) fn apply(&self, spec: &mut Spec) {
        if let Some(path) = &self.vsock {
            spec.vsock = Some(path.clone());
        }
    }

    /// Returns the network that they describe.
    pub(super) fn user(&self, exposed: &[String]) -> Result<UserNetwork, OptionError> {
        let Self {
            publish: _, // as `published` has them
            publish_all: _,
            expose: _,
            net_allow,
            net_deny,
            dns,
            net_rate,
            vsock: _, // beside the network
            net_narrower,
        } = self;
        Ok(UserNetwork {
            allow: net_allow.clone(),
            deny: net_deny.clone(),
            narrower: net_narrower.clone().unwrap_or_default(),
            publish: self.published(exposed)?,
            resolvers: dns.iter().map(|Resolver(address)| *address).collect(),
            rate: net_rate.unwrap_or_default(),
        })
    }

    /// Has the rules narrow what is open, and open nothing: also an address that becomes this machine's later stays closed.
    pub fn open_nothing(&mut self) {
        let narrower = self.net_narrower.get_or_insert_default();
        narrower.allow.append(&mut self.net_allow);
    }

    /// Returns the first resolver: this machine asks it, wherever it is.
    fn taken_resolver(&self) -> Taken {
        let first = self.dns.first();
        first.map_or(Taken::Nothing, |resolver| {
            Taken::Network(resolver.0.to_string())
        })
    }

    /// Returns the first port of this machine's.
    fn taken_port(&self) -> Taken {
        let mut ports = self.publish.iter();
        let first = ports.find_map(|Published(ports)| ports.first());
        first.map_or(Taken::Nothing, |port| Taken::Port(port.to_string()))
    }

    /// Returns all ports that are exposed, if they are published.
    fn taken_exposed(&self) -> Taken {
        if self.publish_all {
            Taken::Port("all that are exposed".to_owned())
        } else {
            Taken::Nothing
        }
    }
}

/// Their rows.
pub(super) const OPTIONS: &[Row<NetworkOptions>] = &[
    Row {
        option: Opt {
            name: "publish",
            kind: Kind::List,
            help: "Ports of this machine that lead in: `HOST:GUEST`, `IP:HOST:GUEST`, `GUEST/udp`, ranges. Default: none.",
            listed: Some(310),
            below: Some((Heading::Network, 20)),
            whose: Whose::Sandbox,
        },
        late: in_time,
        takes: |network| network.taken_port(),
    },
    Row {
        option: Opt {
            name: "publish-all",
            kind: Kind::Flag,
            help: "Whether all ports are published that the image or {expose} names. Default: {false}.",
            listed: Some(320),
            below: Some((Heading::Network, 30)),
            whose: Whose::Sandbox,
        },
        late: in_time,
        takes: |network| network.taken_exposed(),
    },
    Row {
        option: Opt {
            name: "expose",
            kind: Kind::List,
            help: "Ports for {publish-all}: `80`, `53/udp`. Default: none.",
            listed: Some(330),
            below: Some((Heading::Network, 40)),
            whose: Whose::Sandbox,
        },
        late: in_time,
        takes: nothing,
    },
    Row {
        option: Opt {
            name: "net-allow",
            kind: Kind::List,
            help: "The only addresses and names that can be reached: `10.0.0.0/8`, `*.example.com:443`. Default: all.",
            listed: Some(270),
            below: Some((Heading::Network, 50)),
            whose: Whose::Sandbox,
        },
        late: in_time,
        takes: |network| Taken::Opened(network.net_allow.clone()),
    },
    Row {
        option: Opt {
            name: "net-deny",
            kind: Kind::List,
            help: "Addresses and names that can't be reached, even if they are allowed. Default: none.",
            listed: Some(280),
            below: Some((Heading::Network, 60)),
            whose: Whose::Sandbox,
        },
        late: in_time,
        takes: nothing,
    },
    Row {
        option: Opt {
            name: "dns",
            kind: Kind::List,
            help: "Addresses of resolvers: `IP` or `IP:PORT`. Default: this machine's.",
            listed: Some(300),
            below: Some((Heading::Network, 70)),
            whose: Whose::Sandbox,
        },
        late: in_time,
        takes: |network| network.taken_resolver(),
    },
    Row {
        option: Opt {
            name: "net-rate",
            kind: Kind::Text,
            help: "Limit of the network's traffic, in bytes a second: `10m`, `in=10m,out=1m`. Default: no limit.",
            listed: Some(290),
            below: Some((Heading::Network, 80)),
            whose: Whose::Sandbox,
        },
        late: in_time,
        takes: nothing,
    },
    Row {
        option: Opt {
            name: "vsock",
            kind: Kind::Text,
            help: "Path of a Unix socket for the sandbox's AF_VSOCK, as Firecracker has it; needs KVM. Default: none.",
            listed: Some(340),
            below: Some((Heading::Network, 90)),
            whose: Whose::Sandbox,
        },
        late: in_time,
        takes: |network| Taken::path(network.vsock.as_deref().map(shown)),
    },
];
