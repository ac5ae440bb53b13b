//! Whole pieces of a stream socket, with any number of descriptors.

use std::io::{self, Read};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::message::{MOST_DESCRIPTORS, receive, send};

/// How long a sender waits where the kernel has too many of the user's descriptors under way: until
/// their receivers, which may be starting, take them.
const CONGESTION: Duration = Duration::from_secs(10);

/// Sends all bytes, and descriptors with the first of them.
///
/// # Errors
/// Those of [`send`].
pub fn send_all(
    socket: &UnixStream,
    mut bytes: &[u8],
    mut descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    while !bytes.is_empty() {
        let count = send(socket, bytes, descriptors)?;
        bytes = bytes.get(count..).unwrap_or_default();
        descriptors = &[];
    }
    Ok(())
}

/// Fills `buffer`, and appends the descriptors that come with the bytes.
///
/// # Errors
/// Those of [`receive`]; [`io::ErrorKind::UnexpectedEof`] if the stream ends first.
pub fn receive_all(
    socket: &UnixStream,
    mut buffer: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<()> {
    while !buffer.is_empty() {
        let received = receive(socket, buffer, MOST_DESCRIPTORS)?;
        if received.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        descriptors.extend(received.descriptors);
        buffer = buffer.get_mut(received.bytes..).unwrap_or_default();
    }
    Ok(())
}

/// Sends any number of descriptors, for [`receive_descriptors`]: their number, and a byte for each
/// batch after the first.
///
/// # Errors
/// Those of [`send`].
pub fn send_descriptors(socket: &UnixStream, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let count = u32::try_from(descriptors.len()).map_err(io::Error::other)?;
    let (first, rest) = descriptors.split_at(descriptors.len().min(MOST_DESCRIPTORS));
    let mut bytes = &count.to_le_bytes()[..];
    let deadline = Instant::now() + CONGESTION;
    for batch in std::iter::once(first).chain(rest.chunks(MOST_DESCRIPTORS)) {
        let sent = loop {
            match send(socket, bytes, batch) {
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
/// Those of [`receive`]; EMFILE if there are fewer than were announced;
/// [`io::ErrorKind::UnexpectedEof`] if the stream ends first.
pub fn receive_descriptors(socket: &UnixStream) -> io::Result<Vec<OwnedFd>> {
    let mut descriptors = Vec::new();
    let mut count = [0; 4];
    receive_all(socket, &mut count, &mut descriptors)?;
    let count = u32::from_le_bytes(count) as usize;
    let mut expected = count.min(MOST_DESCRIPTORS);
    loop {
        if descriptors.len() != expected {
            return Err(Errno::MFILE.into());
        }
        if expected == count {
            return Ok(descriptors);
        }
        expected = expected.saturating_add(MOST_DESCRIPTORS).min(count);
        receive_all(socket, &mut [0], &mut descriptors)?;
    }
}

/// Fills `buffer` before `deadline`, however slowly the other side sends. Changes the stream's timeout.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`]; [`io::ErrorKind::UnexpectedEof`] if the stream ends first; those of read(2).
pub fn read_before(
    mut stream: &UnixStream,
    mut buffer: &mut [u8],
    deadline: Instant,
) -> io::Result<()> {
    while !buffer.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "it does not answer",
            ));
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => buffer = buffer.get_mut(count..).unwrap_or_default(),
            // The deadline, or a signal.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn any_number_of_descriptors_arrives_in_order() {
        const BATCH: usize = MOST_DESCRIPTORS;
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
    fn a_stream_that_ends_early_is_an_error() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        send_all(&ours, &1_u32.to_le_bytes(), &[]).unwrap();
        receive_descriptors(&theirs).unwrap_err();
        drop(ours);
        let error = receive_descriptors(&theirs).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_read_ends_with_its_deadline_although_bytes_arrive() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let sender = std::thread::spawn(move || {
            while (&theirs).write_all(b"x").is_ok() {
                // Sleep: the sender is slow.
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let deadline = Instant::now() + Duration::from_millis(100);
        let error = read_before(&ours, &mut vec![0; 1 << 20], deadline).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(ours);
        sender.join().unwrap();
    }
}
