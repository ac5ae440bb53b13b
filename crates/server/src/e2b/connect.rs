//! The Connect protocol (connectrpc.com/docs/protocol) with JSON: E2B's clients use nothing else of it.
//!
//! A call with one reply is a request and a reply in JSON. In a stream, each message has five bytes before it: flags
//! and a length, big endian. The last one has the flag [`END`], and says what went wrong.

mod envelopes;
mod relay;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::{HeaderMap, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::http::{self, Answer, Body, Response, header};
use super::incoming::Incoming;
use super::places::{Permit, SMALL};
use super::problem::Problem;
use envelopes::HEAD;
pub use envelopes::{Envelopes, MOST};
pub use relay::{Piece, Source, relay};

/// The flag of a stream's end.
const END: u8 = 2;

/// A reply without a field.
#[derive(Debug, Serialize)]
pub struct Done {}

/// The reply of a call.
pub fn reply<T: Serialize>(answer: Result<T, Problem>) -> Response {
    match answer {
        Ok(value) => http::json(StatusCode::OK, &value),
        Err(problem) => {
            let body = json!({"code": problem.kind.code(), "message": problem.message});
            http::json(problem.kind.status(), &body)
        }
    }
}

/// Answers a call with one reply, which `perform` makes of the request.
pub async fn call<Ask, Reply, Work>(body: Incoming, perform: impl FnOnce(Ask) -> Work) -> Answer
where
    Ask: DeserializeOwned,
    Reply: Serialize,
    Work: Future<Output = Result<Reply, Problem>>,
{
    answer(body, |ask| async move { Ok(reply(perform(ask).await)) }).await
}

/// The same with a reply that is made already.
pub async fn answer<Ask, Work>(body: Incoming, perform: impl FnOnce(Ask) -> Work) -> Answer
where
    Ask: DeserializeOwned,
    Work: Future<Output = Answer>,
{
    let answer = match http::read(body).await {
        Ok(ask) => perform(ask).await,
        Err(problem) => Err(problem),
    };
    Ok(answer.unwrap_or_else(|problem| reply::<Value>(Err(problem))))
}

/// The reply of a call that streams its messages.
fn stream(body: Body) -> Response {
    let mut reply = hyper::Response::new(body);
    http::set_type(&mut reply, "application/connect+json");
    reply
}

/// The reply of a call that streams, and that has failed before its first message.
fn failed(problem: &Problem) -> Response {
    stream(http::full(end(Some(problem))))
}

/// The reply of a call whose request is a stream.
pub fn one(answer: Result<Value, Problem>) -> Response {
    match answer {
        Ok(value) => stream(http::full([message(&value), end(None)].concat())),
        Err(problem) => failed(&problem),
    }
}

/// Encodes a message of a stream.
pub fn message(message: &impl Serialize) -> Bytes {
    frame(0, message)
}

/// Encodes a stream's end.
fn end(problem: Option<&Problem>) -> Bytes {
    let body = match problem {
        Some(problem) => {
            json!({"error": {"code": problem.kind.code(), "message": problem.message}})
        }
        None => json!({}),
    };
    frame(END, &body)
}

fn frame(flags: u8, message: &impl Serialize) -> Bytes {
    let mut frame = [&[flags][..], &[0; HEAD - 1]].concat();
    // A vector takes all, and our own messages have only what JSON has.
    let _ = serde_json::to_writer(&mut frame, message);
    // They are far shorter than that.
    let length = u32::try_from(frame.len().saturating_sub(HEAD)).unwrap_or(u32::MAX);
    if let Some(place) = frame.get_mut(1..HEAD) {
        place.copy_from_slice(&length.to_be_bytes());
    }
    frame.into()
}

/// The messages of a client's stream.
pub struct Messages {
    body: Incoming,
    envelopes: Envelopes,
    /// The room for a message, until the next one is asked for.
    room: Option<Permit>,
    /// Whether the client may be silent between messages.
    is_patient: bool,
}

impl Messages {
    pub fn new(body: Incoming) -> Self {
        Self {
            body,
            envelopes: Envelopes::default(),
            room: None,
            is_patient: false,
        }
    }

    /// Returns the next message; None at the end. What came of the one before is no longer in use then.
    pub async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Problem> {
        self.room = None;
        loop {
            if let Some(message) = self.envelopes.take()? {
                if self.is_patient {
                    self.be_patient();
                }
                return super::json::decode(&message).map(Some).map_err(|error| {
                    Problem::invalid(format!("a message is not as expected: {error}"))
                });
            }
            let length = self.envelopes.coming()?;
            if length > SMALL && self.room.is_none() {
                let call = Arc::clone(self.body.call());
                self.room = call.room(length * http::GROWTH).await?;
            }
            if !self.receive().await? {
                return Ok(None);
            }
        }
    }

    /// Receives more of the stream; false if it has ended where it may.
    async fn receive(&mut self) -> Result<bool, Problem> {
        match self.body.frame().await {
            None if self.envelopes.is_empty() => Ok(false),
            None => Err(Problem::invalid("the stream ends within a message")),
            Some(Ok(frame)) => {
                let is_first = self.envelopes.is_empty();
                if let Ok(data) = frame.into_data() {
                    self.envelopes.push(&data);
                }
                if self.is_patient && is_first {
                    self.be_patient();
                }
                Ok(true)
            }
            Some(Err(error)) => Err(http::broken(error)),
        }
    }

    /// Lets the client be silent between messages for as long as it likes. Within one there may be room for it.
    pub fn be_patient(&mut self) {
        self.is_patient = true;
        if self.envelopes.is_empty() {
            self.body.set_patience(None);
        } else {
            self.body.expect_more();
        }
    }

    /// Returns whether there is room for the last message, which others wait for.
    pub fn is_large(&self) -> bool {
        self.room.is_some()
    }

    /// Returns the only message of a stream, once the stream has ended: hyper closes a connection whose request it has
    /// not read whole when it has replied, and what the client has not received by then is lost.
    pub async fn only<T: DeserializeOwned>(mut self) -> Result<T, Problem> {
        let only = self.next().await?;
        let only = only.ok_or_else(|| Problem::invalid("the stream has no message"))?;
        // For as long as the call is under way.
        if let Some(room) = self.room.take() {
            self.body.call().keep(room);
        }
        // Of another one only the beginning is received: it would need room as well.
        while !self.envelopes.has_begun()? {
            if !self.receive().await? {
                return Ok(only);
            }
        }
        Err(Problem::invalid("the stream has more than one message"))
    }
}

/// A stream's timeout, and its keepalive interval.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    pub timeout: Option<Duration>,
    keepalive: Option<Duration>,
}

impl Timing {
    /// What the client asks for.
    pub fn of(headers: &HeaderMap) -> Result<Self, Problem> {
        let number = |name| {
            let wrong = |_| Problem::invalid(format!("the header {name} is no number"));
            let text = headers.contains_key(name).then(|| header(headers, name));
            let number = text.map(|text| text.unwrap_or_default().parse::<u64>());
            number.transpose().map_err(wrong)
        };
        let seconds = number("keepalive-ping-interval")?;
        Ok(Self {
            timeout: number("connect-timeout-ms")?.map(Duration::from_millis),
            keepalive: seconds.map(|seconds| Duration::from_secs(seconds.max(1))),
        })
    }
}

/// Replies "unimplemented" to an unknown method.
pub fn unknown(path: &str) -> Answer {
    let problem = Problem::unsupported(format!("there is no call {path}"));
    Ok(reply::<Value>(Err(problem)))
}
