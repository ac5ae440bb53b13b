//! Messages of a stream, as they come: five bytes before each.

use bytes::{Buf, Bytes, BytesMut};

use crate::e2b::places::SMALL;
use crate::e2b::problem::{Kind, Problem};

/// Bytes before a message: flags, and its length.
pub(super) const HEAD: usize = 5;

/// Most bytes of a message.
pub const MOST: usize = 8 << 20;

/// What has come of a stream.
#[derive(Debug, Default)]
pub struct Envelopes(BytesMut);

impl Envelopes {
    /// Adds what has come.
    pub fn push(&mut self, data: &[u8]) {
        self.0.extend_from_slice(data);
    }

    /// Returns whether the stream is between two messages.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether the next message is one that may come.
    pub fn has_begun(&self) -> Result<bool, Problem> {
        self.coming()?;
        Ok(self.0.len() >= HEAD)
    }

    /// Returns the length of the message that comes; 0 if it is not known yet.
    pub fn coming(&self) -> Result<usize, Problem> {
        let Some(head) = self.0.first_chunk::<HEAD>() else {
            return Ok(0);
        };
        let [flags, length @ ..] = *head;
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        if flags != 0 {
            return Err(Problem::unsupported("compressed messages are not taken"));
        }
        if length > MOST {
            return Err(Problem::new(Kind::TooLarge, "a message is too large"));
        }
        Ok(length)
    }

    /// Takes a message that has come whole.
    pub fn take(&mut self) -> Result<Option<Bytes>, Problem> {
        let length = self.coming()?;
        if self.0.len() < HEAD + length {
            return Ok(None);
        }
        self.0.advance(HEAD);
        let message = self.0.split_to(length).freeze();
        if length > SMALL {
            // Otherwise its memory is kept until the next one comes.
            self.0 = BytesMut::from(&*self.0);
        }
        Ok(Some(message))
    }
}
