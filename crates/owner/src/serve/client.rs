//! The owner's end of a connection to a client.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use micabox_socket::Received;
use rustix::io::Errno;

use crate::protocol::frame::{self, Pipe};
use crate::protocol::{Decoder, Frame, FrameError, Reply, Request, preamble};

/// Unsent bytes from which on no more requests are read from a client.
const FULL: usize = 1 << 20;

/// Unsent bytes at which a client is disconnected. Streams keep to the windows that clients grant,
/// so only a client that sends requests and never reads gets there.
const MOST: usize = 256 << 20;

/// Most descriptors that wait for their request.
const MOST_DESCRIPTORS: usize = 16;

/// A connection's number, never used twice.
pub(super) type ClientId = u64;

/// A client's connection.
#[derive(Debug)]
pub(super) struct Client {
    socket: UnixStream,
    decoder: Decoder<Request>,
    /// Received descriptors, in order.
    pub(super) descriptors: VecDeque<OwnedFd>,
    outgoing: Vec<u8>,
    /// Descriptors that go with the next bytes: before the message that they belong to, or with it.
    outgoing_descriptors: Vec<Arc<File>>,
    /// Bytes at the front of `outgoing` that have been sent.
    sent: usize,
    /// The client's numbers for its commands, mapped to the agent's.
    pub(super) commands: BTreeMap<u32, u32>,
    /// The same for commands of others that it is attached to.
    pub(super) attached: BTreeMap<u32, u32>,
    /// The client sends no more requests, and still receives messages.
    pub(super) has_ended: bool,
    /// It is no use of the sandbox but for its commands.
    pub(super) is_uncounted: bool,
}

impl Client {
    pub(super) fn new(socket: UnixStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            decoder: Decoder::default(),
            descriptors: VecDeque::new(),
            outgoing: preamble().to_vec(),
            outgoing_descriptors: Vec::new(),
            sent: 0,
            commands: BTreeMap::new(),
            attached: BTreeMap::new(),
            has_ended: false,
            is_uncounted: false,
        })
    }

    pub(super) fn reply(&mut self, number: u32, reply: &Reply) {
        frame::encode(number, reply, &mut self.outgoing);
    }

    /// As [`Client::reply`], with a descriptor. At most as many replies of this kind may be unsent as
    /// a client takes descriptors with one piece of the stream.
    pub(super) fn reply_with(&mut self, number: u32, reply: &Reply, descriptor: Arc<File>) {
        self.outgoing_descriptors.push(descriptor);
        self.reply(number, reply);
    }

    pub(super) fn data(&mut self, number: u32, pipe: Pipe, bytes: &[u8]) {
        frame::encode_data(number, pipe, bytes, &mut self.outgoing);
    }

    fn unsent(&self) -> usize {
        self.outgoing.len() - self.sent
    }

    pub(super) fn has_unsent(&self) -> bool {
        self.unsent() > 0
    }

    /// Returns whether so much is unsent that requests wait.
    pub(super) fn is_full(&self) -> bool {
        self.unsent() >= FULL
    }

    /// Sends what the socket accepts now. If the client has stopped receiving, unsent bytes are
    /// dropped, but its earlier requests are still read.
    ///
    /// # Errors
    /// The client must be disconnected.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while self.has_unsent() {
            let unsent = self.outgoing.get(self.sent..).unwrap_or_default();
            let descriptors: Vec<_> = self.outgoing_descriptors.iter().map(AsFd::as_fd).collect();
            match micabox_socket::send_now(&self.socket, unsent, &descriptors) {
                Ok(count) => {
                    self.sent += count;
                    self.outgoing_descriptors.clear();
                }
                Err(Errno::AGAIN) => break,
                Err(_) => self.sent = self.outgoing.len(),
            }
        }
        // The rest moves when at least half has been sent, so each byte is copied at most once.
        if self.sent * 2 >= self.outgoing.len() {
            self.outgoing.drain(..self.sent);
            self.sent = 0;
        }
        if self.unsent() > MOST {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        Ok(())
    }

    /// Reads and decodes what has arrived; false at the end of the connection.
    pub(super) fn receive(&mut self, buffer: &mut [u8]) -> bool {
        match micabox_socket::receive_what_fits(&self.socket, buffer, MOST_DESCRIPTORS) {
            Ok(Received { bytes: 0, .. }) => false,
            Ok(Received { bytes, descriptors }) => {
                self.decoder.push(buffer.get(..bytes).unwrap_or_default());
                self.descriptors.extend(descriptors);
                self.descriptors.len() <= MOST_DESCRIPTORS
            }
            Err(errno) => errno == Errno::AGAIN,
        }
    }

    pub(super) fn next_frame(&mut self) -> Result<Option<Frame<Request>>, FrameError> {
        self.decoder.next_frame()
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
