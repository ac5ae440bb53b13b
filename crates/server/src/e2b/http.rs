//! Bodies of requests and replies, and what bounds them.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Body as _, Frame};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use micabox_listen::{Holding, Paced};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::mpsc;

use super::call::Call;
use super::incoming::Incoming;
use super::json;
use super::places::{Permit, Places, SMALL};
use super::problem::{Kind, Problem};

pub type Request = hyper::Request<Incoming>;
pub type Body = UnsyncBoxBody<Bytes, io::Error>;
pub type Response = hyper::Response<Body>;
pub type Answer = Result<Response, Problem>;

/// Most bytes of a body in JSON: the input of a command is one, in base64.
const JSON: usize = 8 << 20;

/// Bytes of memory that a byte of JSON takes, at most: a short string in a list.
pub const GROWTH: usize = 8;

/// Pieces of a stream that wait for a client.
const PIECES: usize = 4;

/// Bytes of a file that are read at a time.
const PIECE: usize = 64 << 10;

/// Threads that wait for one sandbox at a time, and for all. tokio has 512.
const EACH: u32 = 32;
const ALL: u32 = 256;

/// Where the pieces of a reply come from; an error ends the connection.
pub type Pieces = mpsc::Sender<io::Result<Bytes>>;

/// A reply with a body in JSON.
pub fn json(status: StatusCode, body: &impl Serialize) -> Response {
    let mut reply = json_text(serde_json::to_vec(body).unwrap_or_default());
    *reply.status_mut() = status;
    reply
}

/// A reply with a text in JSON.
pub fn json_text(text: Vec<u8>) -> Response {
    let mut reply = hyper::Response::new(full(text));
    set_type(&mut reply, "application/json");
    reply.extensions_mut().insert(Paced);
    reply
}

/// A reply without a body.
pub fn empty(status: StatusCode) -> Response {
    let body = Empty::new().map_err(|never| match never {});
    let mut reply = hyper::Response::new(BodyExt::boxed_unsync(body));
    *reply.status_mut() = status;
    reply
}

pub fn set_type(reply: &mut Response, kind: &'static str) {
    let kind = HeaderValue::from_static(kind);
    reply.headers_mut().insert(CONTENT_TYPE, kind);
}

pub fn full(bytes: impl Into<Bytes>) -> Body {
    let body = Full::new(bytes.into()).map_err(|never| match never {});
    BodyExt::boxed_unsync(body)
}

/// A body whose pieces come later. They wait for the client to read them.
pub fn later() -> (Pieces, Body) {
    let (pieces, rest) = mpsc::channel(PIECES);
    (pieces, BodyExt::boxed_unsync(Later(rest)))
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

/// A body that is read from a file of a sandbox, as the client reads it.
pub fn reading(reader: impl AsyncRead + Send + 'static) -> Body {
    BodyExt::boxed_unsync(Reading {
        reader: Box::pin(reader),
        buffer: BytesMut::new(),
    })
}

struct Reading {
    reader: Pin<Box<dyn AsyncRead + Send>>,
    buffer: BytesMut,
}

impl hyper::body::Body for Reading {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let Self { reader, buffer } = &mut *self;
        buffer.resize(PIECE, 0);
        let mut read = ReadBuf::new(buffer);
        if let Err(error) = ready!(reader.as_mut().poll_read(context, &mut read)) {
            return Poll::Ready(Some(Err(error)));
        }
        let count = read.filled().len();
        let piece = buffer.split_to(count).freeze();
        Poll::Ready((count > 0).then_some(Ok(Frame::data(piece))))
    }
}

/// A body with what is kept until it has been sent.
pub fn holding(body: Body, call: Arc<Call>) -> Body {
    BodyExt::boxed_unsync(Holding::new(body, call))
}

/// The body of a request that needs none.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// Reads a body in JSON; an empty one has no fields.
pub async fn read<T: DeserializeOwned>(body: Incoming) -> Result<T, Problem> {
    let bytes = collect(body).await?;
    let bytes = if bytes.is_empty() { b"{}" } else { &*bytes };
    json::decode(bytes)
        .map_err(|error| Problem::invalid(format!("the body is not as expected: {error}")))
}

async fn collect(mut body: Incoming) -> Result<BytesMut, Problem> {
    let too_large = || Problem::new(Kind::TooLarge, "the body is too large");
    let size = body.size_hint();
    if size.lower() > JSON as u64 {
        return Err(too_large());
    }
    let most = size.upper().and_then(|size| usize::try_from(size).ok());
    let most = most.map_or(JSON, |size| size.min(JSON));
    let call = Arc::clone(body.call());
    let mut bytes = BytesMut::new();
    let mut has_room = false;
    body.is_short();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(broken)?.into_data() else {
            continue;
        };
        let length = bytes.len() + data.len();
        if length > JSON {
            return Err(too_large());
        }
        if length > SMALL && !has_room {
            call.make_room(most * GROWTH).await?;
            has_room = true;
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

/// Why a body can't be received.
pub fn broken(error: io::Error) -> Problem {
    let kind = match error.kind() {
        io::ErrorKind::TimedOut => Kind::Deadline,
        _ => Kind::Invalid,
    };
    Problem::new(kind, format!("the body: {error}"))
}

/// Returns a header that is text.
pub fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Does what blocks in a thread.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|_| Err(Problem::new(Kind::Internal, "a thread has failed")))
}

/// Waits for the place of a thread that waits for a sandbox. One that does not answer leaves threads to the others.
pub async fn thread(sandbox: &str) -> Result<Permit, Problem> {
    static THREADS: LazyLock<Places> = LazyLock::new(|| Places::new("calls", EACH, ALL));
    THREADS.wait(sandbox, 1).await
}

/// Does what waits for a sandbox in a thread.
pub async fn waiting<T: Send + 'static>(
    sandbox: &str,
    work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    let place = thread(sandbox).await?;
    blocking(move || {
        // Until the thread is free: what asked for it may be gone before.
        let _place = place;
        work()
    })
    .await
}
