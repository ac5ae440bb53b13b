//! The byte stream to the agent: framed, and never blocking.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use micabox_wire::{Decoder, ToGuest, ToHost, encode, preamble};

use super::outbox::Outbox;

/// Unsent bytes from which on messages stay in the outbox, where credit overtakes stdin.
const FULL: usize = 64 << 10;

/// The owner's end of the stream.
#[derive(Debug)]
pub(crate) struct Link {
    stream: UnixStream,
    decoder: Decoder<ToHost>,
    /// The bytes received of the agent's preamble, until it is complete.
    preamble: Option<Vec<u8>>,
    pub(crate) outbox: Outbox,
    outgoing: Vec<u8>,
    /// Bytes at the front of `outgoing` that have been sent.
    sent: usize,
}

/// How a link ended.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The stream ended or failed: the machine's end is the better reason.
    Ended,
    /// The guest broke the protocol.
    Violation(String),
}

impl Link {
    /// Makes a link. `greets`: the agent of a new machine sends a preamble; that of a restored one
    /// has done so already.
    pub(crate) fn new(stream: UnixStream, greets: bool) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            decoder: Decoder::new(),
            preamble: greets.then(Vec::new),
            outbox: Outbox::default(),
            outgoing: Vec::new(),
            sent: 0,
        })
    }

    /// Returns whether there is something to send.
    pub(crate) fn has_unsent(&self) -> bool {
        self.sent < self.outgoing.len() || self.outbox.is_ready()
    }

    /// Sends as much as the stream accepts now. Errors are left to the next read.
    pub(crate) fn flush(&mut self) {
        loop {
            while self.outgoing.len() - self.sent < FULL
                && let Some(message) = self.outbox.pop()
            {
                // Encoding fails only beyond a frame's bound, which was checked before.
                let _ = encode::<ToGuest>(&message, &mut self.outgoing);
            }
            let unsent = self.outgoing.get(self.sent..).unwrap_or_default();
            if unsent.is_empty() {
                self.outgoing.clear();
                self.sent = 0;
                return;
            }
            match (&self.stream).write(unsent) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
            if self.sent >= FULL {
                self.outgoing.drain(..self.sent);
                self.sent = 0;
            }
        }
    }

    /// Reads and decodes what has arrived.
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> Result<(), Broken> {
        let count = match (&self.stream).read(buffer) {
            Ok(0) => return Err(Broken::Ended),
            Ok(count) => count,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                return Ok(());
            }
            Err(_) => return Err(Broken::Ended),
        };
        let mut bytes = buffer.get(..count).unwrap_or_default();
        if let Some(greeting) = &mut self.preamble {
            let (head, rest) = bytes.split_at((preamble::LENGTH - greeting.len()).min(count));
            greeting.extend_from_slice(head);
            let Some(greeting) = greeting.first_chunk() else {
                return Ok(());
            };
            preamble::check(greeting).map_err(violation)?;
            self.preamble = None;
            bytes = rest;
        }
        self.decoder.push(bytes);
        Ok(())
    }

    /// Returns the next complete message.
    pub(crate) fn next_message(&mut self) -> Result<Option<ToHost>, Broken> {
        self.decoder.next_message().map_err(violation)
    }
}

fn violation(error: micabox_wire::Error) -> Broken {
    Broken::Violation(error.to_string())
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
