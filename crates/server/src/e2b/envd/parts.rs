//! Bodies with a part for each file, bounded where the library that reads them is not.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::Body;
use multer::{Constraints, Field, Multipart, SizeLimit};

use crate::e2b::http::broken;
use crate::e2b::problem::{Kind, Problem};

/// Most bytes between a part's contents and the next one's: a boundary and headers.
pub const HEAD: usize = 64 << 10;

/// Bytes that the library gets at a time, once it can't go on with those that it has, all of which it looks at again.
pub const PIECE: usize = 16 << 10;

/// The parts of a body.
pub struct Parts {
    parts: Multipart<'static>,
    supply: Arc<Supply>,
}

/// What the library may have of a body.
#[derive(Default)]
struct Supply {
    /// How many more bytes.
    left: AtomicUsize,
    /// Whether there is nothing at its next look: it looks for more before it uses what it has.
    is_paused: AtomicBool,
}

impl Parts {
    pub fn new<B>(body: B, boundary: String) -> Self
    where
        B: Body<Data = Bytes, Error = io::Error> + Unpin + Send + 'static,
    {
        let supply = Arc::<Supply>::default();
        let pieces = Pieces {
            body,
            rest: Bytes::new(),
            supply: Arc::clone(&supply),
        };
        // Contents may be as long as the sandbox has room.
        let limits = Constraints::new().size_limit(SizeLimit::new());
        Self {
            parts: Multipart::with_constraints(pieces, boundary, limits),
            supply,
        }
    }

    /// Returns the next part; the one before must have been read to its end.
    pub async fn next(&mut self) -> Result<Option<Part>, Problem> {
        self.supply.left.store(HEAD, Ordering::Relaxed);
        self.supply.is_paused.store(true, Ordering::Relaxed);
        let field = self.parts.next_field().await.map_err(of_parts)?;
        self.supply.left.store(usize::MAX, Ordering::Relaxed);
        Ok(field.map(|field| Part {
            field,
            supply: Arc::clone(&self.supply),
        }))
    }
}

/// A part.
pub struct Part {
    field: Field<'static>,
    supply: Arc<Supply>,
}

impl Part {
    pub fn name(&self) -> Option<&str> {
        self.field.name()
    }

    pub fn file_name(&self) -> Option<&str> {
        self.field.file_name()
    }

    /// Returns the next bytes of its contents; None at their end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Problem> {
        self.supply.is_paused.store(true, Ordering::Relaxed);
        self.field.chunk().await.map_err(of_parts)
    }
}

fn of_parts(error: multer::Error) -> Problem {
    match error {
        multer::Error::StreamReadFailed(source) => match source.downcast::<io::Error>() {
            Ok(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                Problem::new(Kind::TooLarge, error.to_string())
            }
            Ok(error) => broken(*error),
            Err(error) => Problem::invalid(error.to_string()),
        },
        error => Problem::invalid(error.to_string()),
    }
}

/// A body in short pieces. After each one it has nothing for a moment: the library takes all that there is.
struct Pieces<B> {
    body: B,
    rest: Bytes,
    supply: Arc<Supply>,
}

impl<B: Body<Data = Bytes, Error = io::Error> + Unpin> futures_core::Stream for Pieces<B> {
    type Item = io::Result<Bytes>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Bytes>>> {
        if self.supply.is_paused.swap(false, Ordering::Relaxed) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        while self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(frame)) => self.rest = frame.into_data().unwrap_or_default(),
            }
        }
        let count = self.rest.len().min(PIECE);
        let Some(left) = self.supply.left.load(Ordering::Relaxed).checked_sub(count) else {
            let message = format!("a part's headers have more than {HEAD} bytes");
            let error = io::Error::new(io::ErrorKind::FileTooLarge, message);
            return Poll::Ready(Some(Err(error)));
        };
        self.supply.left.store(left, Ordering::Relaxed);
        self.supply.is_paused.store(true, Ordering::Relaxed);
        Poll::Ready(Some(Ok(self.rest.split_to(count))))
    }
}
