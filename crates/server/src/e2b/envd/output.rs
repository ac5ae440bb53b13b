//! What a client receives of a command: that it runs, its output, and how it ended.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_core::Stream;
use micabox::ExitStatus;
use micabox_async::Output;
use rustix::process::Signal;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;

use super::table::{Process, Processes};
use crate::e2b::connect::{self, Piece, Source};
use crate::e2b::problem::Problem;

/// A command as one client receives it. What the client has not read waits at the sandbox's owner, and the command with
/// it, once this has its window.
pub struct Received {
    all: Arc<Processes>,
    pid: u32,
    /// None once the client knows how it ended: what it counts for is free then.
    running: Option<Running>,
    /// Whether the client does not know yet that it runs.
    is_new: bool,
    outputs: [Named; 2],
}

/// A command whose end the client waits for.
struct Running {
    process: Arc<Process>,
    end: Pin<Box<dyn Future<Output = Result<ExitStatus, Problem>> + Send>>,
    _place: OwnedSemaphorePermit,
}

/// An output, and what clients call it.
struct Named {
    name: &'static str,
    /// None after its end.
    output: Option<Output>,
}

impl Received {
    /// What the client receives of a command that it has started, or attached to.
    pub fn new(
        all: &Arc<Processes>,
        process: &Arc<Process>,
        mut running: micabox_async::Process,
        place: OwnedSemaphorePermit,
    ) -> Self {
        let name = if process.has_terminal() {
            "pty"
        } else {
            "stdout"
        };
        let named = |name, output| Named { name, output };
        let outputs = [
            named(name, running.stdout.take()),
            named("stderr", running.stderr.take()),
        ];
        // This client's own: the end comes after all of its output.
        let end = async move { Ok(running.wait().await?) };
        Self {
            all: Arc::clone(all),
            pid: process.pid(),
            running: Some(Running {
                process: Arc::clone(process),
                end: Box::pin(end),
                _place: place,
            }),
            is_new: true,
            outputs,
        }
    }

    /// Waits for a piece of one of the outputs, in turns; None at the end of both.
    fn poll_output(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let [first, second] = &mut self.outputs;
        let polled = match first.poll(context) {
            Poll::Ready(None) => second.poll(context),
            Poll::Pending => match second.poll(context) {
                Poll::Ready(None) => Poll::Pending,
                polled => polled,
            },
            polled => polled,
        };
        self.outputs.swap(0, 1);
        polled
    }
}

impl Named {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let Some(output) = &mut self.output else {
            return Poll::Ready(None);
        };
        let Some(Ok(piece)) = ready!(Pin::new(output).poll_next(context)) else {
            // Of an early end the command has the reason.
            self.output = None;
            return Poll::Ready(None);
        };
        let data = STANDARD.encode(piece);
        Poll::Ready(Some(event(&json!({"data": {self.name: data}}))))
    }
}

impl Source for Received {
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Piece>> {
        if std::mem::take(&mut self.is_new) {
            let start = event(&json!({"start": {"pid": self.pid}}));
            return Poll::Ready(Some(Piece::Message(start)));
        }
        if let Some(message) = ready!(self.poll_output(context)) {
            return Poll::Ready(Some(Piece::Message(message)));
        }
        let Some(running) = &mut self.running else {
            return Poll::Ready(Some(Piece::End(None)));
        };
        let ended = ready!(running.end.as_mut().poll(context));
        // A client that knows the end does not find it any more.
        self.all.remove(&running.process);
        self.running = None;
        Poll::Ready(Some(match ended {
            Ok(status) => Piece::Message(event(&exit(status))),
            Err(problem) => Piece::End(Some(problem)),
        }))
    }
}

/// A message of a command's stream.
#[derive(Serialize)]
struct Message<'a> {
    event: &'a Value,
}

fn event(event: &Value) -> Bytes {
    connect::message(&Message { event })
}

/// The end of a command, as Go describes one, in which E2B's server is written.
fn exit(status: ExitStatus) -> Value {
    match status {
        ExitStatus::Exited(0) => {
            json!({"end": {"exitCode": 0, "exited": true, "status": "exit status 0"}})
        }
        ExitStatus::Exited(code) => {
            let words = format!("exit status {code}");
            json!({"end": {"exitCode": code, "exited": true, "status": words, "error": words}})
        }
        ExitStatus::Signaled(signal) => {
            let words = match Signal::from_named_raw(signal) {
                Some(Signal::KILL) => "signal: killed".to_owned(),
                Some(Signal::TERM) => "signal: terminated".to_owned(),
                _ => format!("signal: {signal}"),
            };
            json!({"end": {"exitCode": -1, "exited": false, "status": words, "error": words}})
        }
    }
}
