//! The bytes of a connection whose client may not be silent for ever.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::Response;
use micabox_ground::lock;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use crate::Pace;

/// How long a client may take for its first byte.
const FIRST: Duration = Duration::from_secs(10);

/// How long a client may read nothing of what waits for it; also too little of a reply that is no stream of events.
const UNREAD: Duration = Duration::from_secs(120);

/// A reply that its client reads at some rate. Others, as those of commands, may wait for what it does with them.
#[derive(Clone, Copy, Debug)]
pub struct Paced;

/// How a connection's client has to read the reply that it gets.
#[derive(Clone, Debug)]
pub struct Reading(Arc<Mutex<Pace>>);

impl Reading {
    /// Begins a reply.
    pub fn begin<T>(&self, reply: &Response<T>) {
        *self.lock() = match reply.extensions().get() {
            Some(Paced) => Pace::new(UNREAD),
            None => Pace::steady(UNREAD),
        };
    }

    fn lock(&self) -> MutexGuard<'_, Pace> {
        lock(&self.0)
    }
}

/// A connection's bytes. Silence before the first one, and bytes that are not read, end it.
#[derive(Debug)]
pub struct Patient {
    stream: TcpStream,
    /// Until the first byte has come.
    first: Option<Pin<Box<Sleep>>>,
    /// While the client has to read before more can be written.
    reading: Reading,
}

impl Patient {
    /// Reads and writes `stream`, whose client has ten seconds for its first byte.
    pub fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            first: Some(Box::pin(sleep(FIRST))),
            reading: Reading(Arc::new(Mutex::new(Pace::steady(UNREAD)))),
        }
    }

    /// Returns what its replies are noted in.
    pub fn reading(&self) -> Reading {
        self.reading.clone()
    }

    /// Returns what became of a write, unless it waits for too long.
    fn written(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let mut pace = self.reading.lock();
        if let Poll::Ready(written) = written {
            pace.moved(*written.as_ref().unwrap_or(&0));
            return Poll::Ready(written);
        }
        ready!(pace.poll_late(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        match &mut self.first {
            Some(_) if read.is_ready() => self.first = None,
            Some(first) => {
                ready!(first.as_mut().poll(context));
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            None => {}
        }
        read
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, data);
        self.written(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, data);
        self.written(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
