//! Messages of JSON between processes of this program, each a frame behind its descriptors.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use micabox_socket::{read_frame, receive_descriptors, send_all, send_descriptors, write_frame};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Most bytes of a message: paths of a few hundred layers, and a command line.
const MAX: usize = 64 << 20;

/// Sends a message with its descriptors, for [`receive`].
pub fn send<'a>(
    connection: &UnixStream,
    message: &impl Serialize,
    descriptors: impl IntoIterator<Item = &'a File>,
) -> io::Result<()> {
    let message = serde_json::to_vec(message)?;
    if message.len() > MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut frame = Vec::new();
    write_frame(&mut frame, &message)?;
    let descriptors = descriptors.into_iter().map(AsFd::as_fd);
    let descriptors: Vec<BorrowedFd<'_>> = descriptors.collect();
    send_descriptors(connection, &descriptors)?;
    // A receiver that is gone is no signal.
    send_all(connection, &frame, &[])
}

/// Receives a message and the descriptors that come with it.
pub fn receive<T: DeserializeOwned>(connection: &UnixStream) -> io::Result<(T, Vec<OwnedFd>)> {
    let descriptors = receive_descriptors(connection)?;
    let message = read_frame(&mut &*connection, MAX)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok((serde_json::from_slice(&message)?, descriptors))
}
