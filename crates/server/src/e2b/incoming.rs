//! Bodies of requests, which are received to their end even if the answer does not need them: a connection that is
//! closed before that is reset, and its client does not get the answer.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::Request;
use hyper::body::{Body, Frame, Incoming as Received, SizeHint};
use hyper::header::EXPECT;
use micabox_listen::Pace;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::call::Call;

/// How long the rest of a body may take. After that the connection is closed.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a client may send nothing of a body that is read.
const SILENCE: Duration = Duration::from_secs(60);

/// How long it may be waited for in all, for a body that is short.
const SHORT: Duration = Duration::from_secs(120);

/// The body of a request. The part that is not read when it is dropped is left to [`Rest`].
#[derive(Debug)]
pub struct Incoming {
    body: Option<Received>,
    rest: Option<oneshot::Sender<Received>>,
    /// The client sends it once the first of it is read ("Expect: 100-continue").
    is_held_back: bool,
    /// How long it may be waited for; None for ever.
    pace: Option<Pace>,
    call: Arc<Call>,
}

/// The part of a body that the answer to its request did not need.
#[derive(Debug)]
pub struct Rest(oneshot::Receiver<Received>);

/// Separates a request from the rest of its body.
pub fn split(request: Request<Received>, call: Arc<Call>) -> (Request<Incoming>, Rest) {
    let (rest, body) = oneshot::channel();
    let is_held_back = request.headers().contains_key(EXPECT);
    let request = request.map(|body| Incoming {
        body: Some(body),
        rest: Some(rest),
        is_held_back,
        pace: Some(Pace::new(SILENCE)),
        call,
    });
    (request, Rest(body))
}

impl Incoming {
    /// Returns what is kept for its request.
    pub fn call(&self) -> &Arc<Call> {
        &self.call
    }

    /// Sets how long its client may be silent each time, however little it sends; None for ever.
    pub fn set_patience(&mut self, patience: Option<Duration>) {
        self.pace = patience.map(Pace::steady);
    }

    /// Has its client send what it has begun, as at the beginning of a body.
    pub fn expect_more(&mut self) {
        self.pace = Some(Pace::new(SILENCE));
    }

    /// Its client has little time for all of it.
    pub fn is_short(&mut self) {
        if let Some(pace) = &mut self.pace {
            pace.set_total(SHORT);
        }
    }
}

impl Rest {
    /// Receives the rest and drops it; nothing if the body is still in use.
    pub async fn receive(mut self) {
        if let Ok(mut body) = self.0.try_recv() {
            let rest = async { while let Some(Ok(_)) = body.frame().await {} };
            let _ = timeout(PATIENCE, rest).await;
        }
    }
}

impl Body for Incoming {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.is_held_back = false;
        let Self { body, pace, .. } = &mut *self;
        let Some(body) = body else {
            return Poll::Ready(None);
        };
        if let Poll::Ready(frame) = Pin::new(body).poll_frame(context) {
            if let Some(pace) = pace {
                let data = frame.as_ref().and_then(|frame| frame.as_ref().ok());
                let data = data.and_then(Frame::data_ref);
                pace.moved(data.map_or(0, Bytes::len));
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(io::Error::other)));
        }
        let Some(pace) = pace else {
            return Poll::Pending;
        };
        ready!(pace.poll_late(context));
        // There is no rest to wait for.
        self.rest = None;
        let message = "the client sends nothing, or too little";
        Poll::Ready(Some(Err(io::Error::new(io::ErrorKind::TimedOut, message))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map(Body::size_hint).unwrap_or_default()
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if let (Some(body), Some(rest), false) =
            (self.body.take(), self.rest.take(), self.is_held_back)
        {
            // The connection may be closed already.
            let _ = rest.send(body);
        }
    }
}
