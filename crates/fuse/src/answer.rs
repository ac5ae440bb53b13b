//! The answer of one request.

use std::io::IoSlice;
use std::os::fd::AsFd;

use rustix::io::{Errno, writev};

use crate::channel::Channel;
use crate::message::{REPLY_HEADER, Reply};

/// The place for the answer of one request. A request whose process has given up has none any more,
/// which is not an error.
#[derive(Debug)]
pub struct Answer<'a>(To<'a>);

/// Where an answer goes.
#[derive(Debug)]
enum To<'a> {
    Channel {
        channel: &'a Channel,
        /// The number of the request.
        unique: u64,
    },
    Memory {
        memory: &'a mut [u8],
        /// The number of bytes that were given, or the error.
        given: &'a mut Result<usize, Errno>,
    },
}

impl<'a> Answer<'a> {
    pub(crate) fn new(channel: &'a Channel, unique: u64) -> Self {
        Self(To::Channel { channel, unique })
    }

    pub(crate) fn in_memory(memory: &'a mut [u8], given: &'a mut Result<usize, Errno>) -> Self {
        Self(To::Memory { memory, given })
    }

    /// Answers with a reply, or with an error.
    pub fn reply(self, reply: Result<Reply, Errno>) {
        match self.0 {
            To::Channel { channel, unique } => {
                let (reply, error) = match reply {
                    Ok(reply) => (reply, None),
                    Err(error) => (Reply::new(), Some(error)),
                };
                let bytes = reply.finish(unique, error);
                send(channel, &[IoSlice::new(&bytes)]);
            }
            To::Memory { memory, given } => {
                *given = reply.and_then(|reply| fill(memory, &[reply.body()]));
            }
        }
    }

    /// Answers with bytes, which are copied only to memory that is shared with the kernel.
    pub fn pieces(self, pieces: &[&[u8]]) {
        match self.0 {
            To::Channel { channel, unique } => {
                let length: usize = pieces.iter().map(|piece| piece.len()).sum();
                let header = header(unique, length, None);
                let mut parts = Vec::with_capacity(pieces.len() + 1);
                parts.push(IoSlice::new(&header));
                parts.extend(pieces.iter().map(|piece| IoSlice::new(piece)));
                send(channel, &parts);
            }
            To::Memory { memory, given } => *given = fill(memory, pieces),
        }
    }
}

/// Copies pieces to the beginning of memory; returns their length.
fn fill(memory: &mut [u8], pieces: &[&[u8]]) -> Result<usize, Errno> {
    let mut filled = 0;
    for piece in pieces {
        let end = filled + piece.len();
        // `EIO`: more than was asked for.
        let place = memory.get_mut(filled..end).ok_or(Errno::IO)?;
        place.copy_from_slice(piece);
        filled = end;
    }
    Ok(filled)
}

fn send(channel: &Channel, parts: &[IoSlice<'_>]) {
    // Fails if the request was interrupted or the filesystem was unmounted: the next read detects the latter.
    let _ = writev(channel.as_fd(), parts);
}

/// Returns the header of a reply with `length` bytes after it (`fuse_out_header`).
pub(crate) fn header(unique: u64, length: usize, error: Option<Errno>) -> [u8; REPLY_HEADER] {
    let length = u32::try_from(length + REPLY_HEADER).unwrap_or(u32::MAX);
    let error = error.map_or(0, |error| -error.raw_os_error());
    let mut header = [0; REPLY_HEADER];
    let bytes = length.to_le_bytes().into_iter().chain(error.to_le_bytes());
    for (place, byte) in header.iter_mut().zip(bytes.chain(unique.to_le_bytes())) {
        *place = byte;
    }
    header
}
