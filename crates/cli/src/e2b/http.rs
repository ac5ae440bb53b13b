//! Bodies of requests and replies, and what bounds them.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full, Limited};
use hyper::body::{Body as _, Frame};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use super::incoming::Incoming;
use super::problem::{Kind, Problem};

pub type Request = hyper::Request<Incoming>;
pub type Body = BoxBody<Bytes, io::Error>;
pub type Response = hyper::Response<Body>;
pub type Answer = Result<Response, Problem>;

/// Most bytes of a body in JSON: the input of a command is one, in base64.
const JSON: usize = 8 << 20;

/// Pieces of a stream that wait for a client.
const PIECES: usize = 16;

/// Where the pieces of a reply come from; an error ends the connection.
pub type Pieces = mpsc::Sender<io::Result<Bytes>>;

/// A reply with a body in JSON.
pub fn json(status: StatusCode, body: &impl Serialize) -> Response {
    let text = serde_json::to_vec(body).unwrap_or_default();
    let mut reply = hyper::Response::new(full(text));
    *reply.status_mut() = status;
    set_type(&mut reply, "application/json");
    reply
}

/// A reply without a body.
pub fn empty(status: StatusCode) -> Response {
    let body = Empty::new().map_err(|never| match never {});
    let mut reply = hyper::Response::new(BodyExt::boxed(body));
    *reply.status_mut() = status;
    reply
}

pub fn set_type(reply: &mut Response, kind: &'static str) {
    let kind = HeaderValue::from_static(kind);
    reply.headers_mut().insert(CONTENT_TYPE, kind);
}

pub fn full(bytes: impl Into<Bytes>) -> Body {
    let body = Full::new(bytes.into()).map_err(|never| match never {});
    BodyExt::boxed(body)
}

/// A body whose pieces come later. They wait for the client to read them.
pub fn later() -> (Pieces, Body) {
    let (pieces, rest) = mpsc::channel(PIECES);
    (pieces, BodyExt::boxed(Later(rest)))
}

struct Later(mpsc::Receiver<io::Result<Bytes>>);

impl hyper::body::Body for Later {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let next = self.0.poll_recv(context);
        next.map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

/// Reads a body in JSON; an empty one has no fields.
pub async fn read<T: DeserializeOwned>(body: Incoming) -> Result<T, Problem> {
    let bytes = collect(body).await?;
    let bytes = if bytes.is_empty() { b"{}" } else { &*bytes };
    serde_json::from_slice(bytes)
        .map_err(|error| Problem::invalid(format!("the body is not as expected: {error}")))
}

async fn collect(body: Incoming) -> Result<Bytes, Problem> {
    let too_large = || Problem::new(Kind::TooLarge, "the body is too large");
    if body.size_hint().lower() > JSON as u64 {
        return Err(too_large());
    }
    let read = Limited::new(body, JSON).collect().await;
    Ok(read.map_err(|_| too_large())?.to_bytes())
}

/// Returns a header that is text.
pub fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Returns a parameter of the query.
pub fn query(uri: &hyper::Uri, name: &str) -> Option<String> {
    let text = uri.query()?;
    let mut pairs = form_urlencoded::parse(text.as_bytes());
    let (_, value) = pairs.find(|(key, _)| key == name)?;
    Some(value.into_owned())
}

/// Does what blocks in a thread.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|_| Err(Problem::new(Kind::Internal, "a thread has failed")))
}
