//! Ports of programs in a sandbox: requests for them, WebSockets too, are passed on as they are.
//!
//! A port need not be published: the sandbox's agent connects to it.

use std::io;
use std::sync::Arc;

use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use micabox::Handle;
use rustix::process::Signal;
use serde_json::json;
use tokio::io::copy_bidirectional;
use tokio::sync::OwnedSemaphorePermit;

use super::Server;
use super::envd::Running;
use super::http::{self, Answer, Request, Response};
use super::problem::Problem;
use super::sandbox::Served;

/// Headers for this server.
const OURS: [&str; 4] = [
    "e2b-sandbox-id",
    "e2b-sandbox-port",
    "e2b-traffic-access-token",
    "x-access-token",
];

/// Passes a request on.
pub async fn answer(
    server: Arc<Server>,
    served: Served,
    port: u16,
    mut request: Request,
) -> Answer {
    let place = Arc::clone(&server.proxied).try_acquire_owned();
    let place = place.map_err(|_| {
        Problem::new(
            super::problem::Kind::TooMany,
            "this server has too many connections to ports already",
        )
    })?;
    for name in OURS {
        request.headers_mut().remove(name);
    }
    // A client of this server, and one of the program: they have a path each.
    let path = request.uri().path_and_query().map(ToString::to_string);
    *request.uri_mut() = path
        .unwrap_or_else(|| "/".to_owned())
        .parse()
        .map_err(|error: hyper::http::uri::InvalidUri| Problem::invalid(error.to_string()))?;
    let closed = || closed(&served, port);
    let Ok(running) = Running::connect(served.sandbox.clone(), port).await else {
        return Ok(closed());
    };
    let Some(stdin) = running.stdin else {
        return Ok(closed());
    };
    let pipes = TokioIo::new(tokio::io::join(running.stdout, stdin.pipe));
    let Ok((mut sender, connection)) = http1::handshake(pipes).await else {
        return Ok(closed());
    };
    let kept = Arc::new(Kept {
        handle: running.handle,
        _place: place,
    });
    let until = Arc::clone(&kept);
    tokio::spawn(async move {
        let _ = connection.with_upgrades().await;
        drop(until);
    });
    let ours = hyper::upgrade::on(&mut request);
    let Ok(mut reply) = sender.send_request(request).await else {
        return Ok(closed());
    };
    if reply.status() == StatusCode::SWITCHING_PROTOCOLS {
        let theirs = hyper::upgrade::on(&mut reply);
        tokio::spawn(async move {
            if let (Ok(ours), Ok(theirs)) = tokio::join!(ours, theirs) {
                let (mut ours, mut theirs) = (TokioIo::new(ours), TokioIo::new(theirs));
                let _ = copy_bidirectional(&mut ours, &mut theirs).await;
            }
            drop(kept);
        });
    }
    Ok(reply.map(|body| {
        let body = body.map_err(io::Error::other);
        BodyExt::boxed(body)
    }))
}

/// A connection into a sandbox. It ends when this is dropped.
struct Kept {
    handle: Handle,
    _place: OwnedSemaphorePermit,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.handle.signal(Signal::KILL.as_raw());
    }
}

/// What is said of a port that needs a token which the client has not.
pub fn forbidden(id: &str, port: u16) -> Response {
    let body = json!({
        "sandboxId": id,
        "message": "The port is not public: the header e2b-traffic-access-token does not have the sandbox's token",
        "port": port,
        "code": 403,
    });
    http::json(StatusCode::FORBIDDEN, &body)
}

/// What E2B says of a port at which nothing listens.
fn closed(served: &Served, port: u16) -> Response {
    let body = json!({
        "sandboxId": served.id(),
        "message": "The sandbox is running but port is not open",
        "port": port,
        "code": 502,
    });
    http::json(StatusCode::BAD_GATEWAY, &body)
}
