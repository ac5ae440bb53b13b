//! Entry points for `fuzz/` to what `mica serve --e2b` reads of clients and of interpreters.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use hyper::body::{Body, Frame};

use super::code::{Coming, Replies};
use super::connect::Envelopes;
use super::envd::Parts;
use super::problem::Problem;

pub use super::code::REPLY;
pub use super::connect::MOST;
pub use super::envd::{HEAD, PIECE};

/// Reads a stream that comes in pieces. Returns its messages, and whether something in it is not taken.
pub fn messages(pieces: &[&[u8]]) -> (Vec<Bytes>, bool) {
    let (mut found, mut envelopes) = (Vec::new(), Envelopes::default());
    for piece in pieces {
        envelopes.push(piece);
        loop {
            match envelopes.take() {
                Ok(Some(message)) => found.push(message),
                Ok(None) => break,
                Err(_) => return (found, true),
            }
        }
    }
    (found, !envelopes.is_empty())
}

/// A part of a body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// The field's name.
    pub name: Option<String>,
    /// The file's name.
    pub file_name: Option<String>,
    /// What has come of its contents.
    pub contents: Vec<u8>,
    /// Most bytes of them that were there at a time.
    pub largest: usize,
}

/// Reads a body that comes in pieces. Returns its parts, and what is wrong with it.
pub fn parts(boundary: &str, pieces: Vec<Bytes>) -> (Vec<Part>, Option<String>) {
    let mut found = Vec::new();
    let read = at_once(read_parts(boundary, pieces, &mut found));
    (found, read.err().map(|problem| problem.message))
}

async fn read_parts(
    boundary: &str,
    pieces: Vec<Bytes>,
    found: &mut Vec<Part>,
) -> Result<(), Problem> {
    let mut parts = Parts::new(Pieces(pieces.into()), boundary.to_owned());
    while let Some(mut part) = parts.next().await? {
        found.push(Part {
            name: part.name().map(str::to_owned),
            file_name: part.file_name().map(str::to_owned),
            ..Part::default()
        });
        while let Some(data) = part.chunk().await? {
            if let Some(last) = found.last_mut() {
                last.contents.extend_from_slice(&data);
                last.largest = last.largest.max(data.len());
            }
        }
    }
    Ok(())
}

/// A body that is there already.
struct Pieces(VecDeque<Bytes>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
    }
}

/// Waits for what waits for nothing.
fn at_once<T>(work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(done) = work.as_mut().poll(&mut context) {
            return done;
        }
    }
}

/// A reply of an interpreter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// What it is about.
    pub kind: String,
    /// What is passed on of it, each field with a comma in front.
    pub fields: Vec<u8>,
    /// Whether a client hears of it, and if so, whether what it hears is a line of its own.
    pub is_line: Option<bool>,
}

/// Reads what an interpreter says in pieces. Returns its replies, and whether something in it is none.
pub fn replies(pieces: &[&[u8]]) -> (Vec<Reply>, bool) {
    let (mut found, mut replies) = (Vec::new(), Replies::default());
    for piece in pieces {
        replies.buffer().extend_from_slice(piece);
        loop {
            match replies.coming() {
                Coming::TooLarge if replies.skip() => {}
                Coming::Reply(_) => match replies.take() {
                    None => break,
                    Some(Err(_)) => return (found, true),
                    Some(Ok(reply)) => {
                        let (kind, fields) = (reply.kind.clone(), reply.fields.clone());
                        let is_line = reply.line().map(|line| {
                            let end = line.iter().position(|byte| *byte == b'\n');
                            let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(&line);
                            end == line.len().checked_sub(1) && is_json.is_ok()
                        });
                        found.push(Reply {
                            kind,
                            fields,
                            is_line,
                        });
                    }
                },
                Coming::Nothing | Coming::TooLarge => break,
            }
        }
    }
    (found, false)
}
