//! The resolvers that the host uses.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The host's list of resolvers.
const FILE: &str = "/etc/resolv.conf";

/// The port that DNS is served on.
pub(crate) const PORT: u16 = 53;

/// Maximum number of resolvers, as in the C library (resolv.conf(5), MAXNS).
const MAX_RESOLVERS: usize = 3;

/// How long the list is used before it is read again: networks change while a sandbox runs.
const FRESH: Duration = Duration::from_secs(2);

/// The addresses that queries are sent to.
#[derive(Debug)]
pub(crate) struct Resolvers {
    addresses: Vec<SocketAddr>,
    source: Option<(PathBuf, Instant)>,
    /// The index of the one that last had a longer answer than a datagram takes.
    long: usize,
}

impl Resolvers {
    /// Uses the given resolvers, or the host's if none are given.
    pub(crate) fn new(given: Vec<SocketAddr>, now: Instant) -> Self {
        if given.is_empty() {
            let path = PathBuf::from(FILE);
            return Self {
                addresses: read(&path),
                source: Some((path, now)),
                long: 0,
            };
        }
        Self {
            addresses: given,
            source: None,
            long: 0,
        }
    }

    /// Returns the resolver with this index; None after the last.
    pub(crate) fn get(&mut self, index: usize, now: Instant) -> Option<SocketAddr> {
        if let Some((path, read_at)) = &mut self.source
            && now.saturating_duration_since(*read_at) > FRESH
        {
            self.addresses = read(path);
            *read_at = now;
        }
        self.addresses.get(index).copied()
    }

    /// Notes that the rest of an answer of the resolver with this index is to be had by TCP.
    pub(super) fn has_more(&mut self, index: usize) {
        self.long = index;
    }

    /// Returns the resolvers for a query by TCP, the one with the rest of an answer first.
    pub(crate) fn by_tcp(&mut self, now: Instant) -> Vec<SocketAddr> {
        let mut all: Vec<_> = (0..).map_while(|index| self.get(index, now)).collect();
        if self.long < all.len() {
            let first = all.remove(self.long);
            all.insert(0, first);
        }
        all
    }
}

fn read(path: &std::path::Path) -> Vec<SocketAddr> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let mut found = parse(&text);
    if found.is_empty() {
        // resolv.conf(5): without entries, the resolver on the machine itself.
        found.push((std::net::Ipv4Addr::LOCALHOST, PORT).into());
    }
    found
}

fn parse(text: &str) -> Vec<SocketAddr> {
    let named = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        if words.next() != Some("nameserver") {
            return None;
        }
        resolver(words.next()?)
    });
    named.take(MAX_RESOLVERS).collect()
}

/// Parses an address; of one that is valid on a link only, with the interface: `fe80::1%eth0`.
fn resolver(text: &str) -> Option<SocketAddr> {
    let Some((address, interface)) = text.split_once('%') else {
        let address: IpAddr = text.parse().ok()?;
        return Some(SocketAddr::new(address, PORT));
    };
    let index = match interface.parse() {
        Ok(index) => index,
        Err(_) if interface.contains('/') => return None,
        Err(_) => {
            let index = std::fs::read_to_string(format!("/sys/class/net/{interface}/ifindex"));
            index.ok()?.trim().parse().ok()?
        }
    };
    let address = address.parse().ok()?;
    Some(SocketAddrV6::new(address, PORT, 0, index).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_resolvers_are_the_first_three() {
        let text = "# comment\nsearch example\nnameserver 1.1.1.1 # x\n\nnameserver\tbad\n\
                    nameserver ::1\nnameserver 2.2.2.2\nnameserver 3.3.3.3\noptions edns0\n";
        let expected = ["1.1.1.1:53", "[::1]:53", "2.2.2.2:53"];
        assert_eq!(parse(text), expected.map(|text| text.parse().unwrap()));
        assert_eq!(parse(""), []);
    }

    #[test]
    fn a_resolver_on_a_link_has_its_interface() {
        let text = "nameserver fe80::1%lo\nnameserver fe80::2%7\nnameserver fe80::3%no-such\n\
                    nameserver fe80::4%../lo\n";
        let expected = ["[fe80::1%1]:53", "[fe80::2%7]:53"];
        assert_eq!(parse(text), expected.map(|text| text.parse().unwrap()));
    }

    #[test]
    fn without_resolv_conf_the_resolver_is_loopback() {
        let none = read(std::path::Path::new("/proc/none"));
        assert_eq!(none, ["127.0.0.1:53".parse().unwrap()]);
    }
}
