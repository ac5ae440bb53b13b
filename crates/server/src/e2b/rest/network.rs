//! What a sandbox may reach, from E2B's rules to those of `mica run`. The server's own options are a bound: a client's
//! rules narrow them, and open nothing.

use micabox::{NetRules, Rule};
use micabox_spec::options::{Net, SandboxOptions};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::e2b::problem::Problem;

/// All addresses, as E2B's clients write them.
const ALL: &str = "0.0.0.0/0";

/// Most rules.
const RULES: usize = 500;

/// The network's part of a request for a sandbox.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rules {
    allow_out: Option<Vec<String>>,
    deny_out: Option<Vec<String>>,
    pub allow_public_traffic: Option<bool>,
    dns_servers: Option<Value>,
    egress_proxy: Option<Value>,
    https_ports: Option<Value>,
    mask_request_host: Option<Value>,
    rules: Option<Value>,
}

/// What a client wants a sandbox to reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Whatever the server's options allow.
    Any,
    /// A part of that.
    Some(NetRules),
    /// Nothing: it has no network.
    Nothing,
}

impl Rules {
    /// Returns what they and `allow_internet_access` ask for. E2B's allowed addresses go before its denied ones: with
    /// a list of the former, all but these may be denied.
    pub fn wish(&self, internet: Option<bool>) -> Result<Wish, Problem> {
        let empty = [Value::Null, json!({}), json!([]), json!("")];
        let others = [
            ("dnsServers", &self.dns_servers),
            ("egressProxy", &self.egress_proxy),
            ("httpsPorts", &self.https_ports),
            ("maskRequestHost", &self.mask_request_host),
            ("rules", &self.rules),
        ];
        let is_asked = |value: &Option<Value>| value.as_ref().is_some_and(|v| !empty.contains(v));
        if let Some((name, _)) = others.iter().find(|(_, value)| is_asked(value)) {
            return Err(Problem::unsupported(format!(
                "this server does not do the network's {name}"
            )));
        }
        let allowed = self.allow_out.as_deref().unwrap_or_default();
        let denied = self.deny_out.as_deref().unwrap_or_default();
        if allowed.len() + denied.len() > RULES {
            return Err(Problem::invalid(format!(
                "the network may have {RULES} rules"
            )));
        }
        let denies_all = internet == Some(false) || denied.iter().any(|rule| rule == ALL);
        let allow = rules("allowOut", allowed)?;
        let deny = rules("denyOut", denied)?;
        Ok(match (denies_all, allow.is_empty(), deny.is_empty()) {
            (true, true, _) => Wish::Nothing,
            (true, false, _) => Wish::Some(NetRules {
                allow,
                deny: Vec::new(),
            }),
            // Without a denial all is allowed.
            (false, _, true) => Wish::Any,
            (false, true, false) => Wish::Some(NetRules { allow, deny }),
            (false, false, false) => {
                return Err(Problem::unsupported(
                    "allowOut with denyOut is done here only if denyOut has 0.0.0.0/0",
                ));
            }
        })
    }
}

fn rules(list: &str, texts: &[String]) -> Result<Vec<Rule>, Problem> {
    let wrong = |text: &String, error| format!("the network's {list} has {text:?}: {error}");
    let rules = texts.iter().map(|text| {
        text.parse()
            .map_err(|error| Problem::invalid(wrong(text, error)))
    });
    rules.collect()
}

impl Wish {
    /// Takes the network from options, if that is the wish. Returns what narrows the one that they describe.
    pub fn apply(
        self,
        internet: Option<bool>,
        options: &mut SandboxOptions,
    ) -> Result<NetRules, Problem> {
        let is_open = matches!(self, Self::Some(_)) || internet == Some(true);
        if options.machine.net == Net::None && is_open && self != Self::Nothing {
            return Err(Problem::invalid(
                "this server's sandboxes have no network: leave out allow_internet_access and the network's rules",
            ));
        }
        match self {
            Self::Any => Ok(NetRules::default()),
            Self::Some(rules) => Ok(rules),
            Self::Nothing => {
                options.take_network();
                Ok(NetRules::default())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use micabox::Network;

    use super::*;

    fn wish(rules: Value, internet: Option<bool>) -> Result<Wish, Problem> {
        serde_json::from_value::<Rules>(rules)
            .unwrap()
            .wish(internet)
    }

    fn some(allow: &[&str], deny: &[&str]) -> Wish {
        let rules = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        Wish::Some(NetRules {
            allow: rules(allow),
            deny: rules(deny),
        })
    }

    #[test]
    fn a_clients_rules_are_part_of_what_the_server_allows() {
        let all = json!({"denyOut": [ALL]});
        assert_eq!(wish(json!({}), None).unwrap(), Wish::Any);
        assert_eq!(
            wish(json!({"allowOut": ["1.1.1.1"]}), None).unwrap(),
            Wish::Any
        );
        assert_eq!(wish(json!({}), Some(false)).unwrap(), Wish::Nothing);
        assert_eq!(wish(all.clone(), Some(true)).unwrap(), Wish::Nothing);
        let deny = wish(json!({"denyOut": ["192.0.2.1"]}), None).unwrap();
        assert_eq!(deny, some(&[], &["192.0.2.1"]));
        let allow = json!({"allowOut": ["127.0.0.1", "a.example"], "denyOut": [ALL]});
        let allow = wish(allow, None).unwrap();
        assert_eq!(allow, some(&["127.0.0.1", "a.example"], &[]));

        // The server's own are what they were, or there is no network at all.
        let read = |options: Value| {
            let options = micabox_creation::read(options.as_object().unwrap(), |_| true);
            options.unwrap().0
        };
        let options = read(json!({"net-allow": ["192.0.2.0/24"], "memory": "1g"}));
        for wish in [Wish::Any, deny.clone(), allow.clone()] {
            let mut left = options.clone();
            wish.apply(None, &mut left).unwrap();
            assert_eq!(format!("{left:?}"), format!("{options:?}"));
        }
        let mut left = options.clone();
        Wish::Nothing.apply(Some(false), &mut left).unwrap();
        assert_eq!(left.network(&[]), Ok(Network::None));
        assert_eq!(left.machine.memory(), Some(1024));

        // Nothing can be a part of none.
        let none = read(json!({"net": "none"}));
        for (wish, internet) in [(deny, None), (allow, None), (Wish::Any, Some(true))] {
            let problem = wish.apply(internet, &mut none.clone()).unwrap_err();
            assert_eq!(problem.kind.status(), 400, "{}", problem.message);
        }
        Wish::Any.apply(None, &mut none.clone()).unwrap();
        Wish::Nothing.apply(Some(false), &mut none.clone()).unwrap();
    }

    #[test]
    fn rules_that_can_not_be_kept_are_refused() {
        for (rules, said) in [
            (json!({"rules": {"a": []}}), "rules"),
            (json!({"httpsPorts": [443]}), "httpsPorts"),
            (json!({"denyOut": ["::/0"]}), "denyOut"),
            (json!({"allowOut": ["http://x"]}), "allowOut"),
            (
                json!({"allowOut": ["1.1.1.1"], "denyOut": ["1.0.0.0/8"]}),
                "0.0.0.0/0",
            ),
        ] {
            let problem = wish(rules, None).unwrap_err();
            assert!(problem.message.contains(said), "{}", problem.message);
        }
    }
}
