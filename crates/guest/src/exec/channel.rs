//! The byte stream to the host: framed, buffered and non-blocking.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use micabox_wire::{Decoder, Error, OutputStream, ToGuest, ToHost, encode, encode_output};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::kernel_log;

/// Number of unsent bytes from which on no more output is read from commands. It allows several
/// messages, so that the stream never runs dry while there is data to send.
const FULL: usize = 256 * 1024;

/// Bytes read at a time: as many as a virtio-serial port returns in one read.
const READ: usize = 32 * 1024;

/// Bytes from which on what was received is handled before more is read.
const ENOUGH: usize = 128 * 1024;

/// Bytes of the buffers that Linux gives a virtio-serial port (a page each), of which one read
/// returns one. A shorter read was the last buffer.
const PORT_BUFFER: usize = 4096;

/// The agent's end of the stream.
#[derive(Debug)]
pub struct Channel {
    stream: OwnedFd,
    decoder: Decoder<ToGuest>,
    outgoing: Vec<u8>,
    /// Number of bytes at the front of `outgoing` that have been sent.
    sent: usize,
}

impl Channel {
    /// Uses `stream`, a socket or a character device.
    ///
    /// # Errors
    /// The stream can't be made non-blocking.
    pub fn new(stream: OwnedFd) -> rustix::io::Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&stream)?;
        rustix::fs::fcntl_setfl(&stream, flags | OFlags::NONBLOCK)?;
        Ok(Self {
            stream,
            decoder: Decoder::new(),
            outgoing: Vec::new(),
            sent: 0,
        })
    }

    /// Uses the port `stream`, after sending the host the preamble and `hello`. Blocks until the
    /// host's side of the port is connected: until then, the port reads as if the host had closed
    /// it.
    ///
    /// # Errors
    /// Those of write(2) and fcntl(2).
    pub fn greeting(stream: OwnedFd, preamble: &[u8], hello: &ToHost) -> rustix::io::Result<Self> {
        let mut greeting = preamble.to_vec();
        // Can't fail: Hello is a few dozen bytes.
        let _ = encode(hello, &mut greeting);
        let mut rest = greeting.as_slice();
        while !rest.is_empty() {
            let count = rustix::io::retry_on_intr(|| rustix::io::write(&stream, rest))?;
            rest = rest.get(count..).unwrap_or_default();
        }
        Self::new(stream)
    }

    /// Queues a message.
    pub fn send(&mut self, message: &ToHost) {
        note(encode(message, &mut self.outgoing));
    }

    /// Queues output of a command.
    pub fn send_output(&mut self, id: u32, stream: OutputStream, data: &[u8]) {
        note(encode_output(id, stream, data, &mut self.outgoing));
    }

    /// Whether queued data is unsent.
    pub fn has_unsent(&self) -> bool {
        self.sent < self.outgoing.len()
    }

    /// Whether the host is so far behind that output should wait.
    pub fn is_full(&self) -> bool {
        self.outgoing.len() - self.sent >= FULL
    }

    /// Sends as much of the queue as the stream accepts now.
    ///
    /// # Errors
    /// Those of write(2); the host is gone.
    pub fn flush(&mut self) -> rustix::io::Result<()> {
        while let Some(bytes) = self.outgoing.get(self.sent..).filter(|b| !b.is_empty()) {
            match rustix::io::write(&self.stream, bytes) {
                Ok(0) => return Err(Errno::PIPE),
                Ok(count) => self.sent += count,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        // The queue moves when most of it has been sent: each byte is copied at most once.
        if self.sent * 2 >= self.outgoing.len() {
            self.outgoing.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }

    /// Sends the whole queue, and blocks until that is done.
    ///
    /// # Errors
    /// Those of write(2); the host is gone.
    pub fn flush_all(&mut self) -> rustix::io::Result<()> {
        loop {
            self.flush()?;
            if !self.has_unsent() {
                return Ok(());
            }
            wait_for(self.stream.as_fd(), PollFlags::OUT)?;
        }
    }

    /// Reads what has been received, a bounded number of bytes. Returns false if the host has closed
    /// the stream.
    ///
    /// # Errors
    /// Those of read(2); the host is gone.
    pub fn receive(&mut self) -> rustix::io::Result<bool> {
        let mut buffer = [0; READ];
        let mut received = 0;
        while received < ENOUGH {
            match rustix::io::read(&self.stream, &mut buffer) {
                Ok(0) => return Ok(false),
                Ok(count) => {
                    self.decoder.push(buffer.get(..count).unwrap_or_default());
                    received += count;
                    if count < PORT_BUFFER {
                        break;
                    }
                }
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(true)
    }

    /// Returns the next message that has been received completely.
    ///
    /// # Errors
    /// The host's data is malformed.
    pub fn next_message(&mut self) -> Result<Option<ToGuest>, Error> {
        self.decoder.next_message()
    }

    /// Blocks until the next message is received. None if the host has closed the stream.
    ///
    /// # Errors
    /// The host's data is malformed, or the stream failed.
    pub fn wait_for_message(&mut self) -> Result<Option<ToGuest>, Error> {
        loop {
            if let Some(message) = self.next_message()? {
                return Ok(Some(message));
            }
            wait_for(self.stream.as_fd(), PollFlags::IN).map_err(std::io::Error::from)?;
            if !self.receive().map_err(std::io::Error::from)? {
                return Ok(None);
            }
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Notes that a message was dropped: it exceeds the frame's limit, and the agent bounds all parts of messages.
fn note(encoded: Result<(), Error>) {
    if let Err(error) = encoded {
        kernel_log::write(format_args!("a message was dropped: {error}"));
    }
}

fn wait_for(stream: BorrowedFd<'_>, events: PollFlags) -> rustix::io::Result<()> {
    let mut poll_fds = [PollFd::from_borrowed_fd(stream, events)];
    match poll(&mut poll_fds, None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}
