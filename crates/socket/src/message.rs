//! Messages with descriptors (`SCM_RIGHTS`, unix(7)).

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Most descriptors with one message (`SCM_MAX_FD` of Linux).
pub const MOST_DESCRIPTORS: usize = 253;

/// Bytes for the control message with as many descriptors.
const SPACE: usize = rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS));

/// What has been received.
#[derive(Debug)]
pub struct Received {
    /// The number of bytes at the buffer's front; 0 at the stream's end.
    pub bytes: usize,
    /// The descriptors that came with them, which executed programs don't inherit.
    pub descriptors: Vec<OwnedFd>,
}

/// Sends what the socket takes of `bytes`, and descriptors with the first of them. Waits until it takes some, if the
/// socket blocks. Returns the number of bytes sent.
///
/// # Errors
/// Those of sendmsg(2); EINVAL for more than [`MOST_DESCRIPTORS`]. A peer that is gone is no signal.
pub fn send(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<usize, Errno> {
    send_with(socket.as_fd(), bytes, descriptors, SendFlags::empty())
}

/// As [`send`], without waiting.
///
/// # Errors
/// As [`send`]; EAGAIN if the socket takes nothing now.
pub fn send_now(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<usize, Errno> {
    send_with(socket.as_fd(), bytes, descriptors, SendFlags::DONTWAIT)
}

fn send_with(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL);
    }
    let flags = flags | SendFlags::NOSIGNAL;
    rustix::io::retry_on_intr(|| sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags))
}

/// Receives bytes into `buffer`, and at most `most` descriptors. Waits for them, if the socket blocks.
///
/// # Errors
/// Those of recvmsg(2). EMFILE if more descriptors came, or more than this process may open: the bytes are then
/// gone, and so are all of the descriptors, since nothing tells which ones are missing.
pub fn receive(socket: impl AsFd, buffer: &mut [u8], most: usize) -> Result<Received, Errno> {
    receive_with(socket.as_fd(), buffer, most, RecvFlags::empty())
}

/// As [`receive`], without waiting.
///
/// # Errors
/// As [`receive`]; EAGAIN if nothing has arrived.
pub fn receive_now(socket: impl AsFd, buffer: &mut [u8], most: usize) -> Result<Received, Errno> {
    receive_with(socket.as_fd(), buffer, most, RecvFlags::DONTWAIT)
}

/// As [`receive_now`], for a peer whose messages say how many descriptors they have: where some are missing there are
/// none, and the bytes are there all the same.
///
/// # Errors
/// As [`receive_now`], but for EMFILE.
pub fn receive_what_fits(
    socket: impl AsFd,
    buffer: &mut [u8],
    most: usize,
) -> Result<Received, Errno> {
    let (mut received, is_whole) = receive_any(socket.as_fd(), buffer, most, RecvFlags::DONTWAIT)?;
    if !is_whole {
        received.descriptors.clear();
    }
    Ok(received)
}

fn receive_with(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    most: usize,
    flags: RecvFlags,
) -> Result<Received, Errno> {
    match receive_any(socket, buffer, most, flags)? {
        (received, true) => Ok(received),
        (_, false) => Err(Errno::MFILE),
    }
}

/// Receives what there is, and whether all descriptors are there.
fn receive_any(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    most: usize,
    flags: RecvFlags,
) -> Result<(Received, bool), Errno> {
    let mut space = [MaybeUninit::uninit(); SPACE];
    let room = rustix::cmsg_space!(ScmRights(most.min(MOST_DESCRIPTORS)));
    let mut control = RecvAncillaryBuffer::new(space.get_mut(..room).unwrap_or_default());
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let received = rustix::io::retry_on_intr(|| {
        recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags)
    })?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            descriptors.extend(some);
        }
    }
    // Space is aligned, so there may be room for more than `most`.
    let is_whole = !received.flags.contains(ReturnFlags::CTRUNC) && descriptors.len() <= most;
    let bytes = received.bytes;
    Ok((Received { bytes, descriptors }, is_whole))
}

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, Read};
    use std::os::unix::net::UnixStream;

    use rustix::io::{FdFlags, fcntl_getfd};

    use super::*;

    /// Sends so many descriptors of a pipe's end, of which this process then has no other one.
    fn send_pipe(socket: &UnixStream, count: usize) -> PipeReader {
        let (reader, writer) = std::io::pipe().unwrap();
        let descriptors = vec![writer.as_fd(); count];
        assert_eq!(send(socket, b"x", &descriptors), Ok(1));
        reader
    }

    #[test]
    fn descriptors_arrive_with_their_bytes_and_are_not_inherited() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let reader = send_pipe(&ours, 2);
        let mut buffer = [0; 8];
        let received = receive(&theirs, &mut buffer, 2).unwrap();
        assert_eq!((received.bytes, received.descriptors.len()), (1, 2));
        for descriptor in &received.descriptors {
            assert_eq!(fcntl_getfd(descriptor), Ok(FdFlags::CLOEXEC));
        }
        drop((reader, received));
        assert_eq!(send(&ours, b"yz", &[]), Ok(2));
        let received = receive(&theirs, &mut buffer, 0).unwrap();
        assert_eq!((received.bytes, received.descriptors.len()), (2, 0));
        drop(ours);
        assert_eq!(receive(&theirs, &mut buffer, 1).unwrap().bytes, 0);
    }

    #[test]
    fn too_many_descriptors_are_an_error_and_closed() {
        for (count, most) in [(1, 0), (2, 1), (3, 2), (50, 1), (MOST_DESCRIPTORS, 252)] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let mut reader = send_pipe(&ours, count);
            let error = receive(&theirs, &mut [0; 8], most).unwrap_err();
            assert_eq!(error, Errno::MFILE, "{count} of {most}");
            assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        }
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let many = vec![ours.as_fd(); MOST_DESCRIPTORS + 20];
        assert_eq!(send(&ours, b"x", &many), Err(Errno::INVAL));
    }

    #[test]
    fn bytes_whose_descriptors_are_not_all_there_have_none() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut reader = send_pipe(&ours, 3);
        let received = receive_what_fits(&theirs, &mut [0; 8], 2).unwrap();
        assert_eq!((received.bytes, received.descriptors.len()), (1, 0));
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        let error = receive_what_fits(&theirs, &mut [0; 8], 2).unwrap_err();
        assert_eq!(error, Errno::AGAIN);
    }

    #[test]
    fn what_can_not_be_done_now_is_not_waited_for() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let error = receive_now(&theirs, &mut [0; 8], 1).unwrap_err();
        assert_eq!(error, Errno::AGAIN);
        while let Ok(sent) = send_now(&ours, &[0; 4096], &[]) {
            assert!(sent > 0);
        }
        assert_eq!(send_now(&ours, b"x", &[]), Err(Errno::AGAIN));
    }
}
