//! Ports of programs in a sandbox: requests for them, WebSockets too, are passed on as they are.
//!
//! A port need not be published: the sandbox's agent connects to it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use micabox_async::{ExecOptions, Stdio};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite, Join, ReadBuf, copy_bidirectional, join};
use tokio::time::{Instant, Sleep, sleep};

use super::envd::WINDOW;
use super::http::{self, Answer, Request, Response};
use super::problem::Problem;
use super::sandbox::Served;
use crate::e2b::server::Server;

/// Headers for this server.
const OURS: [&str; 4] = [
    "e2b-sandbox-id",
    "e2b-sandbox-port",
    "e2b-traffic-access-token",
    "x-access-token",
];

/// How long neither side may say anything.
const SILENCE: Duration = Duration::from_secs(600);

/// Passes a request on.
pub async fn answer(
    server: Arc<Server>,
    served: Served,
    port: u16,
    mut request: Request,
) -> Answer {
    let place = server.bounds.ports.take(served.id())?;
    request.body_mut().set_patience(Some(SILENCE));
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
    // Its place is taken until the guest has answered, also where the client has left before.
    let again = served.clone();
    let connected = tokio::spawn(async move { (connected(&again, port).await, place) });
    let Ok((Some(bytes), place)) = connected.await else {
        return Ok(closed());
    };
    let Ok((mut sender, connection)) = http1::handshake(TokioIo::new(bytes)).await else {
        return Ok(closed());
    };
    let kept = Arc::new(place);
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
        BodyExt::boxed_unsync(body)
    }))
}

/// Connects to a port. The connection ends when its bytes are dropped.
async fn connected(
    served: &Served,
    port: u16,
) -> Option<Audible<Join<micabox_async::Output, micabox_async::Stdin>>> {
    let options = ExecOptions {
        stderr: Stdio::Null,
        window: WINDOW,
        ..ExecOptions::piped(true)
    };
    let commands = served.connect().await.ok()?.commands();
    let mut process = commands.connect_with(port, options).await.ok()?;
    let (sent, received) = (process.stdin.take()?, process.stdout.take()?);
    Some(Audible::new(join(received, sent)))
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

/// A connection's bytes. Silence in both directions ends it.
struct Audible<T> {
    bytes: T,
    silent: Pin<Box<Sleep>>,
}

impl<T> Audible<T> {
    fn new(bytes: T) -> Self {
        Self {
            bytes,
            silent: Box::pin(sleep(SILENCE)),
        }
    }

    /// Returns what became of a read or write, unless nothing has passed for too long.
    fn unless_silent<R>(
        &mut self,
        context: &mut Context<'_>,
        passed: Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        if passed.is_ready() {
            self.silent.as_mut().reset(Instant::now() + SILENCE);
            return passed;
        }
        ready!(self.silent.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Audible<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.bytes).poll_read(context, buffer);
        self.unless_silent(context, read)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Audible<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.bytes).poll_write(context, data);
        self.unless_silent(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.bytes).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.bytes).poll_shutdown(context)
    }
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
