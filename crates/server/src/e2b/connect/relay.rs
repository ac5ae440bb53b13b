//! A stream of messages as a reply's body: what makes them is asked as the client reads them.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep, sleep_until};

use super::{Timing, end, failed, message, stream};
use crate::e2b::http::Response;
use crate::e2b::problem::{Kind, Problem};

/// A part of a stream.
pub enum Piece {
    Message(Bytes),
    End(Option<Problem>),
}

/// Where a stream's parts come from. What is not asked for waits there.
pub trait Source: Send + Unpin + 'static {
    /// Waits for the next part; None where what makes them has ended without one.
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Piece>>;
}

impl Source for mpsc::Receiver<Piece> {
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Piece>> {
        self.poll_recv(context)
    }
}

/// Passes a stream on to the client, until its end, the client's, or the end of its time. What comes is dropped then.
pub fn relay(begun: Result<impl Source, Problem>, timing: Timing, keepalive: &Value) -> Response {
    let from = match begun {
        Ok(from) => from,
        Err(problem) => return failed(&problem),
    };
    let deadline = timing
        .timeout
        .and_then(|time| Instant::now().checked_add(time));
    stream(BodyExt::boxed_unsync(Relay {
        from: Some(from),
        deadline: deadline.map(|deadline| Box::pin(sleep_until(deadline))),
        silence: timing
            .keepalive
            .map(|interval| Silence::new(interval, keepalive)),
    }))
}

/// The body.
struct Relay<From> {
    /// None after the end.
    from: Option<From>,
    deadline: Option<Pin<Box<Sleep>>>,
    silence: Option<Silence>,
}

/// What is said to a client to which nothing else is said for so long.
struct Silence {
    interval: Duration,
    keepalive: Bytes,
    until: Pin<Box<Sleep>>,
}

impl Silence {
    fn new(interval: Duration, keepalive: &Value) -> Self {
        Self {
            interval,
            keepalive: message(keepalive),
            until: Box::pin(tokio::time::sleep(interval)),
        }
    }

    /// Begins anew.
    fn is_broken(&mut self) {
        // An interval beyond the clock's range has no end.
        if let Some(until) = Instant::now().checked_add(self.interval) {
            self.until.as_mut().reset(until);
        }
    }
}

impl<From: Source> Relay<From> {
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Piece>> {
        let Some(from) = &mut self.from else {
            return Poll::Ready(None);
        };
        // Before what may come without an end.
        if let Some(deadline) = &mut self.deadline
            && deadline.as_mut().poll(context).is_ready()
        {
            let message = "the time that the client gave is over";
            return Poll::Ready(Some(Piece::End(Some(Problem::new(
                Kind::Deadline,
                message,
            )))));
        }
        if let Poll::Ready(piece) = from.poll_piece(context) {
            let lost = || Piece::End(Some(Problem::no_sandbox()));
            if let Some(silence) = &mut self.silence {
                silence.is_broken();
            }
            return Poll::Ready(Some(piece.unwrap_or_else(lost)));
        }
        let Some(silence) = &mut self.silence else {
            return Poll::Pending;
        };
        ready!(silence.until.as_mut().poll(context));
        silence.is_broken();
        Poll::Ready(Some(Piece::Message(silence.keepalive.clone())))
    }
}

impl<From: Source> Body for Relay<From> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let Some(piece) = ready!(self.poll_piece(context)) else {
            return Poll::Ready(None);
        };
        Poll::Ready(Some(match piece {
            Piece::Message(bytes) => Ok(Frame::data(bytes)),
            Piece::End(problem) => {
                self.from = None;
                match problem {
                    // Clients look whether the sandbox is there when a stream breaks off.
                    Some(problem) if problem.kind == Kind::Gone => {
                        Err(io::Error::other(problem.message))
                    }
                    problem => Ok(Frame::data(end(problem.as_ref()))),
                }
            }
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.from.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(seconds: Option<u64>, keepalive: Option<u64>) -> Timing {
        Timing {
            timeout: seconds.map(Duration::from_secs),
            keepalive: keepalive.map(Duration::from_secs),
        }
    }

    async fn next(reply: &mut Response) -> Option<String> {
        let frame = reply.body_mut().frame().await?;
        let data = frame.unwrap().into_data().unwrap();
        Some(String::from_utf8_lossy(&data[5..]).into_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_stream_says_that_it_is_there_until_its_time_is_over() {
        let (pieces, from) = mpsc::channel(1);
        let mut reply = relay(Ok(from), of(Some(25), Some(10)), &Value::from("here"));
        let said = Piece::Message(message(&Value::from("said")));
        pieces.send(said).await.map_err(drop).unwrap();
        let begun = Instant::now();
        for (expected, after) in [("\"said\"", 0), ("\"here\"", 10), ("\"here\"", 20)] {
            assert_eq!(next(&mut reply).await.as_deref(), Some(expected));
            assert_eq!(begun.elapsed().as_secs(), after);
        }
        let end = next(&mut reply).await.unwrap();
        assert!(end.contains("deadline_exceeded"), "{end}");
        assert_eq!(begun.elapsed().as_secs(), 25);
        assert_eq!(next(&mut reply).await, None);
        assert!(pieces.is_closed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_without_an_end_ends_with_its_time() {
        struct Endless;
        impl Source for Endless {
            fn poll_piece(&mut self, _: &mut Context<'_>) -> Poll<Option<Piece>> {
                Poll::Ready(Some(Piece::Message(message(&Value::Null))))
            }
        }
        let mut reply = relay(Ok(Endless), of(Some(1), None), &Value::Null);
        assert_eq!(next(&mut reply).await.as_deref(), Some("null"));
        tokio::time::advance(Duration::from_secs(2)).await;
        let end = next(&mut reply).await.unwrap();
        assert!(end.contains("deadline_exceeded"), "{end}");
        assert_eq!(next(&mut reply).await, None);
    }

    #[tokio::test]
    async fn a_stream_whose_sandbox_is_gone_breaks_off() {
        let (pieces, from) = mpsc::channel::<Piece>(1);
        drop(pieces);
        let mut reply = relay(Ok(from), of(None, None), &Value::Null);
        assert!(reply.body_mut().frame().await.unwrap().is_err());
        assert_eq!(next(&mut reply).await, None);
    }
}
