//! Where clients connect, from when the sandbox is ready until its end is recorded.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::socket::Listener;

/// Time until clients are accepted again after a failure of accept(2).
const PAUSE: Duration = Duration::from_millis(100);

/// Where clients connect.
#[derive(Debug, Default)]
pub(super) struct Entrance {
    listener: Option<Listener>,
    /// When clients are accepted again, after a failure.
    pub(super) accept_at: Option<Instant>,
}

impl Entrance {
    /// Begins to accept clients.
    pub(super) fn open(&mut self, listener: Listener) {
        self.listener = Some(listener);
    }

    /// Removes the socket.
    pub(super) fn close(&mut self) {
        self.listener = None;
    }

    /// Returns the socket, unless no client is accepted now.
    pub(super) fn socket(&self) -> Option<BorrowedFd<'_>> {
        let listener = self.listener.as_ref();
        let listener = listener.filter(|_| self.accept_at.is_none());
        listener.map(|listener| listener.socket.as_fd())
    }

    /// Returns the next connection of this process's user.
    pub(super) fn accept(&mut self) -> Option<UnixStream> {
        let listener = self.listener.as_ref()?;
        loop {
            let socket = match listener.socket.accept() {
                Ok((socket, _)) => socket,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                // As a rule, no descriptors are left, and the connection waits.
                Err(_) => {
                    self.accept_at = Instant::now().checked_add(PAUSE);
                    return None;
                }
            };
            // The directory is its user's alone; a descriptor of it, or a mistake, is not enough.
            let peer = rustix::net::sockopt::socket_peercred(&socket);
            if peer.is_ok_and(|peer| peer.uid == rustix::process::geteuid()) {
                return Some(socket);
            }
        }
    }
}
