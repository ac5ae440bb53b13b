//! Encodes and decodes frames. A frame is a `u32` length of all that follows, little endian; a byte
//! for the kind; a `u32` number, little endian; and a body.
//!
//! | kind | body |
//! |---|---|
//! | 0 | a message in JSON |
//! | 1 | bytes of a command's stdin |
//! | 2 | bytes of its stdout, or of its terminal |
//! | 3 | bytes of its stderr |
//!
//! A frame of a stream with an empty body ends the stream.

use std::marker::PhantomData;

use micabox_socket::{Frames, TooLong};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::MAX_DATA;

/// Most bytes of a message: the largest argument list and environment that Linux accepts with its
/// default limits (2 MiB), with room for JSON's overhead.
pub const MAX_MESSAGE: usize = 8 << 20;

/// Bytes of kind and number.
const HEAD: usize = 5;

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame<M> {
    /// A message about the request of this number.
    Message(u32, M),
    /// Bytes of a stream of the command of this number; none at its end.
    Data(u32, Pipe, Vec<u8>),
}

/// One of a command's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pipe {
    /// Descriptor 0.
    Stdin = 1,
    /// Descriptor 1, or the terminal.
    Stdout = 2,
    /// Descriptor 2.
    Stderr = 3,
}

/// Errors in the peer's bytes.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The peer's bytes do not begin with the preamble's magic.
    #[error("the other side does not speak the protocol of sandboxes")]
    NotThis,
    /// The peer uses another version of the protocol.
    #[error(
        "the other side speaks version {theirs} of the protocol, this one {}: use the same \
         version of mica",
        super::VERSION
    )]
    Version {
        /// The peer's version.
        theirs: u32,
    },
    /// A frame exceeds the maximal length.
    #[error("a frame of {0} bytes")]
    TooLong(usize),
    /// A malformed frame.
    #[error("a malformed frame: {0}")]
    Malformed(String),
    /// A whole frame whose message can't be decoded. The frames after it can be.
    #[error("a malformed message: {why}")]
    Message {
        /// The number of its request.
        number: u32,
        /// The reason.
        why: String,
    },
}

/// Appends a message as one frame.
pub fn encode(number: u32, message: &impl Serialize, out: &mut Vec<u8>) {
    // Only maps whose keys are not strings fail, and no message has one.
    let json = serde_json::to_vec(message).unwrap_or_default();
    head(0, number, json.len(), out);
    out.extend_from_slice(&json);
}

/// Appends bytes of a stream as frames.
pub fn encode_data(number: u32, pipe: Pipe, bytes: &[u8], out: &mut Vec<u8>) {
    for bytes in bytes.chunks(MAX_DATA) {
        head(pipe as u8, number, bytes.len(), out);
        out.extend_from_slice(bytes);
    }
}

/// Appends the end of a stream.
pub fn encode_end(number: u32, pipe: Pipe, out: &mut Vec<u8>) {
    head(pipe as u8, number, 0, out);
}

fn head(kind: u8, number: u32, length: usize, out: &mut Vec<u8>) {
    let length = u32::try_from(HEAD + length).unwrap_or(u32::MAX);
    out.extend_from_slice(&length.to_le_bytes());
    out.push(kind);
    out.extend_from_slice(&number.to_le_bytes());
}

/// Decodes frames from a byte stream that arrives in pieces of any size.
#[derive(Debug)]
pub struct Decoder<M> {
    frames: Frames,
    greeted: bool,
    message: PhantomData<fn() -> M>,
}

impl<M> Default for Decoder<M> {
    fn default() -> Self {
        Self {
            frames: Frames::default(),
            greeted: false,
            message: PhantomData,
        }
    }
}

impl<M: DeserializeOwned> Decoder<M> {
    /// Adds the stream's next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.frames.push(bytes);
    }

    /// Returns the next complete frame; None until more bytes are pushed. The preamble is checked
    /// first.
    ///
    /// # Errors
    /// [`FrameError`]; the stream can't be decoded any further after one, except [`FrameError::Message`].
    pub fn next_frame(&mut self) -> Result<Option<Frame<M>>, FrameError> {
        if !self.greeted {
            let Some(preamble) = self.frames.take_bytes() else {
                return Ok(None);
            };
            super::check_preamble(preamble)?;
            self.greeted = true;
        }
        let frame = self.frames.take(HEAD + MAX_MESSAGE);
        let Some(frame) = frame.map_err(|TooLong(length)| FrameError::TooLong(length))? else {
            return Ok(None);
        };
        let malformed = |why: &str| FrameError::Malformed(why.to_owned());
        let (&kind, frame) = frame.split_first().ok_or_else(|| malformed("no head"))?;
        let (number, body) = frame
            .split_first_chunk()
            .ok_or_else(|| malformed("half a head"))?;
        let number = u32::from_le_bytes(*number);
        let pipe = match kind {
            0 => None,
            1 => Some(Pipe::Stdin),
            2 => Some(Pipe::Stdout),
            3 => Some(Pipe::Stderr),
            _ => return Err(malformed("an unknown kind")),
        };
        match pipe {
            None => match serde_json::from_slice(body) {
                Ok(message) => Ok(Some(Frame::Message(number, message))),
                Err(error) => {
                    let why = error.to_string();
                    Err(FrameError::Message { number, why })
                }
            },
            Some(_) if body.len() > MAX_DATA => Err(FrameError::TooLong(body.len())),
            Some(pipe) => Ok(Some(Frame::Data(number, pipe, body.to_vec()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::{Reply, Request, preamble};

    #[test]
    fn frames_come_out_as_they_went_in_whatever_the_pieces() {
        let mut bytes = preamble().to_vec();
        encode(7, &Request::Signal { signal: 15 }, &mut bytes);
        encode_data(7, Pipe::Stdin, &vec![1; MAX_DATA + 1], &mut bytes);
        encode_end(7, Pipe::Stdin, &mut bytes);
        for size in [1, 3, 4096, bytes.len()] {
            let mut decoder = Decoder::<Request>::default();
            let mut frames = Vec::new();
            for piece in bytes.chunks(size) {
                decoder.push(piece);
                while let Some(frame) = decoder.next_frame().unwrap() {
                    frames.push(frame);
                }
            }
            assert_eq!(
                frames,
                [
                    Frame::Message(7, Request::Signal { signal: 15 }),
                    Frame::Data(7, Pipe::Stdin, vec![1; MAX_DATA]),
                    Frame::Data(7, Pipe::Stdin, vec![1]),
                    Frame::Data(7, Pipe::Stdin, vec![]),
                ]
            );
        }
    }

    #[test]
    fn a_message_that_is_none_is_one_error() {
        let mut decoder = Decoder::<Request>::default();
        decoder.push(&preamble());
        let mut bytes = Vec::new();
        head(0, 3, 2, &mut bytes);
        bytes.extend_from_slice(b"{}");
        encode(4, &Request::Info, &mut bytes);
        decoder.push(&bytes);
        let error = decoder.next_frame().unwrap_err();
        assert!(
            matches!(error, FrameError::Message { number: 3, .. }),
            "{error}"
        );
        let frame = decoder.next_frame().unwrap();
        assert_eq!(frame, Some(Frame::Message(4, Request::Info)));
    }

    #[test]
    fn another_version_of_the_protocol_is_named() {
        let mut decoder = Decoder::<Reply>::default();
        let mut other = preamble();
        other[8] = 9;
        decoder.push(&other);
        let error = decoder.next_frame().unwrap_err();
        assert!(
            matches!(error, FrameError::Version { theirs: 9 }),
            "{error}"
        );
        let mut decoder = Decoder::<Reply>::default();
        decoder.push(b"HTTP/1.1 400 Bad Request");
        let error = decoder.next_frame().unwrap_err();
        assert!(matches!(error, FrameError::NotThis), "{error}");
    }

    proptest! {
        #[test]
        fn any_bytes_give_frames_or_an_error(bytes: Vec<u8>) {
            let mut decoder = Decoder::<Request>::default();
            decoder.push(&preamble());
            decoder.push(&bytes);
            while let Ok(Some(_)) | Err(FrameError::Message { .. }) = decoder.next_frame() {}
        }
    }
}
