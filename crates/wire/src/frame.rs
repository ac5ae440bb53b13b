//! Messages on a byte stream: a `u32` length, little endian, then one message.

use std::io::{self, Read, Write};
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{MAX_DATA, ToGuest, ToHost};

/// Bytes of a frame's length field.
const HEADER: usize = 4;

/// A message of one direction.
pub trait Message: Serialize + DeserializeOwned {
    /// Most bytes that a frame of this direction may have, its length field apart.
    const MAX_FRAME: usize;
}

impl Message for ToGuest {
    /// Room for the largest argument list and environment that Linux takes with
    /// its default limits (2 MiB), counted twice for safety.
    const MAX_FRAME: usize = 4 * 1024 * 1024;
}

impl Message for ToHost {
    /// A piece of output, or a boot failure with the kernel's last words.
    const MAX_FRAME: usize = 2 * MAX_DATA;
}

/// What can go wrong on the stream.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The stream failed.
    #[error("reading from or writing to the agent's channel")]
    Io(#[from] io::Error),
    /// The stream ended within a frame or the preamble.
    #[error("the agent's channel closed in the middle of a message")]
    Truncated,
    /// A frame is longer than any message of its direction.
    #[error("a message of {length} bytes on the agent's channel; at most {limit} are allowed")]
    TooLong {
        /// The length it claims, or has.
        length: usize,
        /// [`Message::MAX_FRAME`].
        limit: usize,
    },
    /// A frame does not hold exactly one message.
    #[error("a malformed message on the agent's channel: {0}")]
    Malformed(&'static str),
    /// What speaks at the other end is no Micabox agent.
    #[error("the guest does not speak Micabox's protocol; is its initrd mica-guest?")]
    NotAnAgent,
    /// The other end speaks another version of the protocol.
    #[error(
        "the guest agent speaks version {theirs} of the protocol and this host {ours}; \
         use the guest files that were built with this program"
    )]
    Version {
        /// The version that the peer announced.
        theirs: u32,
        /// [`VERSION`](crate::VERSION).
        ours: u32,
    },
}

/// Appends `message` to `out` as one frame. A message that is too long leaves `out`
/// as it was.
///
/// # Errors
/// [`Error::TooLong`] if the message exceeds [`Message::MAX_FRAME`].
pub fn encode<M: Message>(message: &M, out: &mut Vec<u8>) -> Result<(), Error> {
    let start = out.len();
    let mut bytes = std::mem::take(out);
    bytes.extend_from_slice(&[0; HEADER]);
    // Serialising into memory fails only for sequences of unknown length, and no
    // message has one.
    *out = postcard::to_extend(message, bytes).map_err(|_| Error::Malformed("not encodable"))?;
    let length = out.len().saturating_sub(start + HEADER);
    let header = match u32::try_from(length) {
        Ok(header) if length <= M::MAX_FRAME => header,
        _ => {
            out.truncate(start);
            return Err(Error::TooLong {
                length,
                limit: M::MAX_FRAME,
            });
        }
    };
    if let Some(field) = out.get_mut(start..start + HEADER) {
        field.copy_from_slice(&header.to_le_bytes());
    }
    Ok(())
}

/// One message out of the bytes of one frame.
fn decode<M: Message>(frame: &[u8]) -> Result<M, Error> {
    match postcard::take_from_bytes(frame) {
        Ok((message, [])) => Ok(message),
        Ok(_) => Err(Error::Malformed("bytes after the message")),
        Err(postcard::Error::DeserializeUnexpectedEnd) => Err(Error::Malformed("it ends early")),
        Err(_) => Err(Error::Malformed("no such message")),
    }
}

/// The length in a frame's header, checked against the direction's bound.
fn frame_length<M: Message>(header: [u8; HEADER]) -> Result<usize, Error> {
    let length = u32::from_le_bytes(header) as usize;
    if length > M::MAX_FRAME {
        return Err(Error::TooLong {
            length,
            limit: M::MAX_FRAME,
        });
    }
    Ok(length)
}

/// Takes a byte stream in pieces of any size and gives its messages.
///
/// Holds at most one incomplete frame and whatever was pushed in one piece.
#[derive(Debug)]
pub struct Decoder<M> {
    buffer: Vec<u8>,
    /// Bytes at the front of `buffer` that have been decoded.
    consumed: usize,
    message: PhantomData<fn() -> M>,
}

impl<M: Message> Default for Decoder<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M: Message> Decoder<M> {
    /// A decoder at the start of a frame.
    pub fn new() -> Self {
        Self {
            buffer: Vec::new(),
            consumed: 0,
            message: PhantomData,
        }
    }

    /// Takes the stream's next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.consumed);
        self.consumed = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole message, or None until more bytes are pushed.
    ///
    /// # Errors
    /// [`Error::TooLong`] as soon as a header says so, [`Error::Malformed`]. The
    /// stream can't be followed after either.
    pub fn next_message(&mut self) -> Result<Option<M>, Error> {
        let pending = self.buffer.get(self.consumed..).unwrap_or_default();
        let Some((header, rest)) = pending.split_first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let length = frame_length::<M>(*header)?;
        let Some(frame) = rest.get(..length) else {
            return Ok(None);
        };
        let message = decode(frame)?;
        self.consumed += HEADER + length;
        Ok(Some(message))
    }

    /// Whether the stream may end here: every byte belongs to a whole message.
    pub fn at_boundary(&self) -> bool {
        self.consumed == self.buffer.len()
    }
}

/// Writes one message and flushes.
///
/// # Errors
/// [`Error::TooLong`], or [`Error::Io`] as `writer` has it.
pub fn write_message<M: Message>(writer: &mut impl Write, message: &M) -> Result<(), Error> {
    let mut frame = Vec::new();
    encode(message, &mut frame)?;
    writer.write_all(&frame)?;
    writer.flush()?;
    Ok(())
}

/// Reads one message; None when the stream ends between two.
///
/// # Errors
/// [`Error::TooLong`], [`Error::Malformed`], [`Error::Truncated`], or
/// [`Error::Io`] as `reader` has it.
pub fn read_message<M: Message>(reader: &mut impl Read) -> Result<Option<M>, Error> {
    let mut header = [0; HEADER];
    match read_full(reader, &mut header)? {
        0 => return Ok(None),
        HEADER => {}
        _ => return Err(Error::Truncated),
    }
    let length = frame_length::<M>(header)?;
    let mut frame = vec![0; length];
    if read_full(reader, &mut frame)? != length {
        return Err(Error::Truncated);
    }
    decode(&frame).map(Some)
}

/// Fills `buffer` unless the stream ends; how many bytes there were.
pub(crate) fn read_full(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match reader.read(rest) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
