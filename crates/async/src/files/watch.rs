//! Changes of files, as they happen.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use micabox::{Error, FileEvent};
use micabox_wire::files::FileReply;
use tokio::io::AsyncWriteExt;

use super::operation::Operation;
use super::replies::Replies;
use crate::Stdin;

/// The changes of a file or directory, from [`Files::watch`](crate::Files::watch). Ends when what is
/// watched is removed. Dropping it ends the watch.
#[derive(Debug)]
pub struct Watch {
    /// None where all that had changed when it was asked has been told.
    replies: Replies<Option<FileEvent>>,
    stdin: Stdin,
    /// Changes that came and were not returned yet.
    early: VecDeque<FileEvent>,
}

impl Watch {
    pub(super) fn new(mut operation: Operation) -> Result<Self, Error> {
        let stdin = operation.process.stdin.take().ok_or(Error::BadReply)?;
        let replies = Replies::new(operation, |reply| match reply {
            FileReply::Event(event) => FileEvent::new(event).map(Some),
            FileReply::Told => Ok(None),
            _ => Err(Error::BadReply),
        });
        Ok(Self {
            replies: replies?,
            stdin,
            early: VecDeque::new(),
        })
    }

    /// Waits for the next change; None at the end. Nothing is lost if the future is dropped.
    ///
    /// # Errors
    /// As [`Replies::next`].
    pub async fn next(&mut self) -> Option<Result<FileEvent, Error>> {
        poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }

    /// Returns all changes that no call has returned yet: those that were made before this call are among
    /// them. Nothing is lost if the future is dropped.
    ///
    /// # Errors
    /// As [`Replies::next`].
    pub async fn so_far(&mut self) -> Result<Vec<FileEvent>, Error> {
        // One that has ended has no reader, and then its end.
        let _ = self.stdin.write_all(&[0]).await;
        while let Some(event) = self.replies.next().await.transpose()?.flatten() {
            self.early.push_back(event);
        }
        Ok(self.early.drain(..).collect())
    }
}

impl Stream for Watch {
    type Item = Result<FileEvent, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(event) = self.early.pop_front() {
            return Poll::Ready(Some(Ok(event)));
        }
        loop {
            let next = ready!(Pin::new(&mut self.replies).poll_next(context));
            match next.transpose() {
                // Of a question that was given up.
                Ok(Some(None)) => {}
                Ok(Some(Some(event))) => return Poll::Ready(Some(Ok(event))),
                Ok(None) => return Poll::Ready(None),
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
    }
}
