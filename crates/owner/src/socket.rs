//! The owner's socket in a sandbox's directory, and transfers of bytes with descriptors.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// The socket's name. The directory belongs to one user and is closed to all others, so any process
/// that can connect may send requests.
const SOCKET: &str = "control";

/// Most descriptors with one piece of the stream: those of one request.
const DESCRIPTORS: usize = 4;

/// The listening socket. Dropping it removes the socket's file.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) socket: UnixListener,
    path: PathBuf,
}

impl Listener {
    /// Listens in `directory`. Replaces the socket of an owner that was killed: the caller holds
    /// the sandbox's lock.
    pub(crate) fn bind(directory: &Path) -> io::Result<Self> {
        let path = directory.join(SOCKET);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let socket = with_short_path(directory, UnixListener::bind)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, path })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Connects to the owner of the sandbox in `directory`.
pub(crate) fn connect(directory: &Path) -> io::Result<UnixStream> {
    with_short_path(directory, UnixStream::connect)
}

/// Calls `use_path` with a short path of the socket: a socket's address has 108 bytes, and a store
/// may lie deeper than that.
fn with_short_path<T>(
    directory: &Path,
    use_path: impl FnOnce(PathBuf) -> io::Result<T>,
) -> io::Result<T> {
    let directory = fs::File::open(directory)?;
    use_path(PathBuf::from(format!(
        "/proc/self/fd/{}/{SOCKET}",
        directory.as_raw_fd()
    )))
}

/// Sends bytes, and descriptors with the first of them. Returns the number of bytes sent.
pub(crate) fn send(
    socket: &UnixStream,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = flags | SendFlags::NOSIGNAL;
    Ok(rustix::io::retry_on_intr(|| {
        sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags)
    })?)
}

/// Receives bytes into `buffer`, and the descriptors that came with them. Returns the number of
/// bytes, 0 at the end.
pub(crate) fn receive(
    socket: &UnixStream,
    buffer: &mut [u8],
    descriptors: &mut impl Extend<OwnedFd>,
    flags: RecvFlags,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let received = rustix::io::retry_on_intr(|| {
        recvmsg(
            socket,
            &mut [IoSliceMut::new(buffer)],
            &mut ancillary,
            flags,
        )
    })?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    Ok(received.bytes)
}

/// Sends all bytes, and descriptors with the first of them.
///
/// # Errors
/// Those of sendmsg(2).
pub fn send_all(
    socket: &UnixStream,
    mut bytes: &[u8],
    mut descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    while !bytes.is_empty() {
        let count = send(socket, bytes, descriptors, SendFlags::empty())?;
        bytes = bytes.get(count..).unwrap_or_default();
        descriptors = &[];
    }
    Ok(())
}

/// Fills `buffer`, and appends the descriptors that come with the bytes.
///
/// # Errors
/// Those of recvmsg(2); [`io::ErrorKind::UnexpectedEof`] if the stream ends first.
pub fn receive_all(
    socket: &UnixStream,
    mut buffer: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<()> {
    while !buffer.is_empty() {
        let count = receive(socket, buffer, descriptors, RecvFlags::empty())?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        buffer = buffer.get_mut(count..).unwrap_or_default();
    }
    Ok(())
}
