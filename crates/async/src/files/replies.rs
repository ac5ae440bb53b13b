//! Streams of an operation's replies, such as the entries of a directory.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use micabox::{DirectoryEntry, Error};
use micabox_wire::Decoder;
use micabox_wire::files::FileReply;
use tokio::io::{AsyncRead, ReadBuf};

use super::operation::{Ending, Operation};
use crate::Output;

/// Bytes of replies that are read at a time.
const PIECE: usize = 16 << 10;

/// The files in a directory, from [`Files::entries`](crate::Files::entries).
pub type Entries = Replies<DirectoryEntry>;

/// The replies of an operation on files, one by one. Nothing comes after an error.
pub struct Replies<T> {
    /// None after the end.
    output: Option<Output>,
    decoder: Decoder<FileReply>,
    /// Checks a reply.
    check: fn(FileReply) -> Result<T, Error>,
    ending: Ending,
}

impl<T> fmt::Debug for Replies<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut replies = f.debug_struct("Replies");
        replies
            .field("ending", &self.ending)
            .finish_non_exhaustive()
    }
}

impl<T> Replies<T> {
    pub(super) fn new(
        mut operation: Operation,
        check: fn(FileReply) -> Result<T, Error>,
    ) -> Result<Self, Error> {
        Ok(Self {
            output: Some(operation.process.stdout.take().ok_or(Error::BadReply)?),
            decoder: Decoder::new(),
            check,
            ending: operation.into(),
        })
    }

    /// Waits for the next one; None at the end. Nothing is lost if the future is dropped.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Lost`]; [`Error::BadReply`] if the guest sends something else.
    pub async fn next(&mut self) -> Option<Result<T, Error>> {
        poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<T>, Error>> {
        while let Some(output) = &mut self.output {
            match self.decoder.next_message() {
                Ok(Some(reply)) => return Poll::Ready((self.check)(reply).map(Some)),
                Ok(None) => {}
                Err(_) => return Poll::Ready(Err(Error::BadReply)),
            }
            let mut bytes = [0; PIECE];
            let mut buffer = ReadBuf::new(&mut bytes);
            let read = ready!(Pin::new(output).poll_read(context, &mut buffer));
            if read.is_ok() && !buffer.filled().is_empty() {
                self.decoder.push(buffer.filled());
            } else {
                // The operation has the reason of an early end.
                self.output = None;
            }
        }
        self.ending.poll(context).map_ok(|()| None)
    }
}

impl<T> Stream for Replies<T> {
    type Item = Result<T, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = ready!(self.poll(context));
        if next.is_err() {
            self.output = None;
            self.ending.give_up();
        }
        Poll::Ready(next.transpose())
    }
}
