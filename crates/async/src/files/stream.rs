//! Bytes of files, as tokio's streams.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use micabox::{Error, FileTask};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::operation::{Ending, Operation};
use crate::{Output, Stdin};

/// A file that is being read. Its end is reported only if all of it has arrived. An error in it has an
/// [`Error`] inside ([`io::Error::downcast`]).
#[derive(Debug)]
pub struct FileReader {
    /// None after the end.
    output: Option<Output>,
    ending: Ending,
}

/// A file that is being written. A write waits while the sandbox does not take the bytes, and fails with
/// [`io::ErrorKind::BrokenPipe`] after a failure inside, which the shutdown explains. Dropping it leaves
/// what was written by then.
#[derive(Debug)]
pub struct FileWriter {
    stdin: Stdin,
    ending: Ending,
}

impl FileReader {
    pub(super) fn new(mut operation: Operation) -> Result<Self, Error> {
        Ok(Self {
            output: Some(operation.process.stdout.take().ok_or(Error::BadReply)?),
            ending: operation.into(),
        })
    }

    pub(super) fn task(&self) -> &FileTask {
        self.ending.task()
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
        if let Some(output) = &mut self.output {
            let room = buffer.remaining();
            let read = ready!(Pin::new(output).poll_read(context, buffer));
            if read.is_ok() && buffer.remaining() < room {
                return Poll::Ready(Ok(()));
            }
            // The operation has the reason of an early end.
            self.output = None;
        }
        self.ending.poll(context).map_err(io::Error::from)
    }
}

impl FileWriter {
    pub(super) fn new(mut operation: Operation) -> Result<Self, Error> {
        Ok(Self {
            stdin: operation.process.stdin.take().ok_or(Error::BadReply)?,
            ending: operation.into(),
        })
    }

    /// Ends the file, and waits until all of it is written in the sandbox: as its shutdown, with the
    /// error itself.
    ///
    /// # Errors
    /// [`Error::File`]: why it could not be written; [`Error::Lost`] if the sandbox ended first.
    pub async fn finish(mut self) -> Result<(), Error> {
        self.stdin.end();
        poll_fn(|context| self.ending.poll(context)).await
    }
}

impl AsyncWrite for FileWriter {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stdin).poll_write(context, data)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stdin.end();
        self.ending.poll(context).map_err(io::Error::from)
    }
}
