//! A sandbox's deadline, its pause, and its end.

use std::sync::Arc;

use hyper::StatusCode;
use micabox::Error;
use serde::Deserialize;

use super::view;
use crate::e2b::http::{self, Answer, blocking};
use crate::e2b::problem::{Kind, Problem};
use crate::e2b::{Server, deadline};

/// The body of a request for more time.
#[derive(Debug, Deserialize)]
pub struct Time {
    timeout: Option<u64>,
    duration: Option<u64>,
    /// Whether the memory of a paused sandbox is to be kept.
    memory: Option<bool>,
}

/// The body of a request for a pause.
#[derive(Debug, Deserialize)]
pub struct Pause {
    memory: Option<bool>,
}

/// Ends a sandbox.
pub async fn kill(server: &Arc<Server>, id: &str) -> Answer {
    let served = server.found(id).await?;
    server.forget(served.id());
    blocking(
        move || match served.sandbox.stop(std::time::Duration::ZERO) {
            Ok(_) | Err(Error::Lost(_) | Error::NoSuchSandbox(_)) => Ok(()),
            Err(error) => Err(error.into()),
        },
    )
    .await?;
    Ok(http::empty(StatusCode::NO_CONTENT))
}

/// Gives it so many seconds from now.
pub async fn timeout(server: &Arc<Server>, id: &str, time: Time) -> Answer {
    let served = server.found(id).await?;
    let seconds = time
        .timeout
        .ok_or_else(|| Problem::invalid("timeout is missing"))?;
    server
        .give(&served, deadline::seconds(Some(seconds), 0)?)
        .await?;
    Ok(http::empty(StatusCode::NO_CONTENT))
}

/// Gives it at least so many seconds.
pub async fn refresh(server: &Arc<Server>, id: &str, time: Time) -> Answer {
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
    if served.is_paused() {
        let message = format!("sandbox \"{id}\" is already paused");
        return Err(Problem::new(Kind::Conflict, message));
    }
    server.pause(&served).await?;
    Ok(http::empty(StatusCode::NO_CONTENT))
}

/// Says how it is reached, with more time for it; a paused one continues.
pub async fn connect(server: &Arc<Server>, id: &str, time: Time) -> Answer {
    let served = server.found(id).await?;
    let seconds = deadline::seconds(time.timeout, deadline::DEFAULT)?;
    let status = if served.is_paused() {
        if time.memory == Some(false) {
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
