//! Entry points for `fuzz/` to the proxy's parsers.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::message::{Code, Query, Verdict};
use micabox_spec::network::Name;

/// The proxy's view of a guest's message and of a resolver's response to it.
#[derive(Debug)]
pub struct Exchange {
    /// The name that rules apply to.
    pub name: Option<String>,
    /// The response to the guest if the policy denies the name.
    pub refusal: Vec<u8>,
    /// The message sent to the resolver.
    pub forwarded: Vec<u8>,
    /// Whether the resolver's message counts as the response.
    pub is_answered: bool,
    /// The addresses that the policy learns, each with its TTL.
    pub addresses: Vec<(Ipv4Addr, Duration)>,
}

/// Parses a guest's message, forwarded under `id`, and a resolver's message.
pub fn exchange(message: &[u8], response: &[u8], id: u16) -> Option<Exchange> {
    let query = Query::parse(message)?;
    let is_answered = query.judge(response, id) == Verdict::Answer;
    Some(Exchange {
        name: query.name.as_ref().map(ToString::to_string),
        refusal: query.fail(Code::REFUSED),
        forwarded: query.with_id(id),
        is_answered,
        addresses: if is_answered {
            query.addresses(response)
        } else {
            Vec::new()
        },
    })
}

/// Parses a name as rules do.
pub fn name(text: &str) -> Option<String> {
    Name::from_text(text).map(|name| name.to_string())
}
