//! The policy: which destinations a sandbox may reach.
//!
//! Rules apply in this order. A deny rule denies. An allow rule for an address allows it, but an
//! address that is private to the host, or one of its own, only if the rule's whole block is. An
//! allow rule for a name allows the addresses that the name resolved to, except private ones.
//! Without any allow rule, everything else is allowed; with one, it is denied.
//!
//! A second set of rules may narrow that. It is asked as well, and opens nothing.

mod learned;
mod own;

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use learned::Learned;
use micabox_spec::network::{Block, Name, Rule, Rules, Target};
pub(crate) use own::OwnAddresses;

/// Blocks that only an allow rule for a block within them opens: where the host talks to itself,
/// and where clouds serve credentials to every process on the machine. Each of the host's own
/// addresses is such a block, too.
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
    // Multicast, reserved and broadcast: no host to connect to.
    Block::new(224, 0, 0, 0, 4),
    Block::new(240, 0, 0, 0, 4),
];

/// Private networks (RFC 1918, RFC 6598): a zone on the internet may give names addresses in them,
/// so no rule for a name opens them.
const NEIGHBOURS: [Block; 4] = [
    Block::new(10, 0, 0, 0, 8),
    Block::new(100, 64, 0, 0, 10),
    Block::new(172, 16, 0, 0, 12),
    Block::new(192, 168, 0, 0, 16),
];

/// Whether this, as an allow rule, opens what no sandbox reaches otherwise: addresses by which the host talks to
/// itself, those where clouds serve credentials, and one of the host's own now.
pub fn opens_what_is_closed(rule: &Rule) -> bool {
    let Target::Block(block) = rule.target() else {
        // The addresses of a name stay closed.
        return false;
    };
    let is_within = |private: &Block| rule.is_within(*private);
    PRIVATE.iter().any(is_within)
        || block.single().is_some_and(|address| {
            // What can't be asked for is taken for the host's.
            OwnAddresses::new().map_or(true, |own| own.contains(address))
        })
}

/// The rules, and the addresses that names last resolved to.
#[derive(Debug, Default)]
pub(crate) struct Policy {
    rules: Rules,
    narrower: Rules,
    learned: Learned,
}

impl Policy {
    pub(crate) fn new(rules: Rules, narrower: Rules) -> Self {
        Self {
            rules,
            narrower,
            learned: Learned::default(),
        }
    }

    /// Whether the sandbox may send to this port of this address. `own` is whether the address is
    /// one of the host's.
    pub(crate) fn allows(&self, address: Ipv4Addr, port: u16, own: bool, now: Instant) -> bool {
        let closed = closed(address, own);
        let to = Destination {
            address,
            port,
            is_private: closed.is_some() || NEIGHBOURS.iter().any(|block| block.contains(address)),
        };
        self.pass(&self.rules, to, closed, now) && self.pass(&self.narrower, to, None, now)
    }

    /// Whether these rules let a packet through; `closed` is the block that is closed unless a rule within it opens it.
    fn pass(&self, rules: &Rules, to: Destination, closed: Option<Block>, now: Instant) -> bool {
        let covers = |rule: &Rule| rule.covers_port(to.port) && rule.covers_address(to.address);
        let learned = |rules: &[Rule]| {
            let mut names = self.learned.names(to.address, now);
            names.any(|name| {
                let mut rules = rules.iter();
                rules.any(|rule| rule.covers_port(to.port) && rule.covers_name(name))
            })
        };
        if rules.deny.iter().any(covers) || learned(&rules.deny) {
            return false;
        }
        let opens = |rule: &Rule| covers(rule) && closed.is_none_or(|block| rule.is_within(block));
        if rules.allow.iter().any(opens) {
            return true;
        }
        if closed.is_some() {
            return false;
        }
        rules.allow.is_empty() || (!to.is_private && learned(&rules.allow))
    }

    /// Whether the sandbox may resolve this name. A query also sends data: the domain's name
    /// servers read it.
    pub(crate) fn allows_name(&self, name: &Name) -> bool {
        let denied = |rule: &Rule| rule.port().is_none() && rule.covers_name(name);
        let covers = |rule: &Rule| rule.covers_name(name);
        self.all().all(|rules| {
            !rules.deny.iter().any(denied)
                && (rules.allow.is_empty() || rules.allow.iter().any(covers))
        })
    }

    /// Whether all names may be resolved.
    pub(crate) fn is_open(&self) -> bool {
        let is_name = |rule: &Rule| matches!(rule.target(), Target::Domain { .. });
        self.all()
            .all(|rules| rules.allow.is_empty() && !rules.deny.iter().any(is_name))
    }

    /// Records that a resolver gave `name` this address for `ttl`.
    pub(crate) fn learn(&mut self, name: &Name, address: Ipv4Addr, ttl: Duration, now: Instant) {
        let is_known = self.all().any(|rules| {
            let mut rules = rules.allow.iter().chain(&rules.deny);
            rules.any(|rule| rule.covers_name(name))
        });
        if is_known {
            self.learned.add(name, address, ttl, now);
        }
    }

    fn all(&self) -> impl Iterator<Item = &Rules> {
        [&self.rules, &self.narrower].into_iter()
    }
}

/// Where a packet goes.
#[derive(Clone, Copy)]
struct Destination {
    address: Ipv4Addr,
    port: u16,
    /// Whether no rule for a name opens it.
    is_private: bool,
}

/// Returns the block that a rule must lie within to open this address; None if any rule may.
fn closed(address: Ipv4Addr, own: bool) -> Option<Block> {
    if own && !address.is_loopback() {
        return Some(Block::of(address));
    }
    let mut private = PRIVATE.into_iter();
    private.find(|block| block.contains(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(allow: &[&str], deny: &[&str]) -> Policy {
        let rules = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        let rules = Rules {
            allow: rules(allow),
            deny: rules(deny),
        };
        Policy::new(rules, Rules::default())
    }

    /// Narrows what a policy allows.
    fn narrowed(policy: Policy, allow: &[&str], deny: &[&str]) -> Policy {
        let narrower = self::policy(allow, deny).rules;
        Policy { narrower, ..policy }
    }

    fn allows(policy: &Policy, address: &str, port: u16) -> bool {
        policy.allows(address.parse().unwrap(), port, false, Instant::now())
    }

    fn name(text: &str) -> Name {
        Name::from_text(text).unwrap()
    }

    #[test]
    fn without_rules_all_addresses_but_the_hosts_private_ones_are_open() {
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
    fn one_allow_rule_closes_all_other_addresses() {
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
    fn rules_that_narrow_open_nothing() {
        // What is closed stays closed, whatever they allow.
        let some = narrowed(
            policy(&[], &["10.9.0.0/16"]),
            &["127.0.0.1", "10.0.0.0/8"],
            &[],
        );
        for (address, open) in [
            ("127.0.0.1", false),
            ("10.9.1.1", false),
            ("10.1.1.1", true),
            ("1.1.1.1", false),
        ] {
            assert_eq!(allows(&some, address, 80), open, "{address}");
        }
        assert!(!some.allows_name(&name("example.com")));
        // What others have opened, they close or leave as it is.
        let opened = || policy(&["127.0.0.1:80", "10.0.0.0/8", "example.com"], &[]);
        let some = narrowed(opened(), &[], &["10.1.0.0/16"]);
        for (address, port, open) in [
            ("127.0.0.1", 80, true),
            ("127.0.0.1", 81, false),
            ("10.1.1.1", 80, false),
            ("10.2.1.1", 80, true),
            ("1.1.1.1", 80, false),
        ] {
            assert_eq!(allows(&some, address, port), open, "{address}:{port}");
        }
        assert!(some.allows_name(&name("example.com")) && !some.is_open());
        let some = narrowed(opened(), &["0.0.0.0/0"], &[]);
        assert!(allows(&some, "127.0.0.1", 80));
        // A name is one of both, or of neither.
        let mut some = narrowed(opened(), &["example.com", "other.com"], &[]);
        let (address, now) = (Ipv4Addr::new(1, 2, 3, 4), Instant::now());
        some.learn(&name("other.com"), address, Duration::MAX, now);
        assert!(!some.allows_name(&name("other.com")) && !some.allows(address, 80, false, now));
        some.learn(&name("example.com"), address, Duration::MAX, now);
        assert!(some.allows_name(&name("example.com")) && some.allows(address, 80, false, now));
    }

    #[test]
    fn names_open_the_addresses_that_they_had() {
        let mut named = policy(&["example.com:443", "*.example.org"], &["bad.example.org"]);
        let now = Instant::now();
        let ttl = Duration::from_secs(60);
        let address = Ipv4Addr::new(1, 2, 3, 4);
        assert!(!named.allows(address, 443, false, now));
        for other in ["other.com", "notexample.com", "bad.example.org"] {
            assert!(!named.allows_name(&name(other)), "{other}");
        }
        assert!(named.allows_name(&name("example.com")));
        named.learn(&name("other.com"), address, ttl, now);
        assert!(!named.allows(address, 443, false, now));
        named.learn(&name("example.com"), address, ttl, now);
        assert!(named.allows(address, 443, false, now));
        assert!(!named.allows(address, 80, false, now));
        // The same address under a name for all ports, then under one that is denied.
        named.learn(&name("a.example.org"), address, ttl, now);
        assert!(named.allows(address, 80, false, now));
        named.learn(&name("bad.example.org"), address, ttl, now);
        assert!(!named.allows(address, 80, false, now));
        assert!(!named.allows(address, 443, false, now));
    }

    #[test]
    fn a_name_does_not_open_a_private_address() {
        let mut named = policy(&["rebinding.example", "10.1.2.3:80"], &[]);
        let now = Instant::now();
        for (address, own) in [
            ("127.0.0.1", true),
            ("169.254.169.254", false),
            ("198.51.100.1", true),
            ("10.1.2.4", false),
            ("172.31.0.1", false),
            ("192.168.1.1", false),
            ("100.64.0.1", false),
        ] {
            let address = address.parse().unwrap();
            named.learn(&name("rebinding.example"), address, Duration::MAX, now);
            assert!(!named.allows(address, 80, own, now), "{address}");
        }
        // The address of this policy's rule, and an address on the internet.
        for (address, port, open) in [
            ("10.1.2.3", 80, true),
            ("10.1.2.3", 81, false),
            ("198.51.100.1", 80, true),
        ] {
            let address = address.parse().unwrap();
            named.learn(&name("rebinding.example"), address, Duration::MAX, now);
            assert_eq!(named.allows(address, port, false, now), open, "{address}");
        }
    }

    #[test]
    fn rules_that_open_what_is_closed_are_told_from_others() {
        for (rule, opens) in [
            ("127.0.0.1", true),
            ("127.0.0.0/8:80", true),
            ("0.0.0.0", true),
            ("169.254.169.254:80", true),
            ("100.100.100.200", true),
            ("168.63.129.16", true),
            ("0.0.0.0/0", false),
            ("10.0.0.0/8", false),
            ("126.0.0.0/7", false),
            ("localhost", false),
            ("*.example.com", false),
            // A documentation address, which is not this machine's.
            ("203.0.113.7", false),
        ] {
            let rule: Rule = rule.parse().unwrap();
            assert_eq!(opens_what_is_closed(&rule), opens, "{rule:?}");
        }
    }

    #[test]
    fn only_a_rule_for_exactly_that_address_opens_one_of_the_host() {
        let own: Ipv4Addr = [192, 168, 7, 7].into();
        for (rule, opens) in [
            ("0.0.0.0/0", false),
            ("192.168.7.0/24", false),
            ("192.168.7.6/31", false),
            ("192.168.7.7/32:81", false),
            ("192.168.7.7", true),
            ("192.168.7.7:80", true),
        ] {
            let some = policy(&[rule], &[]);
            assert_eq!(some.allows(own, 80, true, Instant::now()), opens, "{rule}");
        }
        assert!(!policy(&[], &[]).allows(own, 80, true, Instant::now()));
        for (rule, address, opens) in [
            ("0.0.0.0/0", "127.0.0.1", false),
            ("0.0.0.0/0", "169.254.169.254", false),
            ("0.0.0.0/0", "0.0.0.0", false),
            ("126.0.0.0/7", "127.0.0.1", false),
            ("127.0.0.0/8", "127.0.0.1", true),
            ("169.254.0.0/16", "169.254.169.254", true),
            ("169.254.169.254:80", "169.254.169.254", true),
            ("100.64.0.0/10", "100.100.100.200", false),
            ("100.100.100.200", "100.100.100.200", true),
            ("0.0.0.0/0", "10.0.0.1", true),
        ] {
            assert_eq!(
                allows(&policy(&[rule], &[]), address, 80),
                opens,
                "{rule} for {address}"
            );
        }
    }
}
