//! A command's streams, as tokio's.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use micabox_owner::protocol::frame::{self, Pipe};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::command::{Grants, Input};
use crate::pieces::{Next, Take};
use crate::process::Running;

/// A command's output. It ends when the command has ended, or has closed it. A command whose output is
/// not read waits, once 256 KiB of it are here ([`ExecOptions::window`](crate::ExecOptions::window)); dropping this
/// discards the rest. As a stream, it has the pieces that have come, of at most 32 KiB, without a copy.
///
/// If the sandbox ends first, reading fails with [`io::ErrorKind::UnexpectedEof`], and
/// [`Handle::wait`](crate::Handle::wait) has the reason.
#[derive(Debug)]
pub struct Output {
    pieces: Take,
    /// The piece that is being read, and how much of it was.
    piece: Vec<u8>,
    read: usize,
    is_over: bool,
    grants: Arc<Grants>,
    running: Arc<Running>,
}

/// A command's stdin. A write waits while the command does not read: at most 256 KiB are under way. It
/// fails with [`io::ErrorKind::BrokenPipe`] once nothing reads any more, or it was ended. Shutting it down, or dropping
/// it, ends the stdin; that of a command which was attached to or is detached stays open when it is dropped.
#[derive(Debug)]
pub struct Stdin {
    input: Arc<Input>,
    ends_when_dropped: bool,
    running: Arc<Running>,
}

impl Output {
    pub(crate) fn new(pieces: Take, grants: Arc<Grants>, running: Arc<Running>) -> Self {
        Self {
            pieces,
            piece: Vec::new(),
            read: 0,
            is_over: false,
            grants,
            running,
        }
    }

    fn unread(&self) -> &[u8] {
        self.piece.get(self.read..).unwrap_or_default()
    }

    /// Waits for the next piece; None at the end. Nothing is lost if the future is dropped.
    ///
    /// # Errors
    /// As reading.
    pub async fn next(&mut self) -> Option<io::Result<Vec<u8>>> {
        poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }

    /// Waits until the piece that is being read has bytes; false at the end.
    fn poll_unread(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        while self.unread().is_empty() {
            if self.is_over {
                return Poll::Ready(Ok(false));
            }
            match ready!(self.pieces.poll(context)) {
                Next::Piece(piece) => {
                    self.piece = piece;
                    self.read = 0;
                }
                Next::End => self.is_over = true,
                Next::Broken => {
                    let message = "the command's output ended before the command";
                    let error = io::Error::new(io::ErrorKind::UnexpectedEof, message);
                    return Poll::Ready(Err(error));
                }
            }
        }
        Poll::Ready(Ok(true))
    }

    /// Lets the owner send more, as `count` bytes are not held any more.
    fn handed_on(&self, count: usize) {
        if let Some(credit) = self.grants.handed_on(count) {
            self.running.send_request(&credit);
        }
    }
}

impl AsyncRead for Output {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if ready!(self.poll_unread(context))? {
            let unread = self.unread();
            let count = unread.len().min(buffer.remaining());
            buffer.put_slice(unread.get(..count).unwrap_or_default());
            self.read += count;
            self.handed_on(count);
        }
        Poll::Ready(Ok(()))
    }
}

impl Stream for Output {
    type Item = io::Result<Vec<u8>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(match ready!(self.poll_unread(context)) {
            Ok(true) => {
                let read = std::mem::take(&mut self.read);
                let mut piece = std::mem::take(&mut self.piece);
                piece.drain(..read);
                self.handed_on(piece.len());
                Some(Ok(piece))
            }
            Ok(false) => None,
            Err(error) => {
                // Nothing comes after it.
                self.is_over = true;
                Some(Err(error))
            }
        })
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // What comes from now on is granted where it is received.
        let count = self.unread().len() + self.pieces.close();
        self.handed_on(count);
    }
}

impl Stdin {
    pub(crate) fn new(input: Arc<Input>, ends_when_dropped: bool, running: Arc<Running>) -> Self {
        Self {
            input,
            ends_when_dropped,
            running,
        }
    }

    /// Ends it.
    pub(crate) fn end(&mut self) {
        self.running.end_stdin();
    }
}

impl AsyncWrite for Stdin {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        if data.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let Some(count) = ready!(self.input.poll_take(context, data.len())) else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        let mut bytes = Vec::new();
        let data = data.get(..count).unwrap_or_default();
        frame::encode_data(self.running.number(), Pipe::Stdin, data, &mut bytes);
        self.running.send(bytes);
        Poll::Ready(Ok(count))
    }

    /// Returns at once: what was written is under way.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end();
        Poll::Ready(Ok(()))
    }
}

impl Drop for Stdin {
    fn drop(&mut self) {
        if self.ends_when_dropped {
            self.end();
        }
    }
}
