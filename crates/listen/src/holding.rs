//! A body, with what is held until it has been sent.

use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Frame, SizeHint};

/// A body that drops `held` when it has been sent, or its connection has ended.
#[derive(Debug)]
pub struct Holding<B, T> {
    body: B,
    _held: T,
}

impl<B, T> Holding<B, T> {
    /// Sends `body`, and holds `held` meanwhile.
    pub fn new(body: B, held: T) -> Self {
        Self { body, _held: held }
    }
}

impl<B: Body + Unpin, T: Unpin> Body for Holding<B, T> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
