//! Gives a mount to each client, in the namespaces of the tree.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use micabox_jail::container::tree::another_root;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{In, greet};

/// How long a client may take to receive its mount: it waits for nothing else.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long to wait for room for one more client.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// Serves clients until there is none. The process that started this one may ask on `starter` whether it ends at
/// once: a byte means that it does not.
pub(super) fn serve(
    listener: &UnixListener,
    place: In,
    users: Option<&File>,
    starter: UnixStream,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let mut clients: Vec<UnixStream> = Vec::new();
    let mut starter = Some(starter);
    let mut is_asked = false;
    loop {
        let has_room = loop {
            match listener.accept() {
                Ok((client, _)) => {
                    if give(&client, place, users).is_ok() {
                        clients.push(client);
                    }
                }
                Err(error) => break error.kind() == io::ErrorKind::WouldBlock,
            }
        };
        if clients.is_empty() {
            return Ok(());
        }
        if is_asked && let Some(mut starter) = starter.take() {
            // It may have gone.
            let _ = starter.write(&[1]);
        }
        // The starter comes first: when it asks, the ends of its own clients are there to be seen.
        let polled = starter.iter().chain(&clients).map(AsFd::as_fd);
        let polled = polled.chain(has_room.then(|| listener.as_fd()));
        let mut polled: Vec<PollFd<'_>> = polled
            .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN))
            .collect();
        rustix::io::retry_on_intr(|| poll(&mut polled, (!has_room).then_some(&PAUSE)))?;
        // A client sends nothing: what can be read is its end.
        let ended: Vec<bool> = polled
            .iter()
            .map(|client| !client.revents().is_empty())
            .collect();
        let mut ended = ended.into_iter();
        is_asked = starter.is_some() && ended.next().unwrap_or_default();
        clients.retain(|_| !ended.next().unwrap_or_default());
    }
}

fn give(client: &UnixStream, place: In, users: Option<&File>) -> io::Result<()> {
    client.set_write_timeout(Some(PATIENCE))?;
    greet(client, place, another_root()?, users)
}
