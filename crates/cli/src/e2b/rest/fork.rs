//! `POST /sandboxes/ID/fork`

use std::sync::Arc;

use hyper::StatusCode;
use micabox::Expiry;
use serde::Deserialize;
use serde_json::json;

use super::create::keep;
use super::view;
use crate::e2b::delivery;
use crate::e2b::http::{Answer, waiting};
use crate::e2b::label;
use crate::e2b::problem::Problem;
use crate::e2b::{Server, deadline};
use crate::serve::sandboxes;

/// Most copies of a request.
const COPIES: u16 = 100;

/// Seconds of a copy, unless the client wants something else.
const DEFAULT: u64 = 15;

/// The body.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fork {
    timeout: Option<u64>,
    count: Option<u16>,
}

/// Makes copies that continue where the sandbox is.
pub async fn fork(server: &Arc<Server>, id: &str, fork: Fork) -> Answer {
    let served = server.found(id).await?;
    let seconds = deadline::seconds(fork.timeout, DEFAULT)?;
    let count = fork.count.unwrap_or(1);
    if !(1..=COPIES).contains(&count) {
        return Err(Problem::invalid(format!(
            "count is not between 1 and {COPIES}"
        )));
    }
    let all = server.sandboxes.clone();
    // Before they are left to themselves: none is without a deadline if this server ends now.
    let expiry = Expiry {
        max_life: Some(deadline::life(served.label.on_timeout, seconds)),
        ..Expiry::default()
    };
    let copies = waiting(id, move || {
        let labels = (0..count).map(|_| served.label.of_copy()?.text());
        let labels = labels.collect::<Result<Vec<_>, _>>()?;
        let made = sandboxes::fork_with(&all, served.id(), count, |builder, number| {
            let builder = builder.expiry(expiry);
            match labels.get(usize::from(number)) {
                Some(text) => builder.label(label::NAME, text),
                None => builder,
            }
        })?;
        let kept = made.into_iter().map(|made| keep(&all, made));
        kept.collect::<Result<Vec<_>, _>>()
    })
    .await?;
    for copy in &copies {
        server.expect(copy, seconds);
    }
    let results: Vec<_> = copies
        .iter()
        .map(|copy| json!({"sandbox": view::access(server, copy)}))
        .collect();
    Ok(delivery::json(
        server,
        StatusCode::CREATED,
        &results,
        copies,
    ))
}
