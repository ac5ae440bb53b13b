//! Bodies of requests to a registry: bytes in memory, or part of a file, sent as often as needed.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};

/// Bytes that are read at a time.
const PIECE: u64 = 128 << 10;
/// How many idle timeouts to wait for a response: the connection may have to be made first.
const ANSWER: u32 = 2;
/// The same where the registry may have to process a whole blob.
const LONG_ANSWER: u32 = 10;

/// The body of one or more requests.
pub(crate) struct Outgoing {
    content: Content,
    /// Counts the bytes that the HTTP client took, over all requests with this body.
    taken: Arc<AtomicU64>,
    watch: Watch,
    /// How many idle timeouts may pass before the response.
    answer: u32,
}

/// Called with the number of bytes of a body that were taken so far.
pub(crate) type Watch = Arc<dyn Fn(u64) + Send + Sync>;

enum Content {
    Bytes(Bytes),
    Part {
        file: Arc<File>,
        start: u64,
        length: u64,
    },
}

impl Outgoing {
    pub(crate) fn bytes(bytes: impl Into<Bytes>) -> Self {
        Self {
            content: Content::Bytes(bytes.into()),
            taken: Arc::default(),
            watch: Arc::new(|_| {}),
            answer: ANSWER,
        }
    }

    /// Creates an empty body of a request whose response may take long: the end of an upload.
    pub(crate) fn end() -> Self {
        Self {
            answer: LONG_ANSWER,
            ..Self::bytes("")
        }
    }

    pub(crate) fn part(file: &Arc<File>, start: u64, length: u64, watch: Watch) -> Self {
        Self {
            content: Content::Part {
                file: Arc::clone(file),
                start,
                length,
            },
            taken: Arc::default(),
            watch,
            answer: LONG_ANSWER,
        }
    }

    /// Returns the body for one request.
    pub(crate) fn body(&self) -> reqwest::Body {
        match &self.content {
            Content::Bytes(bytes) => bytes.clone().into(),
            Content::Part {
                file,
                start,
                length,
            } => reqwest::Body::wrap(PartBody {
                file: Arc::clone(file),
                at: *start,
                left: *length,
                sent: 0,
                taken: Arc::clone(&self.taken),
                watch: Arc::clone(&self.watch),
            }),
        }
    }

    /// Returns once no bytes were taken for `idle`, or, after the last byte, no response came for
    /// `answer` times `idle`.
    pub(crate) async fn stalled(&self, idle: Duration) {
        let mut quiet = 0;
        let mut before = 0;
        while quiet < self.answer {
            tokio::time::sleep(idle).await;
            let now = self.taken.load(Ordering::Relaxed);
            match (now == before, self.length().is_some_and(|all| now < all)) {
                (true, true) => return,
                (true, false) => quiet += 1,
                (false, _) => quiet = 0,
            }
            before = now;
        }
    }

    /// Returns the body's size in bytes.
    pub(crate) fn size(&self) -> u64 {
        match &self.content {
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::Part { length, .. } => *length,
        }
    }

    /// Returns how many bytes must be taken in sequence; `None` for bytes in memory.
    fn length(&self) -> Option<u64> {
        match &self.content {
            Content::Bytes(_) => None,
            Content::Part { length, .. } => Some(*length),
        }
    }
}

/// Part of a file that is being sent. Reads block, but only for the page cache: the file was
/// written a moment ago.
struct PartBody {
    file: Arc<File>,
    at: u64,
    left: u64,
    sent: u64,
    taken: Arc<AtomicU64>,
    watch: Watch,
}

impl http_body::Body for PartBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let mut piece = vec![0; self.left.min(PIECE) as usize];
        if let Err(error) = self.file.read_exact_at(&mut piece, self.at) {
            return Poll::Ready(Some(Err(error)));
        }
        let length = piece.len() as u64;
        self.at += length;
        self.left -= length;
        self.sent += length;
        self.taken.fetch_add(length, Ordering::Relaxed);
        (self.watch)(self.sent);
        Poll::Ready(Some(Ok(Frame::data(piece.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
