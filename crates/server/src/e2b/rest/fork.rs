//! `POST /sandboxes/ID/fork`

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use micabox::Expiry;
use serde::Deserialize;
use serde_json::json;

use super::create::keep;
use super::make::check_copy;
use super::view;
use crate::e2b::deadline;
use crate::e2b::delivery;
use crate::e2b::http::{Answer, waiting};
use crate::e2b::label;
use crate::e2b::problem::Problem;
use crate::e2b::server::Server;

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
    check_copy(&served.label, &server.options.all)?;
    let all = server.sandboxes.clone();
    let life = deadline::life(served.label.on_timeout, seconds);
    let idle = server.options.idle_timeout;
    let copies = waiting(id, move || {
        let labels = (0..count).map(|_| served.label.of_copy()?.text());
        let labels = labels.collect::<Result<Vec<_>, _>>()?;
        let original = served.sandbox.expires()?.expiry;
        // Before they are left to themselves: none is without a deadline if this server ends now.
        let expiry = of_copy(idle, original, life);
        let made = micabox_creation::fork_with(&all, served.id(), count, |builder, number| {
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

/// When a copy ends by itself: a copy's life is its own. When it is idle is the server's to say, or as it was before.
fn of_copy(idle: Option<Duration>, original: Expiry, life: Duration) -> Expiry {
    Expiry {
        idle_timeout: idle.or(original.idle_timeout),
        max_life: Some(life),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_ends_when_it_is_idle_as_the_original_does() {
        let seconds = Duration::from_secs;
        let original = Expiry {
            idle_timeout: Some(seconds(60)),
            max_life: Some(seconds(1000)),
        };
        let expiry = |idle, max_life| Expiry {
            idle_timeout: Some(seconds(idle)),
            max_life: Some(seconds(max_life)),
        };
        assert_eq!(of_copy(None, original, seconds(15)), expiry(60, 15));
        assert_eq!(
            of_copy(Some(seconds(30)), original, seconds(15)),
            expiry(30, 15)
        );
    }
}
