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
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep, timeout};

use super::connections::Call;

/// How long the rest of a body may take. After that the connection is closed.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a client may send nothing of a body that is read.
const SILENCE: Duration = Duration::from_secs(60);

/// The body of a request. The part that is not read when it is dropped is left to [`Rest`].
#[derive(Debug)]
pub struct Incoming {
    body: Option<Received>,
    rest: Option<oneshot::Sender<Received>>,
    /// The client sends it once the first of it is read ("Expect: 100-continue").
    is_held_back: bool,
    /// How long it may be silent; None for ever.
    patience: Option<Duration>,
    /// While the client has to send.
    silent: Option<Pin<Box<Sleep>>>,
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
        patience: Some(SILENCE),
        silent: None,
        call,
    });
    (request, Rest(body))
}

impl Incoming {
    /// Returns what is kept for its request.
    pub fn call(&self) -> &Arc<Call> {
        &self.call
    }

    /// Sets how long its client may be silent; None for ever.
    pub fn set_patience(&mut self, patience: Option<Duration>) {
        self.patience = patience;
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
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        if let Poll::Ready(frame) = Pin::new(body).poll_frame(context) {
            self.silent = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(io::Error::other)));
        }
        let Some(patience) = self.patience else {
            return Poll::Pending;
        };
        let silent = self.silent.get_or_insert_with(|| Box::pin(sleep(patience)));
        ready!(silent.as_mut().poll(context));
        // There is no rest to wait for.
        self.rest = None;
        let message = format!("nothing came for {} seconds", patience.as_secs());
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
