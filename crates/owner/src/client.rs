//! A client's end of a connection to an owner.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use micabox_socket::Received;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::protocol::frame::{self, Pipe};
use crate::protocol::{Decoder, Frame, Reply, Request, preamble};
use crate::socket;

/// Bytes received at a time.
const RECEIVE: usize = 64 << 10;

/// Most descriptors with one piece of the stream.
const DESCRIPTORS: usize = 4;

/// What sends on a [`Client`]'s connection while another thread receives. Frames are whole only if one thread sends
/// at a time.
#[derive(Debug)]
pub struct Sender(Arc<UnixStream>);

/// A connection to the owner of a sandbox. Several threads may take turns with it: it has no thread
/// and no lock of its own.
#[derive(Debug)]
pub struct Client {
    socket: Arc<UnixStream>,
    decoder: Decoder<Reply>,
    /// Received descriptors, in order: those of [`Reply::Frozen`].
    descriptors: VecDeque<OwnedFd>,
    /// Where bytes are received; empty until some are.
    buffer: Vec<u8>,
}

impl Client {
    /// Connects to the owner of the sandbox whose state is in `directory`.
    ///
    /// # Errors
    /// Those of connect(2): [`io::ErrorKind::NotFound`] and
    /// [`io::ErrorKind::ConnectionRefused`] where there is no owner.
    pub fn connect(directory: &Path) -> io::Result<Self> {
        Self::over(socket::connect_to_owner(directory)?)
    }

    /// Uses an existing connection, and sends the preamble. That the owner has ended is not an error
    /// yet: it may have replied before.
    ///
    /// # Errors
    /// Those of send(2), except `EPIPE`.
    pub fn over(socket: UnixStream) -> io::Result<Self> {
        let client = Self {
            socket: Arc::new(socket),
            decoder: Decoder::default(),
            descriptors: VecDeque::new(),
            buffer: Vec::new(),
        };
        match client.send(&preamble(), &[]) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            sent => sent?,
        }
        Ok(client)
    }

    /// Sends a request, with the descriptors that belong to it.
    ///
    /// # Errors
    /// Those of send(2); [`io::ErrorKind::InvalidInput`] if the request is longer than any that an
    /// owner accepts.
    pub fn request(
        &self,
        number: u32,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        send_request(&self.socket, number, request, descriptors)
    }

    /// Returns what sends on this connection.
    pub fn sender(&self) -> Sender {
        Sender(Arc::clone(&self.socket))
    }

    /// Sends bytes of a command's stdin. The caller must not send more than was granted.
    ///
    /// # Errors
    /// Those of send(2).
    pub fn stdin(&self, number: u32, data: &[u8]) -> io::Result<()> {
        let mut bytes = Vec::new();
        frame::encode_data(number, Pipe::Stdin, data, &mut bytes);
        self.send(&bytes, &[])
    }

    /// Ends a command's stdin.
    ///
    /// # Errors
    /// Those of send(2).
    pub fn end_stdin(&self, number: u32) -> io::Result<()> {
        let mut bytes = Vec::new();
        frame::encode_end(number, Pipe::Stdin, &mut bytes);
        self.send(&bytes, &[])
    }

    /// Receives the next frame. None when `deadline` passes first.
    ///
    /// # Errors
    /// Those of recv(2); [`io::ErrorKind::UnexpectedEof`] when the owner has hung up;
    /// [`io::ErrorKind::InvalidData`] if it breaks the protocol.
    pub fn receive(&mut self, deadline: Option<Instant>) -> io::Result<Option<Frame<Reply>>> {
        loop {
            if let Some(frame) = self.try_receive()? {
                return Ok(Some(frame));
            }
            if !wait(self.socket.as_fd(), deadline)? {
                return Ok(None);
            }
        }
    }

    /// Returns the next frame, if one has arrived.
    ///
    /// # Errors
    /// As [`Client::receive`].
    pub fn try_receive(&mut self) -> io::Result<Option<Frame<Reply>>> {
        self.buffer.resize(RECEIVE, 0);
        loop {
            let frame = self.decoder.next_frame();
            let frame = frame.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            if frame.is_some() {
                return Ok(frame);
            }
            match micabox_socket::receive_what_fits(&*self.socket, &mut self.buffer, DESCRIPTORS) {
                Ok(Received { bytes: 0, .. }) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(Received { bytes, descriptors }) => {
                    let bytes = self.buffer.get(..bytes).unwrap_or_default();
                    self.decoder.push(bytes);
                    self.descriptors.extend(descriptors);
                }
                Err(Errno::AGAIN) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Receives the next message about the request `number`, and drops all other frames. None when
    /// `deadline` passes first.
    ///
    /// # Errors
    /// As [`Client::receive`].
    pub fn reply(&mut self, number: u32, deadline: Option<Instant>) -> io::Result<Option<Reply>> {
        loop {
            match self.receive(deadline)? {
                None => return Ok(None),
                Some(Frame::Message(of, reply)) if of == number => return Ok(Some(reply)),
                Some(_) => {}
            }
        }
    }

    /// Takes the next descriptor that came with a message.
    pub fn descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptors.pop_front()
    }

    /// Shuts down the sending half of the creator's connection, which still receives. Any other client is disconnected.
    pub fn end(&self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
    }

    /// Shuts down the connection, which wakes all threads that wait on it.
    pub fn hang_up(&self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }

    fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        micabox_socket::send_all(&self.socket, bytes, descriptors)
    }
}

impl Sender {
    /// Sends a request, as [`Client::request`].
    ///
    /// # Errors
    /// As [`Client::request`].
    pub fn request(&self, number: u32, request: &Request) -> io::Result<()> {
        send_request(&self.0, number, request, &[])
    }
}

fn send_request(
    socket: &UnixStream,
    number: u32,
    request: &Request,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut bytes = Vec::new();
    frame::encode(number, request, &mut bytes);
    if bytes.len() > frame::MAX_MESSAGE {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    micabox_socket::send_all(socket, &bytes, descriptors)
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Waits until `fd` is readable; false when `deadline` passes first.
pub fn wait(fd: BorrowedFd<'_>, deadline: Option<Instant>) -> io::Result<bool> {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        let mut ready = [PollFd::new(&fd, PollFlags::IN)];
        match poll(&mut ready, timeout.as_ref()) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(0) if left == Some(Duration::ZERO) => return Ok(false),
            Ok(0) => {}
            Ok(_) => return Ok(true),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::protocol::{Failure, Kind};

    #[test]
    fn the_reply_of_an_owner_that_has_ended_is_received() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let reply = Reply::Failed(Failure::new(Kind::InUse, "a port"));
        let mut bytes = preamble().to_vec();
        frame::encode(0, &reply, &mut bytes);
        theirs.write_all(&bytes).unwrap();
        drop(theirs);
        let mut client = Client::over(ours).unwrap();
        assert_eq!(client.reply(0, None).unwrap(), Some(reply));
        client.reply(0, None).unwrap_err();
    }
}
