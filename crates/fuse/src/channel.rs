//! The kernel's channel (`/dev/fuse`).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, read};

/// A channel to the kernel, which is that of one mounted filesystem.
#[derive(Debug)]
pub struct Channel(OwnedFd);

impl Channel {
    /// Makes a channel of an open `/dev/fuse`.
    #[must_use]
    pub fn new(device: OwnedFd) -> Self {
        Self(device)
    }

    /// Waits for a request; returns its length. None if the filesystem is unmounted.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> Result<Option<usize>, Errno> {
        loop {
            match read(&self.0, &mut *buffer) {
                // Its process was interrupted before the request was read.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::NODEV) => return Ok(None),
                result => return result.map(Some),
            }
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
