//! Parses `CIDR|domain[:port]`, the argument of `--net-allow` and `--net-deny`.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Name;

/// A set of destinations. Serialized as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rule {
    target: Target,
    /// None for every port.
    port: Option<u16>,
}

/// The addresses or names of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Addresses.
    Block(Block),
    /// The addresses that a name resolves to.
    Domain {
        /// The name.
        name: Name,
        /// `*.name`: every name below it, without the name itself.
        below: bool,
    },
}

/// Addresses with a common prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    address: Ipv4Addr,
    /// The prefix's length, 0 to 32.
    bits: u8,
}

impl Block {
    /// Makes the block of the addresses that begin as a.b.c.d does, for `bits` bits, 32 at most.
    #[must_use]
    pub const fn new(a: u8, b: u8, c: u8, d: u8, bits: u8) -> Self {
        Self {
            address: Ipv4Addr::new(a, b, c, d),
            bits,
        }
    }

    /// Makes the block of one address.
    #[must_use]
    pub fn of(address: Ipv4Addr) -> Self {
        Self { address, bits: 32 }
    }

    /// Returns the address of a block that has one.
    #[must_use]
    pub fn single(self) -> Option<Ipv4Addr> {
        (self.bits == 32).then_some(self.address)
    }

    /// Returns whether an address is in the block.
    #[must_use]
    pub fn contains(self, address: Ipv4Addr) -> bool {
        let difference = self.address.to_bits() ^ address.to_bits();
        difference
            .checked_shr(32_u32.saturating_sub(self.bits.into()))
            .unwrap_or(0)
            == 0
    }
}

impl Rule {
    /// Returns the addresses or names.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Returns the port; None for every port.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// Whether the rule applies to this port.
    #[must_use]
    pub fn covers_port(&self, port: u16) -> bool {
        self.port.is_none_or(|own| own == port)
    }

    /// Whether the rule names this address by number.
    #[must_use]
    pub fn covers_address(&self, address: Ipv4Addr) -> bool {
        matches!(self.target, Target::Block(block) if block.contains(address))
    }

    /// Whether the rule names only addresses in `wide`.
    #[must_use]
    pub fn is_within(&self, wide: Block) -> bool {
        matches!(self.target, Target::Block(block)
            if block.bits >= wide.bits && wide.contains(block.address))
    }

    /// Whether the rule names this name.
    #[must_use]
    pub fn covers_name(&self, name: &Name) -> bool {
        match &self.target {
            Target::Block(_) => false,
            Target::Domain { name: own, below } if *below => name.is_below(own),
            Target::Domain { name: own, .. } => name == own,
        }
    }
}

/// An invalid rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// An address of version 6.
    #[error("{0}: this network carries IPv4 only")]
    Version6(String),
    /// The part after the slash.
    #[error("{0}: the number of bits after the slash is 0 to 32")]
    Bits(String),
    /// The part after the colon.
    #[error("{0}: a port is a number from 1 to 65535")]
    Port(String),
    /// A URL.
    #[error("{0}: expected a name or an address, not a URL; for this one, `{1}`")]
    Url(String, String),
    /// Neither address nor name.
    #[error(
        "{0}: expected an address, a block like 10.0.0.0/8, a name like example.com, or *.example.com; then :PORT if it is about one port"
    )]
    Target(String),
}

/// Returns the host and port of a URL, in a rule's syntax.
fn host_of_url(text: &str) -> Option<String> {
    let (scheme, rest) = text.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    Some(match scheme {
        "http" if !host.contains(':') => format!("{host}:80"),
        "https" if !host.contains(':') => format!("{host}:443"),
        _ => host.to_owned(),
    })
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        if let Some(host) = host_of_url(text) {
            return Err(RuleError::Url(text.into(), host));
        }
        let (target, port) = match text.rsplit_once(':') {
            Some((rest, _)) if rest.contains(':') => return Err(RuleError::Version6(text.into())),
            Some((target, port)) => {
                let port = port.parse().ok().filter(|port| *port != 0);
                (
                    target,
                    Some(port.ok_or_else(|| RuleError::Port(text.into()))?),
                )
            }
            None => (text, None),
        };
        let (address, bits) = match target.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (target, None),
        };
        let target = if let Ok(address) = address.parse::<Ipv4Addr>() {
            let bits = bits
                .map_or(Ok(32), str::parse::<u8>)
                .ok()
                .filter(|bits| *bits <= 32)
                .ok_or_else(|| RuleError::Bits(text.into()))?;
            Target::Block(Block { address, bits })
        } else {
            let (name, below) = match target.strip_prefix("*.") {
                Some(name) => (name, true),
                None => (target, false),
            };
            // A name whose last label has digits only is a mistyped address.
            let number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
            let name = Name::from_text(name)
                .filter(|_| !name.rsplit('.').next().is_none_or(number))
                .ok_or_else(|| RuleError::Target(text.into()))?;
            Target::Domain { name, below }
        };
        Ok(Self { target, port })
    }
}

impl TryFrom<String> for Rule {
    type Error = RuleError;

    fn try_from(text: String) -> Result<Self, RuleError> {
        text.parse()
    }
}

impl From<Rule> for String {
    fn from(rule: Rule) -> Self {
        rule.to_string()
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            Target::Block(block) => write!(f, "{}/{}", block.address, block.bits)?,
            Target::Domain { name, below } => {
                write!(f, "{}{name}", if *below { "*." } else { "" })?;
            }
        }
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> Rule {
        text.parse().unwrap()
    }

    #[test]
    fn blocks_and_names_with_and_without_ports() {
        for (text, shown) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("10.1.2.3", "10.1.2.3/32"),
            ("10.1.2.3:443", "10.1.2.3/32:443"),
            ("0.0.0.0/0:53", "0.0.0.0/0:53"),
            ("Example.COM", "example.com"),
            ("*.example.com:80", "*.example.com:80"),
            ("registry_1.example", "registry_1.example"),
        ] {
            assert_eq!(rule(text).to_string(), shown);
            assert_eq!(rule(shown), rule(text));
        }
        for bad in [
            "",
            ":80",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/-1",
            "10.0.0",
            "10.0.0.256",
            "a:0",
            "a:x",
            "a:65536",
            "::1",
            "[::1]:80",
            "fd00::/8",
            "a..b",
            "a/8",
            "*",
            "*.",
            "a b",
            "http://a",
        ] {
            assert!(bad.parse::<Rule>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_block_has_its_addresses() {
        let all = rule("1.2.3.4/0");
        let some = rule("10.32.0.0/11");
        let one = rule("10.0.0.1");
        for (address, expected) in [
            ([10, 31, 255, 255], [true, false, false]),
            ([10, 32, 0, 0], [true, true, false]),
            ([10, 63, 255, 255], [true, true, false]),
            ([10, 64, 0, 0], [true, false, false]),
            ([10, 0, 0, 1], [true, false, true]),
        ] {
            let found = [&all, &some, &one].map(|rule| rule.covers_address(address.into()));
            assert_eq!(found, expected, "{address:?}");
        }
    }

    #[test]
    fn a_block_lies_within_itself_and_wider_ones() {
        let loopback = Block::new(127, 0, 0, 0, 8);
        for (text, expected) in [
            ("127.0.0.0/8", true),
            ("127.9.0.0/16:80", true),
            ("127.0.0.1", true),
            ("126.0.0.0/7", false),
            ("127.0.0.1/0", false),
            ("128.0.0.1", false),
            ("localhost.test", false),
        ] {
            assert_eq!(rule(text).is_within(loopback), expected, "{text}");
        }
        let one = Block::of(Ipv4Addr::LOCALHOST);
        assert!(rule("127.0.0.1").is_within(one) && !rule("127.0.0.0/31").is_within(one));
    }

    #[test]
    fn a_rule_with_a_star_covers_subdomains_only() {
        let name = |text: &str| Name::from_text(text).unwrap();
        let exact = rule("example.com");
        let below = rule("*.example.com");
        for (text, expected) in [
            ("example.com", [true, false]),
            ("a.Example.com", [false, true]),
            ("b.a.example.com", [false, true]),
            ("notexample.com", [false, false]),
            ("example.com.org", [false, false]),
        ] {
            let found = [&exact, &below].map(|rule| rule.covers_name(&name(text)));
            assert_eq!(found, expected, "{text}");
        }
    }
}
