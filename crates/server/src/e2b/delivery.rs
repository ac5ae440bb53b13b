//! Answers with new sandboxes: those that their client does not get are ended, as nothing knows them.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::StatusCode;
use hyper::body::{Body, Frame, SizeHint};
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::http::{self, Response};
use super::sandbox::Served;
use crate::e2b::server::Server;

/// A reply in JSON about sandboxes that were made for its client.
pub fn json(
    server: &Arc<Server>,
    status: StatusCode,
    body: &impl Serialize,
    made: Vec<Served>,
) -> Response {
    let text = serde_json::to_vec(body).unwrap_or_default();
    let delivery = Delivery {
        body: Full::new(text.into()),
        server: Arc::clone(server),
        made,
    };
    let body = delivery.map_err(|never| match never {});
    let mut reply = hyper::Response::new(BodyExt::boxed_unsync(body));
    *reply.status_mut() = status;
    http::set_type(&mut reply, "application/json");
    reply
}

/// The body of such a reply. What it tells of is delivered once the connection has taken it.
struct Delivery {
    body: Full<Bytes>,
    server: Arc<Server>,
    made: Vec<Served>,
}

impl Body for Delivery {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let taken = Pin::new(&mut self.body).poll_frame(context);
        if taken.is_ready() {
            self.made.clear();
        }
        taken
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        // While the server ends there is none; they have a deadline.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        for served in std::mem::take(&mut self.made) {
            let server = Arc::clone(&self.server);
            runtime.spawn(async move {
                let _ = server.end(served).await;
            });
        }
    }
}

/// A client's presence: it is gone when this is dropped.
#[derive(Debug)]
pub struct Presence {
    _here: watch::Sender<()>,
}

/// What tells whether a client is still there.
#[derive(Debug)]
pub struct Client(watch::Receiver<()>);

/// Begins to watch a client.
pub fn watch() -> (Presence, Client) {
    let (here, client) = watch::channel(());
    (Presence { _here: here }, Client(client))
}

impl Client {
    /// Waits until the client is gone.
    pub async fn gone(&mut self) {
        while self.0.changed().await.is_ok() {}
    }
}
