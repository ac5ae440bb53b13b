//! Parses Docker's `[[IP:][HOST]:]GUEST[/PROTOCOL]`, the argument of `-p`, in which ports may be ranges.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A port of the host that is forwarded to a port of the guest. Serialized as the text that it is
/// parsed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Publish {
    /// The address that the host listens on. Port 0 stands for any that is free.
    pub host: SocketAddr,
    /// The last of the host's ports, of which the first free one is taken; the port of
    /// [`Self::host`] unless there is a choice.
    pub last: u16,
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
#[error("{text}: {why}")]
pub struct PublishError {
    text: String,
    why: &'static str,
}

const EXPECTED: &str = "expected [[IP:][HOST]:]GUEST[/udp], as in 80 (on any free port of this machine), 8080:80, \
                        0.0.0.0:5353:53/udp, [::1]:8080:80 or 8000-8010:8000-8010";

impl Publish {
    /// Parses ports to publish: one, or as many as a range has.
    ///
    /// # Errors
    /// When the text has another form, or its ranges don't fit together.
    pub fn all(text: &str) -> Result<Vec<Self>, PublishError> {
        parse(text).map_err(|why| PublishError {
            text: text.into(),
            why,
        })
    }

    /// Returns the addresses of the host that may be listened on, in the order in which they are tried.
    pub fn hosts(&self) -> impl Iterator<Item = SocketAddr> {
        let ip = self.host.ip();
        (self.host.port()..=self.last).map(move |port| (ip, port).into())
    }

    /// Returns the same with the host's port that was free.
    #[must_use]
    pub fn at(self, port: u16) -> Self {
        Self {
            host: (self.host.ip(), port).into(),
            last: port,
            ..self
        }
    }
}

impl FromStr for Publish {
    type Err = PublishError;

    fn from_str(text: &str) -> Result<Self, PublishError> {
        match *Self::all(text)? {
            [one] => Ok(one),
            _ => Err(PublishError {
                text: text.into(),
                why: "expected one port, and not a range",
            }),
        }
    }
}

fn parse(text: &str) -> Result<Vec<Publish>, &'static str> {
    let (ports, protocol) = text.split_once('/').unwrap_or((text, ""));
    let protocol = match protocol.to_ascii_lowercase().as_str() {
        "" | "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        "sctp" => return Err("SCTP can't be published: expected tcp or udp"),
        _ => return Err(EXPECTED),
    };
    let (host, guest) = match ports.rsplit_once(':') {
        Some((host, guest)) => (host, guest),
        None => ("", ports),
    };
    let (address, host) = match host.rsplit_once(':') {
        Some((address, host)) => (address, host),
        None => ("", host),
    };
    let address = address
        .strip_prefix('[')
        .and_then(|address| address.strip_suffix(']'))
        .unwrap_or(address);
    let address: IpAddr = match address {
        // Unlike Docker's default: a sandbox's ports are not open to the host's network unless the
        // user says so.
        "" => Ipv4Addr::LOCALHOST.into(),
        address => address.parse().map_err(|_| EXPECTED)?,
    };
    let host = match host {
        "" => 0..=0,
        host => range(host)?,
    };
    let guest = range(guest)?;
    if *guest.start() == 0 {
        return Err("a sandbox has no port 0");
    }
    let publish = |first: u16, last: u16, guest: u16| Publish {
        host: (address, first).into(),
        last,
        guest,
        protocol,
    };
    if host == (0..=0) {
        return Ok(guest.map(|guest| publish(0, 0, guest)).collect());
    }
    if *host.start() == 0 {
        return Err("0 stands for any free port, and begins no range");
    }
    if guest.len() == 1 {
        return Ok(vec![publish(*host.start(), *host.end(), *guest.start())]);
    }
    if host.len() != guest.len() {
        return Err("the two ranges have different lengths");
    }
    let pairs = host.zip(guest);
    Ok(pairs
        .map(|(host, guest)| publish(host, host, guest))
        .collect())
}

/// Parses a port, or a range of ports with both ends.
fn range(text: &str) -> Result<RangeInclusive<u16>, &'static str> {
    let port = |text: &str| {
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse::<u16>().ok().filter(|_| is_number);
        number.ok_or(EXPECTED)
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = port(first)?..=port(last)?;
    if range.is_empty() {
        return Err("a range begins with its lower port");
    }
    Ok(range)
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
        write!(f, "{}", self.host)?;
        if self.last != self.host.port() {
            write!(f, "-{}", self.last)?;
        }
        write!(f, ":{}/{}", self.guest, self.protocol)
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
            ("8080:80/", "127.0.0.1:8080:80/tcp"),
            ("0.0.0.0:53:5353/udp", "0.0.0.0:53:5353/udp"),
            ("53:53/UDP", "127.0.0.1:53:53/udp"),
            ("0:80", "127.0.0.1:0:80/tcp"),
            ("80", "127.0.0.1:0:80/tcp"),
            ("80/Udp", "127.0.0.1:0:80/udp"),
            (":80", "127.0.0.1:0:80/tcp"),
            ("::80", "127.0.0.1:0:80/tcp"),
            ("192.0.2.1::80", "192.0.2.1:0:80/tcp"),
            ("[::1]:8080:80", "[::1]:8080:80/tcp"),
            ("::1:8080:80", "[::1]:8080:80/tcp"),
            ("[2001:db8::1]::80", "[2001:db8::1]:0:80/tcp"),
            ("8000-8010:80", "127.0.0.1:8000-8010:80/tcp"),
            ("[::]:8000-8010:80/udp", "[::]:8000-8010:80/udp"),
            ("80-80", "127.0.0.1:0:80/tcp"),
        ] {
            assert_eq!(text.parse::<Publish>().unwrap().to_string(), shown);
            assert_eq!(shown.parse::<Publish>(), text.parse());
        }
    }

    #[test]
    fn ranges_of_published_ports_are_pairs() {
        let all = |text: &str| {
            let all = Publish::all(text).unwrap();
            all.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(
            all("8000-8001:80-81/udp"),
            ["127.0.0.1:8000:80/udp", "127.0.0.1:8001:81/udp"]
        );
        assert_eq!(all("80-81"), ["127.0.0.1:0:80/tcp", "127.0.0.1:0:81/tcp"]);
        assert_eq!(all("0:80-81"), all("80-81"));
        assert_eq!(all("[::1]::65535-65535"), ["[::1]:0:65535/tcp"]);
        assert!("80-81".parse::<Publish>().is_err());
    }

    #[test]
    fn a_wrong_published_port_is_refused_with_the_reason() {
        for (bad, why) in [
            ("", "expected [["),
            ("80:", "expected [["),
            ("/tcp", "expected [["),
            ("80:0", "no port 0"),
            ("0", "no port 0"),
            ("0-5", "no port 0"),
            ("65536:80", "expected [["),
            ("a:80", "expected [["),
            ("80:80/sctp", "SCTP"),
            ("80:80/SCTP", "SCTP"),
            ("80:80/tcp/udp", "expected [["),
            ("host:80:80", "expected [["),
            ("[::1:80:80", "expected [["),
            ("1.2.3:80:80", "expected [["),
            ("-1:80", "expected [["),
            ("+1:80", "expected [["),
            ("80-:80", "expected [["),
            ("90-80:90-80", "lower port"),
            ("8080:80-82", "different lengths"),
            ("8000-8001:80-82", "different lengths"),
            ("0-5:80", "begins no range"),
        ] {
            let error = Publish::all(bad).unwrap_err().to_string();
            assert!(
                error.starts_with(bad) && error.contains(why),
                "{bad}: {error}"
            );
        }
    }
}
