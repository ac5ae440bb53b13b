//! The kernel's channel (`/dev/fuse`).

use std::io::IoSlice;
use std::os::fd::OwnedFd;

use rustix::io::{Errno, read, writev};

use crate::message::{REPLY_HEADER, Reply};

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

/// The place for the answer of one request. A request whose process has given up has none any more,
/// which is not an error.
#[derive(Debug)]
pub struct Answer<'a> {
    channel: &'a Channel,
    unique: u64,
}

impl<'a> Answer<'a> {
    pub(crate) fn new(channel: &'a Channel, unique: u64) -> Self {
        Self { channel, unique }
    }

    /// Answers with a reply, or with an error.
    pub fn reply(self, reply: Result<Reply, Errno>) {
        let (reply, error) = match reply {
            Ok(reply) => (reply, None),
            Err(error) => (Reply::new(), Some(error)),
        };
        let bytes = reply.finish(self.unique, error);
        self.send(&[IoSlice::new(&bytes)]);
    }

    /// Answers with bytes, without copying them.
    pub fn pieces(self, pieces: &[&[u8]]) {
        let length: usize = pieces.iter().map(|piece| piece.len()).sum();
        let header = header(self.unique, length);
        let mut parts = Vec::with_capacity(pieces.len() + 1);
        parts.push(IoSlice::new(&header));
        parts.extend(pieces.iter().map(|piece| IoSlice::new(piece)));
        self.send(&parts);
    }

    fn send(self, parts: &[IoSlice<'_>]) {
        // Fails if the request was given up or the filesystem is gone: the next read says which.
        let _ = writev(&self.channel.0, parts);
    }
}

/// Returns the header of a reply with `length` bytes after it (`fuse_out_header`).
fn header(unique: u64, length: usize) -> [u8; REPLY_HEADER] {
    let length = u32::try_from(length + REPLY_HEADER).unwrap_or(u32::MAX);
    let mut header = [0; REPLY_HEADER];
    let bytes = length.to_le_bytes().into_iter().chain([0; 4]);
    for (place, byte) in header.iter_mut().zip(bytes.chain(unique.to_le_bytes())) {
        *place = byte;
    }
    header
}
