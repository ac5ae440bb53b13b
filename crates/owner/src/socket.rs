//! Sockets in directories, and transfers of bytes with descriptors.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// The socket's name. The directory belongs to one user and is closed to all others; the owner
/// accepts no other user either.
const SOCKET: &str = "control";

/// Most descriptors with one piece of the stream: those of one request.
const DESCRIPTORS: usize = 4;

/// Most descriptors with one message (`SCM_MAX_FD` of Linux).
const BATCH: usize = 253;

/// How long a sender waits where the kernel has too many of the user's descriptors under way: until
/// their receivers, which may be starting, take them.
const CONGESTION: Duration = Duration::from_secs(10);

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
        let socket = listen(directory, SOCKET.as_ref())?;
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
///
/// # Errors
/// Those of open(2) and connect(2).
pub fn connect_to_owner(directory: &Path) -> io::Result<UnixStream> {
    connect(directory, SOCKET.as_ref())
}

/// Connects to the socket `name` in `directory`.
///
/// # Errors
/// Those of open(2) and connect(2).
pub fn connect(directory: &Path, name: &OsStr) -> io::Result<UnixStream> {
    with_short_path(directory, name, UnixStream::connect)
}

/// Makes the socket `name` in `directory`, and listens on it.
///
/// # Errors
/// Those of open(2) and bind(2).
pub fn listen(directory: &Path, name: &OsStr) -> io::Result<UnixListener> {
    with_short_path(directory, name, UnixListener::bind)
}

/// Returns whether a process has the socket `name` in `directory` open, unless that can't be found
/// out. A listener notices nothing: a connection of another type is refused before that.
pub fn is_open(directory: &Path, name: &OsStr) -> bool {
    let connect = |path: PathBuf| UnixDatagram::unbound()?.connect(path);
    match with_short_path(directory, name, connect) {
        Err(error) => error.kind() != io::ErrorKind::ConnectionRefused,
        Ok(()) => true,
    }
}

/// Calls `use_path` with a short path of the socket: a socket's address has 108 bytes, and a store
/// may lie deeper than that.
fn with_short_path<T>(
    directory: &Path,
    name: &OsStr,
    use_path: impl FnOnce(PathBuf) -> io::Result<T>,
) -> io::Result<T> {
    let directory = fs::File::open(directory)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
    use_path(path.join(name))
}

/// Sends what the socket takes now of `bytes`, and descriptors with the first of them: as many as a
/// request has. Returns the number of bytes sent.
///
/// # Errors
/// Those of sendmsg(2); [`io::ErrorKind::WouldBlock`] if it takes none.
pub fn send_now(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    send(socket, bytes, descriptors, SendFlags::DONTWAIT)
}

/// Sends bytes, and descriptors with the first of them. Returns the number of bytes sent.
pub(crate) fn send(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    Ok(send_in(socket, bytes, descriptors, flags, &mut space)?)
}

/// As [`send`], with `space` for the descriptors.
fn send_in(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
    space: &mut [MaybeUninit<u8>],
) -> Result<usize, Errno> {
    let mut ancillary = SendAncillaryBuffer::new(space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL);
    }
    let flags = flags | SendFlags::NOSIGNAL;
    rustix::io::retry_on_intr(|| sendmsg(&socket, &[IoSlice::new(bytes)], &mut ancillary, flags))
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
    receive_in(socket, buffer, descriptors, flags, &mut space)
}

/// As [`receive`], with `space` for the descriptors.
fn receive_in(
    socket: &UnixStream,
    buffer: &mut [u8],
    descriptors: &mut impl Extend<OwnedFd>,
    flags: RecvFlags,
    space: &mut [MaybeUninit<u8>],
) -> io::Result<usize> {
    let mut ancillary = RecvAncillaryBuffer::new(space);
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

/// Sends any number of descriptors, for [`receive_descriptors`]: their number, and a byte for each
/// batch after the first.
///
/// # Errors
/// Those of sendmsg(2).
pub fn send_descriptors(socket: &UnixStream, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
    let count = u32::try_from(descriptors.len()).map_err(io::Error::other)?;
    let (first, rest) = descriptors.split_at(descriptors.len().min(BATCH));
    let mut bytes = &count.to_le_bytes()[..];
    let deadline = Instant::now() + CONGESTION;
    for batch in std::iter::once(first).chain(rest.chunks(BATCH)) {
        let sent = loop {
            match send_in(socket, bytes, batch, SendFlags::empty(), &mut space) {
                Err(Errno::TOOMANYREFS) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                sent => break sent?,
            }
        };
        send_all(socket, bytes.get(sent..).unwrap_or_default(), &[])?;
        bytes = &[0];
    }
    Ok(())
}

/// Receives what [`send_descriptors`] sent.
///
/// # Errors
/// Those of recvmsg(2); EMFILE if this process can't have as many;
/// [`io::ErrorKind::UnexpectedEof`] if the stream ends first.
pub fn receive_descriptors(socket: &UnixStream) -> io::Result<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
    let mut descriptors = Vec::new();
    let mut receive_bytes = |mut buffer: &mut [u8]| -> io::Result<usize> {
        while !buffer.is_empty() {
            let flags = RecvFlags::empty();
            let count = receive_in(socket, buffer, &mut descriptors, flags, &mut space)?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            buffer = buffer.get_mut(count..).unwrap_or_default();
        }
        Ok(descriptors.len())
    };
    let mut count = [0; 4];
    let mut received = receive_bytes(&mut count)?;
    let count = u32::from_le_bytes(count) as usize;
    let mut expected = count.min(BATCH);
    loop {
        // The kernel leaves out those for which there is no room.
        if received != expected {
            return Err(Errno::MFILE.into());
        }
        if expected == count {
            return Ok(descriptors);
        }
        expected = expected.saturating_add(BATCH).min(count);
        received = receive_bytes(&mut [0])?;
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    #[test]
    fn any_number_of_descriptors_arrives_in_order() {
        for count in [0, 1, BATCH, BATCH + 1, 2 * BATCH + 7] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let files: Vec<File> = (0..8_u8)
                .map(|number| {
                    let file = tempfile::tempfile().unwrap();
                    file.write_all_at(&[number], 0).unwrap();
                    file
                })
                .collect();
            let sent: Vec<_> = (0..count)
                .filter_map(|index| files.get(index % 8).map(AsFd::as_fd))
                .collect();
            send_descriptors(&ours, &sent).unwrap();
            send_all(&ours, b"next", &[]).unwrap();
            let received = receive_descriptors(&theirs).unwrap();
            assert_eq!(received.len(), count);
            for (index, file) in received.into_iter().enumerate() {
                let mut number = [0];
                File::from(file).read_exact_at(&mut number, 0).unwrap();
                assert_eq!(usize::from(number[0]), index % 8);
            }
            // The stream continues behind them.
            let mut next = [0; 4];
            receive_all(&theirs, &mut next, &mut Vec::new()).unwrap();
            assert_eq!(&next, b"next");
        }
    }

    #[test]
    fn an_open_socket_is_known_from_one_that_was_left() {
        let directory = tempfile::tempdir().unwrap();
        let name = OsStr::new("socket");
        let listener = listen(directory.path(), name).unwrap();
        listener.set_nonblocking(true).unwrap();
        assert!(is_open(directory.path(), name));
        let error = listener.accept().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        drop(listener);
        assert!(!is_open(directory.path(), name));
    }

    #[test]
    fn a_stream_that_ends_early_is_an_error() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        send_all(&ours, &1_u32.to_le_bytes(), &[]).unwrap();
        receive_descriptors(&theirs).unwrap_err();
        drop(ours);
        let error = receive_descriptors(&theirs).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
