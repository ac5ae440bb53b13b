//! Bodies of requests, which are received to their end even if the answer does not need them: a connection that is
//! closed before that is reset, and its client does not get the answer.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::Request;
use hyper::body::{Body, Frame, Incoming as Received, SizeHint};
use hyper::header::EXPECT;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// How long the rest of a body may take. After that the connection is closed.
const PATIENCE: Duration = Duration::from_secs(30);

/// The body of a request. The part that is not read when it is dropped is left to [`Rest`].
#[derive(Debug)]
pub struct Incoming {
    body: Option<Received>,
    rest: Option<oneshot::Sender<Received>>,
    /// The client sends it once the first of it is read ("Expect: 100-continue").
    is_held_back: bool,
}

/// The part of a body that the answer to its request did not need.
#[derive(Debug)]
pub struct Rest(oneshot::Receiver<Received>);

/// Separates a request from the rest of its body.
pub fn split(request: Request<Received>) -> (Request<Incoming>, Rest) {
    let (rest, body) = oneshot::channel();
    let is_held_back = request.headers().contains_key(EXPECT);
    let request = request.map(|body| Incoming {
        body: Some(body),
        rest: Some(rest),
        is_held_back,
    });
    (request, Rest(body))
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
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.is_held_back = false;
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(context),
            None => Poll::Ready(None),
        }
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
