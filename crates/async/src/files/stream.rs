//! Bytes of files, as tokio's streams.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use micabox::{Error, FileTask};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::operation::{End, Operation};
use crate::{Output, Stdin};

/// A file that is being read. Its end is reported only if all of it has arrived. An error in it is an
/// [`Error`] inside ([`io::Error::downcast`]).
pub struct FileReader {
    task: FileTask,
    state: Reading,
}

enum Reading {
    Bytes(Output, Option<Operation>),
    End(End),
    Over,
}

/// A file that is being written. A write waits while the sandbox does not take the bytes, and fails with
/// [`io::ErrorKind::BrokenPipe`] after a failure inside, which the shutdown explains. Dropping it leaves what was written by then.
pub struct FileWriter {
    task: FileTask,
    state: Writing,
}

enum Writing {
    Bytes(Stdin, Option<Operation>),
    End(End),
    Over,
}

impl std::fmt::Debug for FileReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("FileReader").field(&self.task).finish()
    }
}

impl std::fmt::Debug for FileWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("FileWriter").field(&self.task).finish()
    }
}

impl FileReader {
    pub(super) fn new(mut operation: Operation) -> Result<Self, Error> {
        let output = operation.process.stdout.take().ok_or(Error::BadReply)?;
        Ok(Self {
            task: operation.task.clone(),
            state: Reading::Bytes(output, Some(operation)),
        })
    }

    pub(super) fn task(&self) -> &FileTask {
        &self.task
    }
}

impl AsyncRead for FileReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        loop {
            match &mut self.state {
                Reading::Bytes(output, operation) => {
                    let before = buffer.filled().len();
                    // At an early end, the operation's has the reason.
                    let read = ready!(Pin::new(output).poll_read(context, buffer));
                    if read.is_ok() && buffer.filled().len() > before {
                        return Poll::Ready(Ok(()));
                    }
                    self.state = match operation.take() {
                        Some(operation) => Reading::End(operation.boxed_end()),
                        None => Reading::Over,
                    };
                }
                Reading::End(end) => {
                    let ended = ready!(end.as_mut().poll(context));
                    self.state = Reading::Over;
                    ended?;
                }
                Reading::Over => return Poll::Ready(Ok(())),
            }
        }
    }
}

impl FileWriter {
    pub(super) fn new(mut operation: Operation) -> Result<Self, Error> {
        let stdin = operation.process.stdin.take().ok_or(Error::BadReply)?;
        Ok(Self {
            task: operation.task.clone(),
            state: Writing::Bytes(stdin, Some(operation)),
        })
    }

    /// Ends the file, and waits until all of it is written in the sandbox: its shutdown, with the error
    /// itself.
    ///
    /// # Errors
    /// [`Error::File`]: why it could not be written; [`Error::Lost`] if the sandbox ended first.
    pub async fn finish(mut self) -> Result<(), Error> {
        let ended = std::future::poll_fn(|context| Pin::new(&mut self).poll_shutdown(context)).await;
        ended.map_err(|error| self.task.of_stream(error))
    }
}

impl AsyncWrite for FileWriter {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.state {
            Writing::Bytes(stdin, _) => Pin::new(stdin).poll_write(context, data),
            Writing::End(_) | Writing::Over => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            match &mut self.state {
                Writing::Bytes(stdin, operation) => {
                    stdin.end();
                    self.state = match operation.take() {
                        Some(operation) => Writing::End(operation.boxed_end()),
                        None => Writing::Over,
                    };
                }
                Writing::End(end) => {
                    let ended = ready!(end.as_mut().poll(context));
                    self.state = Writing::Over;
                    return Poll::Ready(ended.map_err(io::Error::from));
                }
                Writing::Over => return Poll::Ready(Ok(())),
            }
        }
    }
}
