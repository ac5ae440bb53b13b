//! Parses `[IP:]HOST:GUEST[/tcp|/udp]`, the argument of `-p`.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A port of the host that is forwarded to a port of the guest. Serialized as the text that it is
/// parsed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Publish {
    /// The address that the host listens on. Port 0 stands for any that is free.
    pub host: SocketAddrV4,
    /// The guest's port.
    pub guest: u16,
    /// The protocol of both ports.
    pub protocol: Protocol,
}

/// A protocol with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Connections.
    Tcp,
    /// Datagrams.
    Udp,
}

/// An invalid published port.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0}: expected [IP:]HOST:GUEST[/udp], as in 8080:80 or 0.0.0.0:5353:53/udp; 0:80 takes any free port"
)]
pub struct PublishError(String);

impl FromStr for Publish {
    type Err = PublishError;

    fn from_str(text: &str) -> Result<Self, PublishError> {
        parse(text).ok_or_else(|| PublishError(text.into()))
    }
}

fn parse(text: &str) -> Option<Publish> {
    let (ports, protocol) = match text.split_once('/') {
        None => (text, Protocol::Tcp),
        Some((ports, "tcp")) => (ports, Protocol::Tcp),
        Some((ports, "udp")) => (ports, Protocol::Udp),
        Some(_) => return None,
    };
    let port = |text: &str| text.parse::<u16>().ok();
    let (host, guest) = ports.rsplit_once(':')?;
    let (address, host) = match host.rsplit_once(':') {
        Some((address, host)) => (address.parse().ok()?, host),
        // Unlike Docker's default: a sandbox's ports are not open to the host's network unless the
        // user says so.
        None => (Ipv4Addr::LOCALHOST, host),
    };
    Some(Publish {
        host: SocketAddrV4::new(address, port(host)?),
        guest: port(guest).filter(|port| *port != 0)?,
        protocol,
    })
}

impl TryFrom<String> for Publish {
    type Error = PublishError;

    fn try_from(text: String) -> Result<Self, PublishError> {
        text.parse()
    }
}

impl From<Publish> for String {
    fn from(port: Publish) -> Self {
        port.to_string()
    }
}

impl fmt::Display for Publish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}/{}", self.host, self.guest, self.protocol)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_published_ports_text_form_round_trips() {
        for (text, shown) in [
            ("8080:80", "127.0.0.1:8080:80/tcp"),
            ("8080:80/tcp", "127.0.0.1:8080:80/tcp"),
            ("0.0.0.0:53:5353/udp", "0.0.0.0:53:5353/udp"),
            ("0:80", "127.0.0.1:0:80/tcp"),
        ] {
            assert_eq!(text.parse::<Publish>().unwrap().to_string(), shown);
            assert_eq!(shown.parse::<Publish>(), text.parse());
        }
        for bad in [
            "",
            "80",
            ":80",
            "80:",
            "80:0",
            "65536:80",
            "a:80",
            "80:80/sctp",
            "80:80/",
            "host:80:80",
            "::1:80:80",
            "1.2.3:80:80",
            "-1:80",
            "+1:x",
        ] {
            let error = bad.parse::<Publish>().unwrap_err();
            assert!(error.to_string().contains("[IP:]HOST:GUEST"), "{bad}");
        }
    }
}
