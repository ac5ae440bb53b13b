//! Which destinations a sandbox may reach.
//!
//! In this order: a deny rule denies; an allow rule for the address allows; what is
//! private to the host is denied; an allow rule for a name allows the addresses that the
//! name had; without any allow rule the rest is allowed, with one it is denied.

mod learned;
mod rule;

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

pub use rule::{Rule, RuleError};

use crate::dns::Name;
use learned::Learned;
use rule::Block;

/// What only an allow rule for the very addresses opens: where the host talks to itself,
/// and where clouds hand out credentials to whoever asks from the right machine.
const PRIVATE: [Block; 8] = [
    // "This host": Linux connects such an address to itself.
    Block::new(0, 0, 0, 0, 8),
    Block::new(127, 0, 0, 0, 8),
    // Link-local, with most clouds' metadata service at 169.254.169.254.
    Block::new(169, 254, 0, 0, 16),
    // Metadata services elsewhere: Alibaba Cloud, Azure, Oracle Cloud.
    Block::new(100, 100, 100, 200, 32),
    Block::new(168, 63, 129, 16, 32),
    Block::new(192, 0, 0, 0, 24),
    // Multicast, reserved and broadcast: no peer to talk to.
    Block::new(224, 0, 0, 0, 4),
    Block::new(240, 0, 0, 0, 4),
];

/// The rules, and what names were last seen to mean.
#[derive(Debug, Default)]
pub(crate) struct Policy {
    allow: Vec<Rule>,
    deny: Vec<Rule>,
    learned: Learned,
}

impl Policy {
    pub(crate) fn new(allow: Vec<Rule>, deny: Vec<Rule>) -> Self {
        Self {
            allow,
            deny,
            learned: Learned::default(),
        }
    }

    /// Whether the sandbox may send to this port of this address.
    pub(crate) fn allows(&self, address: Ipv4Addr, port: u16, now: Instant) -> bool {
        let covers = |rule: &Rule| rule.covers_port(port) && rule.covers_address(address);
        let learned = |rules: &[Rule]| {
            let mut names = self.learned.names(address, now);
            names.any(|name| {
                let mut rules = rules.iter();
                rules.any(|rule| rule.covers_port(port) && rule.covers_name(name))
            })
        };
        if self.deny.iter().any(covers) || learned(&self.deny) {
            return false;
        }
        if self.allow.iter().any(covers) {
            return true;
        }
        if PRIVATE.iter().any(|block| block.contains(address)) {
            return false;
        }
        self.allow.is_empty() || learned(&self.allow)
    }

    /// Whether the sandbox may ask what this name means. To ask is to send: whoever
    /// serves the domain reads the question.
    pub(crate) fn allows_name(&self, name: &Name) -> bool {
        let denied = |rule: &Rule| rule.port.is_none() && rule.covers_name(name);
        !self.deny.iter().any(denied)
            && (self.allow.is_empty() || self.allow.iter().any(|rule| rule.covers_name(name)))
    }

    /// Whether every name may be asked for.
    pub(crate) fn is_open(&self) -> bool {
        let is_name = |rule: &Rule| matches!(rule.target, rule::Target::Domain { .. });
        self.allow.is_empty() && !self.deny.iter().any(is_name)
    }

    /// A resolver said that `name` has this address for so long.
    pub(crate) fn learn(&mut self, name: &Name, address: Ipv4Addr, ttl: Duration, now: Instant) {
        let mut rules = self.allow.iter().chain(&self.deny);
        if rules.any(|rule| rule.covers_name(name)) {
            self.learned.add(name, address, ttl, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(allow: &[&str], deny: &[&str]) -> Policy {
        let rules = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        Policy::new(rules(allow), rules(deny))
    }

    fn allows(policy: &Policy, address: &str, port: u16) -> bool {
        policy.allows(address.parse().unwrap(), port, Instant::now())
    }

    fn name(text: &str) -> Name {
        Name::from_text(text).unwrap()
    }

    #[test]
    fn without_rules_all_but_what_is_private_to_the_host() {
        let open = policy(&[], &[]);
        for address in ["1.1.1.1", "10.0.0.1", "192.168.1.1", "172.16.0.1"] {
            assert!(allows(&open, address, 443), "{address}");
        }
        for address in [
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "127.255.255.255",
            "169.254.169.254",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "224.0.0.1",
            "255.255.255.255",
        ] {
            assert!(!allows(&open, address, 80), "{address}");
        }
        assert!(open.allows_name(&name("example.com")) && open.is_open());
    }

    #[test]
    fn one_allow_rule_closes_the_rest() {
        let some = policy(&["10.0.0.0/8:443", "127.0.0.1:8080"], &["10.9.0.0/16"]);
        assert!(allows(&some, "10.1.1.1", 443));
        assert!(!allows(&some, "10.1.1.1", 80));
        assert!(!allows(&some, "10.9.1.1", 443));
        assert!(!allows(&some, "11.1.1.1", 443));
        assert!(allows(&some, "127.0.0.1", 8080));
        assert!(!allows(&some, "127.0.0.1", 8081));
        assert!(!some.allows_name(&name("example.com")));
        assert!(!some.is_open());
    }

    #[test]
    fn names_open_the_addresses_that_they_had() {
        let mut named = policy(&["example.com:443", "*.example.org"], &["bad.example.org"]);
        let now = Instant::now();
        let ttl = Duration::from_secs(60);
        let address = Ipv4Addr::new(1, 2, 3, 4);
        assert!(!named.allows(address, 443, now));
        for other in ["other.com", "notexample.com", "bad.example.org"] {
            assert!(!named.allows_name(&name(other)), "{other}");
        }
        assert!(named.allows_name(&name("example.com")));
        named.learn(&name("other.com"), address, ttl, now);
        assert!(!named.allows(address, 443, now));
        named.learn(&name("example.com"), address, ttl, now);
        assert!(named.allows(address, 443, now));
        assert!(!named.allows(address, 80, now));
        // The same address under a name for all ports, then under one that is denied.
        named.learn(&name("a.example.org"), address, ttl, now);
        assert!(named.allows(address, 80, now));
        named.learn(&name("bad.example.org"), address, ttl, now);
        assert!(!named.allows(address, 80, now));
        assert!(!named.allows(address, 443, now));
    }

    #[test]
    fn a_name_does_not_open_what_is_private_to_the_host() {
        let mut named = policy(&["rebinding.example"], &[]);
        let now = Instant::now();
        for address in ["127.0.0.1", "169.254.169.254"] {
            let address = address.parse().unwrap();
            named.learn(&name("rebinding.example"), address, Duration::MAX, now);
            assert!(!named.allows(address, 80, now));
        }
    }
}
