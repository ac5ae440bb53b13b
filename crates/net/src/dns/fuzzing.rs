//! Doors for `fuzz/` to what the proxy reads.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::Name;
use super::message::{Code, Query};

/// What the proxy makes of a guest's message, and of a resolver's answer to it.
#[derive(Debug)]
pub struct Exchange {
    /// The name that rules are asked about.
    pub name: Option<String>,
    /// What the guest gets if they are against it.
    pub refusal: Vec<u8>,
    /// What the resolver gets.
    pub forwarded: Vec<u8>,
    /// Whether the resolver's message passes for the answer.
    pub is_answered: bool,
    /// The addresses that the policy learns, each with the time that it counts.
    pub addresses: Vec<(Ipv4Addr, Duration)>,
}

/// Reads a guest's message, and a resolver's. The question goes out under `id`.
pub fn exchange(message: &[u8], response: &[u8], id: u16) -> Option<Exchange> {
    let query = Query::parse(message)?;
    let is_answered = query.is_answered_by(response, id);
    Some(Exchange {
        name: query.name.as_ref().map(ToString::to_string),
        refusal: query.fail(Code::Refused),
        forwarded: query.with_id(id),
        is_answered,
        addresses: if is_answered {
            query.addresses(response)
        } else {
            Vec::new()
        },
    })
}

/// A name as rules have it.
pub fn name(text: &str) -> Option<String> {
    Name::from_text(text).map(|name| name.to_string())
}
