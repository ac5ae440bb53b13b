//! The framing of messages on a byte stream: a `u32` length, little endian, then one message.

use std::io::{self, Read, Write};
use std::marker::PhantomData;

use micabox_socket::{Frames, TooLong};
use serde::de::DeserializeOwned;
use serde::ser::SerializeStructVariant;
use serde::{Serialize, Serializer};

use crate::{MAX_DATA, OutputStream, ToGuest, ToHost};

/// Bytes of a frame's length field.
const HEADER: usize = 4;

/// A message of one direction.
pub trait Message: Serialize + DeserializeOwned {
    /// Maximum number of bytes of a frame in this direction, without its length field.
    const MAX_FRAME: usize;

    /// Appends the message to `bytes`, without a header.
    ///
    /// # Errors
    /// [`Error::Malformed`] if the message has no encoding; all messages of this crate have one.
    fn append(&self, bytes: Vec<u8>) -> Result<Vec<u8>, Error> {
        // Serialising into memory fails only for sequences of unknown length, and messages have none.
        postcard::to_extend(self, bytes).map_err(|_| Error::Malformed("not encodable"))
    }

    /// Decodes one message from the bytes of one frame.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    fn from_frame(frame: &[u8]) -> Result<Self, Error> {
        match postcard::take_from_bytes(frame) {
            Ok((message, [])) => Ok(message),
            Ok(_) => Err(Error::Malformed("bytes after the message")),
            Err(postcard::Error::DeserializeUnexpectedEnd) => {
                Err(Error::Malformed("it ends early"))
            }
            Err(_) => Err(Error::Malformed("no such message")),
        }
    }
}

impl Message for ToGuest {
    /// Room for twice the largest argument list and environment that Linux accepts with its default
    /// limits (2 MiB).
    const MAX_FRAME: usize = 4 * 1024 * 1024;
}

impl ToGuest {
    /// Checks that the message fits into a frame, without encoding it.
    ///
    /// # Errors
    /// [`Error::TooLong`] if it exceeds [`Message::MAX_FRAME`].
    pub fn check_length(&self) -> Result<(), Error> {
        let length = postcard::experimental::serialized_size(self);
        let length = length.map_err(|_| Error::Malformed("not encodable"))?;
        let limit = Self::MAX_FRAME;
        if length > limit {
            return Err(Error::TooLong { length, limit });
        }
        Ok(())
    }
}

impl Message for ToHost {
    /// A piece of output, or a boot failure with the kernel's last messages.
    const MAX_FRAME: usize = 2 * MAX_DATA;
}

/// An error of the stream between host and agent.
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
        /// The frame's length, claimed or actual.
        length: usize,
        /// [`Message::MAX_FRAME`].
        limit: usize,
    },
    /// A frame does not hold exactly one message.
    #[error("a malformed message on the agent's channel: {0}")]
    Malformed(&'static str),
    /// The peer is not a Micabox agent.
    #[error("the guest does not speak Micabox's protocol; is its initrd mica-guest?")]
    NotAnAgent,
    /// The peer uses another version of the protocol.
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

/// Appends `message` to `out` as one frame. If the message is too long, `out` is unchanged.
///
/// # Errors
/// [`Error::TooLong`] if the message exceeds [`Message::MAX_FRAME`].
pub fn encode<M: Message>(message: &M, out: &mut Vec<u8>) -> Result<(), Error> {
    frame(M::MAX_FRAME, out, |bytes| message.append(bytes))
}

/// Appends a [`ToHost::Output`] to `out` as one frame, as [`encode`] does. The bytes need not be the message's own.
///
/// # Errors
/// As [`encode`].
pub fn encode_output(
    id: u32,
    stream: OutputStream,
    data: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let output = Output { id, stream, data };
    frame(ToHost::MAX_FRAME, out, |bytes| {
        postcard::to_extend(&output, bytes).map_err(|_| Error::Malformed("not encodable"))
    })
}

/// A [`ToHost::Output`] whose bytes are elsewhere.
struct Output<'a> {
    id: u32,
    stream: OutputStream,
    data: &'a [u8],
}

impl Serialize for Output<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut variant = serializer.serialize_struct_variant("ToHost", 5, "Output", 3)?;
        variant.serialize_field("id", &self.id)?;
        variant.serialize_field("stream", &self.stream)?;
        variant.serialize_field("data", serde_bytes::Bytes::new(self.data))?;
        variant.end()
    }
}

/// Appends a frame of at most `limit` bytes. If it is longer, `out` is unchanged.
fn frame(
    limit: usize,
    out: &mut Vec<u8>,
    append: impl FnOnce(Vec<u8>) -> Result<Vec<u8>, Error>,
) -> Result<(), Error> {
    let start = out.len();
    let mut bytes = std::mem::take(out);
    bytes.extend_from_slice(&[0; HEADER]);
    *out = append(bytes)?;
    let length = out.len().saturating_sub(start + HEADER);
    let header = match u32::try_from(length) {
        Ok(header) if length <= limit => header,
        _ => {
            out.truncate(start);
            return Err(Error::TooLong { length, limit });
        }
    };
    if let Some(field) = out.get_mut(start..start + HEADER) {
        field.copy_from_slice(&header.to_le_bytes());
    }
    Ok(())
}

/// Returns the length in a frame's header, checked against the direction's limit.
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

/// Decodes the messages of a byte stream that arrives in pieces of any size.
///
/// Holds at most one incomplete frame and one pushed piece.
#[derive(Debug)]
pub struct Decoder<M> {
    frames: Frames,
    message: PhantomData<fn() -> M>,
}

impl<M: Message> Default for Decoder<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M: Message> Decoder<M> {
    /// Creates a decoder at the start of a frame.
    pub fn new() -> Self {
        Self {
            frames: Frames::default(),
            message: PhantomData,
        }
    }

    /// Adds the stream's next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.frames.push(bytes);
    }

    /// Returns the next whole message, or None until more bytes are pushed.
    ///
    /// # Errors
    /// [`Error::TooLong`] as soon as a header exceeds the limit, [`Error::Malformed`]. After
    /// either, the rest of the stream can't be decoded.
    pub fn next_message(&mut self) -> Result<Option<M>, Error> {
        let limit = M::MAX_FRAME;
        let frame = self.frames.take(limit);
        let frame = frame.map_err(|TooLong(length)| Error::TooLong { length, limit })?;
        frame.map(M::from_frame).transpose()
    }

    /// Whether the stream may end here: every byte belongs to a whole message.
    pub fn at_boundary(&self) -> bool {
        self.frames.is_empty()
    }
}

/// Writes one message and flushes.
///
/// # Errors
/// [`Error::TooLong`], or [`Error::Io`] if `writer` fails.
pub fn write_message<M: Message>(writer: &mut impl Write, message: &M) -> Result<(), Error> {
    let mut frame = Vec::new();
    encode(message, &mut frame)?;
    writer.write_all(&frame)?;
    writer.flush()?;
    Ok(())
}

/// Reads one message; None if the stream ends between two messages.
///
/// # Errors
/// [`Error::TooLong`], [`Error::Malformed`], [`Error::Truncated`], or [`Error::Io`] if `reader`
/// fails.
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
    M::from_frame(&frame).map(Some)
}

/// Fills `buffer` unless the stream ends first; returns the number of bytes read.
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
