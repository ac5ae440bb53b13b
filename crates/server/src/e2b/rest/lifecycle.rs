//! A sandbox's deadline, its pause, and its end.

use std::sync::Arc;

use hyper::StatusCode;
use serde::Deserialize;

use super::view;
use crate::e2b::deadline;
use crate::e2b::http::{self, Answer};
use crate::e2b::label::OnTimeout;
use crate::e2b::problem::{Kind, Problem};
use crate::e2b::server::Server;

/// The body of a request for so much time.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timeout {
    timeout: u64,
}

/// The body of a request for more time.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refresh {
    duration: Option<u64>,
}

/// The body of a request to connect to a sandbox, or to resume it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Connect {
    timeout: Option<u64>,
    /// Whether a paused sandbox continues with its memory.
    memory: Option<bool>,
    /// Of E2B's former clients: what happens at the next deadline.
    auto_pause: Option<bool>,
}

/// The body of a request for a pause.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Pause {
    memory: Option<bool>,
    require_healthy_guest: Option<bool>,
}

/// Ends a sandbox.
pub async fn kill(server: &Arc<Server>, id: &str) -> Answer {
    let served = server.found(id).await?;
    server.end(served).await?;
    Ok(http::empty(StatusCode::NO_CONTENT))
}

/// Gives it so many seconds from now.
pub async fn timeout(server: &Arc<Server>, id: &str, time: Timeout) -> Answer {
    let served = server.found(id).await?;
    let seconds = deadline::seconds(Some(time.timeout), 0)?;
    server.give(&served, seconds).await?;
    Ok(http::empty(StatusCode::NO_CONTENT))
}

/// Gives it at least so many seconds.
pub async fn refresh(server: &Arc<Server>, id: &str, time: Refresh) -> Answer {
    let served = server.found(id).await?;
    let seconds = deadline::seconds(time.duration, deadline::DEFAULT)?;
    server.prolong(&served, seconds).await?;
    Ok(http::empty(StatusCode::NO_CONTENT))
}

/// Pauses it: its processors stop, and its memory stays where it is.
pub async fn pause(server: &Arc<Server>, id: &str, pause: Pause) -> Answer {
    let served = server.found(id).await?;
    if pause.memory == Some(false) {
        return Err(Problem::unsupported(
            "a pause keeps the memory here; create_snapshot with mode \"filesystem\" keeps the files alone",
        ));
    }
    if pause.require_healthy_guest == Some(true) {
        return Err(Problem::unsupported(
            "a pause asks nothing of the guest here (requireHealthyGuest)",
        ));
    }
    if served.is_paused() {
        let message = format!("sandbox \"{id}\" is already paused");
        return Err(Problem::new(Kind::Conflict, message));
    }
    server.pause(&served).await?;
    Ok(http::empty(StatusCode::NO_CONTENT))
}

/// Says how it is reached, with more time for it; a paused one continues.
pub async fn connect(server: &Arc<Server>, id: &str, asked: Connect) -> Answer {
    let served = server.found(id).await?;
    let seconds = deadline::seconds(asked.timeout, deadline::DEFAULT)?;
    let pauses = served.label.on_timeout == OnTimeout::Pause;
    if asked.auto_pause.is_some_and(|pause| pause != pauses) {
        return Err(Problem::unsupported(
            "what happens at the deadline is as the sandbox was made (autoPause)",
        ));
    }
    let status = if served.is_paused() {
        if asked.memory == Some(false) {
            return Err(Problem::unsupported(
                "a paused sandbox continues with its memory here",
            ));
        }
        server.resume(&served, seconds).await?;
        StatusCode::CREATED
    } else {
        server.prolong(&served, seconds).await?;
        StatusCode::OK
    };
    Ok(http::json(status, &view::access(server, &served)))
}
