//! Replies of an interpreter, as they come: a length before each.

use bytes::{Buf, BytesMut};

use super::reply::Reply;

/// Most bytes of a reply: a plot is one.
pub const REPLY: usize = 16 << 20;

/// Bytes before a reply.
const HEAD: usize = 4;

/// What has come of replies.
#[derive(Debug, Default)]
pub struct Replies {
    bytes: BytesMut,
    /// Bytes that are left of a reply that is too large.
    left: usize,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coming {
    /// That is not known yet.
    Nothing,
    /// A reply of so many bytes.
    Reply(usize),
    /// A reply that is passed over.
    TooLarge,
}

impl Replies {
    /// Returns where what comes is to be added.
    pub fn buffer(&mut self) -> &mut BytesMut {
        &mut self.bytes
    }

    pub fn coming(&self) -> Coming {
        if self.left > 0 {
            return Coming::TooLarge;
        }
        match self.bytes.first_chunk::<HEAD>() {
            None => Coming::Nothing,
            // Its number has 32 bits, and so has that of the least machine.
            Some(length) => match usize::try_from(u32::from_le_bytes(*length)) {
                Ok(length @ ..=REPLY) => Coming::Reply(length),
                _ => Coming::TooLarge,
            },
        }
    }

    /// Takes a reply that has come whole.
    pub fn take(&mut self) -> Option<Result<Reply, serde_json::Error>> {
        let Coming::Reply(length) = self.coming() else {
            return None;
        };
        if self.bytes.len() < HEAD + length {
            return None;
        }
        self.bytes.advance(HEAD);
        let body = self.bytes.split_to(length);
        if self.bytes.is_empty() {
            // A large one's memory is not kept.
            self.bytes = BytesMut::new();
        }
        Some(Reply::of(&body))
    }

    /// Drops what has come of a reply that is too large. Returns whether that is all of it.
    pub fn skip(&mut self) -> bool {
        if self.left == 0
            && let Some(length) = self.bytes.first_chunk::<HEAD>()
        {
            let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
            self.left = length.saturating_add(HEAD);
        }
        let count = self.left.min(self.bytes.len());
        self.bytes.advance(count);
        self.left -= count;
        self.left == 0
    }
}
