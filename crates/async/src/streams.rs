//! A command's streams, as tokio's.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use micabox_owner::protocol::frame::{self, Pipe};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;

use crate::command::{Grants, Input, Piece};
use crate::process::Running;

/// A command's output. It ends when the command has ended, or has closed it. A command whose output is
/// not read waits, once 256 KiB of it are here; dropping this discards the rest.
///
/// If the sandbox ends first, reading fails with [`io::ErrorKind::UnexpectedEof`], and
/// [`Handle::wait`](crate::Handle::wait) has the reason.
#[derive(Debug)]
pub struct Output {
    pieces: mpsc::UnboundedReceiver<Piece>,
    /// The piece that is being read, and how much of it was.
    piece: Vec<u8>,
    read: usize,
    is_over: bool,
    grants: Arc<Grants>,
    running: Arc<Running>,
}

/// A command's stdin. A write waits while the command does not read: at most 256 KiB are under way. It
/// fails with [`io::ErrorKind::BrokenPipe`] once nothing reads any more. Shutting it down, or dropping it,
/// ends the stdin; that of a command which was attached to or is detached stays open when it is dropped.
#[derive(Debug)]
pub struct Stdin {
    input: Arc<Input>,
    has_ended: bool,
    ends_when_dropped: bool,
    running: Arc<Running>,
}

impl Output {
    pub(crate) fn new(
        pieces: mpsc::UnboundedReceiver<Piece>,
        grants: Arc<Grants>,
        running: Arc<Running>,
    ) -> Self {
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

    /// Lets the owner send more, as `count` bytes are not held any more.
    fn handed_on(&self, count: usize) {
        if let Some(credit) = self.grants.handed_on(count) {
            self.running.tell(&credit);
        }
    }
}

impl AsyncRead for Output {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let unread = self.unread();
            if !unread.is_empty() {
                let count = unread.len().min(buffer.remaining());
                buffer.put_slice(unread.get(..count).unwrap_or_default());
                self.read += count;
                self.handed_on(count);
                return Poll::Ready(Ok(()));
            }
            if self.is_over {
                return Poll::Ready(Ok(()));
            }
            match ready!(self.pieces.poll_recv(context)) {
                Some(Piece::Data(piece)) => {
                    self.piece = piece;
                    self.read = 0;
                }
                Some(Piece::End) => self.is_over = true,
                None => {
                    let message = "the command's output ended before the command";
                    let error = io::Error::new(io::ErrorKind::UnexpectedEof, message);
                    return Poll::Ready(Err(error));
                }
            }
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // What comes from now on is granted where it is received.
        self.pieces.close();
        let mut count = self.unread().len();
        while let Ok(piece) = self.pieces.try_recv() {
            if let Piece::Data(piece) = piece {
                count += piece.len();
            }
        }
        self.handed_on(count);
    }
}

impl Stdin {
    pub(crate) fn new(input: Arc<Input>, ends_when_dropped: bool, running: Arc<Running>) -> Self {
        Self {
            input,
            has_ended: false,
            ends_when_dropped,
            running,
        }
    }

    /// Ends it.
    pub(crate) fn end(&mut self) {
        if !std::mem::replace(&mut self.has_ended, true) {
            let mut bytes = Vec::new();
            frame::encode_end(self.running.number(), Pipe::Stdin, &mut bytes);
            self.running.send(bytes);
        }
    }
}

impl AsyncWrite for Stdin {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.has_ended {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
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
