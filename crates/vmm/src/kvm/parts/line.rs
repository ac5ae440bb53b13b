//! The worker's line to its owner, who connects it to servers.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use micabox_ground::lock;
use micabox_layerfs::ask::Asker;

/// Most bytes of a server's name.
pub(super) const LONGEST_NAME: usize = 256;

/// Most bytes of the reason why there is no connection.
pub(super) const LONGEST_REASON: usize = 2048;

/// The line. All threads have the same one.
#[derive(Clone, Debug)]
pub(crate) struct Line(Arc<Mutex<OwnedFd>>);

impl Line {
    /// Takes a line that [`open`](super::open) has returned.
    pub(crate) fn new(line: OwnedFd) -> Self {
        Self(Arc::new(Mutex::new(line)))
    }

    /// Connects to a server, which is started if there is none.
    ///
    /// # Errors
    /// The owner's reason; those of the line.
    pub(super) fn connect(&self, server: &str) -> io::Result<Asker> {
        // A name and its answer follow each other.
        let line = lock(&self.0);
        micabox_socket::send(&*line, server.as_bytes(), &[])?;
        let mut reason = [0; LONGEST_REASON + 1];
        let received = micabox_socket::receive(&*line, &mut reason, 1)?;
        let reason = reason.get(..received.bytes).unwrap_or_default();
        match received.descriptors.into_iter().next() {
            Some(connection) => Ok(Asker::new(UnixStream::from(connection))),
            None if reason.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
            None => Err(io::Error::other(
                String::from_utf8_lossy(reason).trim_end().to_owned(),
            )),
        }
    }
}
