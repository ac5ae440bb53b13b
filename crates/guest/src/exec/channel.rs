//! The byte stream to the host, framed and never waited for.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use micabox_wire::{Decoder, Error, ToGuest, ToHost, encode};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::kernel_log;

/// Unsent bytes from which on no more output is taken from commands. Several
/// messages, so that the stream never runs dry while there is something to say.
const FULL: usize = 256 * 1024;

/// Bytes read at a time; as much as a virtio-serial port gives in one go.
const READ: usize = 32 * 1024;

/// The agent's end of the stream.
#[derive(Debug)]
pub struct Channel {
    stream: OwnedFd,
    decoder: Decoder<ToGuest>,
    outgoing: Vec<u8>,
    /// Bytes at the front of `outgoing` that are sent.
    sent: usize,
}

impl Channel {
    /// Speaks over `stream`, a socket or a character device.
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

    /// Speaks over the port `stream` after greeting the host with the preamble and
    /// `hello`. Waits until the host's side of the port is connected: until then,
    /// reading from it looks as if the host had closed it.
    ///
    /// # Errors
    /// As write(2) and fcntl(2) have them.
    pub fn greeting(stream: OwnedFd, preamble: &[u8], hello: &ToHost) -> rustix::io::Result<Self> {
        let mut greeting = preamble.to_vec();
        // Hello is a few dozen bytes.
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
        // Only a message beyond the frame's bound fails, and the agent bounds all
        // that goes into one.
        if let Err(error) = encode(message, &mut self.outgoing) {
            kernel_log::say(format_args!("a message was dropped: {error}"));
        }
    }

    /// Whether something is queued.
    pub fn has_unsent(&self) -> bool {
        self.sent < self.outgoing.len()
    }

    /// Whether the host is so far behind that output should wait.
    pub fn is_full(&self) -> bool {
        self.outgoing.len() - self.sent >= FULL
    }

    /// Sends as much of the queue as the stream takes now.
    ///
    /// # Errors
    /// As write(2) has them; the host is gone.
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
        // The queue moves when most of it is gone: each byte is copied at most once.
        if self.sent * 2 >= self.outgoing.len() {
            self.outgoing.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }

    /// Sends the whole queue, however long that takes.
    ///
    /// # Errors
    /// As write(2) has them; the host is gone.
    pub fn flush_all(&mut self) -> rustix::io::Result<()> {
        loop {
            self.flush()?;
            if !self.has_unsent() {
                return Ok(());
            }
            wait_for(self.stream.as_fd(), PollFlags::OUT)?;
        }
    }

    /// Takes what has arrived. False: the host has closed the stream.
    ///
    /// # Errors
    /// As read(2) has them; the host is gone.
    pub fn receive(&mut self) -> rustix::io::Result<bool> {
        let mut buffer = [0; READ];
        match rustix::io::read(&self.stream, &mut buffer) {
            Ok(0) => Ok(false),
            Ok(count) => {
                self.decoder.push(buffer.get(..count).unwrap_or_default());
                Ok(true)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(true),
            Err(errno) => Err(errno),
        }
    }

    /// The next message that has arrived in whole.
    ///
    /// # Errors
    /// The host's bytes make no sense.
    pub fn next_message(&mut self) -> Result<Option<ToGuest>, Error> {
        self.decoder.next_message()
    }

    /// Waits for the next message. None: the host has closed the stream.
    ///
    /// # Errors
    /// The host's bytes make no sense, or the stream failed.
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

fn wait_for(stream: BorrowedFd<'_>, events: PollFlags) -> rustix::io::Result<()> {
    let mut poll_fds = [PollFd::from_borrowed_fd(stream, events)];
    match poll(&mut poll_fds, None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}
