//! What a sandbox may reach, from E2B's rules to those of `mica run`.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::e2b::problem::Problem;

/// All addresses, as E2B's clients write them.
const ALL: &str = "0.0.0.0/0";

/// Most rules.
const RULES: usize = 500;

/// The network's part of a request for a sandbox.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rules {
    #[serde(default)]
    allow_out: Vec<String>,
    #[serde(default)]
    deny_out: Vec<String>,
    pub allow_public_traffic: Option<bool>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// Adds the options. E2B's allowed addresses go before its denied ones: with a list of the former, all but these may be denied.
pub fn apply(
    rules: &Rules,
    internet: Option<bool>,
    options: &mut Map<String, Value>,
) -> Result<(), Problem> {
    let empty = [Value::Null, json!({}), json!([]), json!("")];
    if let Some((name, _)) = rules
        .others
        .iter()
        .find(|(_, value)| !empty.contains(value))
    {
        return Err(Problem::unsupported(format!(
            "this server does not do the network's {name}"
        )));
    }
    let (allowed, denied) = (&rules.allow_out, &rules.deny_out);
    if allowed.len() + denied.len() > RULES {
        return Err(Problem::invalid(format!(
            "the network may have {RULES} rules"
        )));
    }
    let denies_all = internet == Some(false) || denied.iter().any(|rule| rule == ALL);
    if denies_all && allowed.is_empty() {
        options.insert("net".to_owned(), json!("none"));
    } else if denies_all {
        options.insert("net-allow".to_owned(), json!(allowed));
    } else if !denied.is_empty() && !allowed.is_empty() {
        return Err(Problem::unsupported(
            "allowOut with denyOut is done here only if denyOut has 0.0.0.0/0",
        ));
    } else if !denied.is_empty() {
        options.insert("net-deny".to_owned(), json!(denied));
    }
    Ok(())
}
