//! One operation: a command of the agent's own.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use micabox::{Error, ExecOptions, Stdio};
use micabox_operations::{FileTask, MAX_MESSAGES};
use micabox_owner::protocol::Exec;
use micabox_wire::Message;
use micabox_wire::files::FileReply;
use tokio::io::AsyncReadExt;

use crate::link::Link;
use crate::process::{Begin, Process, rest};

/// Which streams an operation has, besides its messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    stdin: bool,
    stdout: bool,
}

impl Ends {
    pub(super) const NONE: Self = Self {
        stdin: false,
        stdout: false,
    };
    pub(super) const IN: Self = Self {
        stdin: true,
        stdout: false,
    };
    pub(super) const BOTH: Self = Self {
        stdin: true,
        stdout: true,
    };
    pub(super) const OUT: Self = Self {
        stdin: false,
        stdout: true,
    };
}

/// An operation that has begun. Dropping it ends it, done or not.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) process: Process,
    pub(super) task: FileTask,
}

type End = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

/// An operation whose streams are elsewhere, and its end, for what is polled. Dropping it ends it.
pub(super) struct Ending {
    task: FileTask,
    /// None once its end is awaited.
    operation: Option<Operation>,
    /// None before that, and after the end.
    end: Option<End>,
}

impl Operation {
    pub(super) async fn start(
        link: &Arc<Link>,
        task: FileTask,
        exec: Exec,
        ends: Ends,
    ) -> Result<Self, Error> {
        let stdio = |is_there| if is_there { Stdio::Piped } else { Stdio::Null };
        let options = ExecOptions {
            stdin: stdio(ends.stdin),
            stdout: stdio(ends.stdout),
            stderr: Stdio::Piped,
            ..ExecOptions::default()
        };
        let process = Process::start(link, Begin::Exec(Box::new(exec)), options).await;
        Ok(Self {
            process: process.map_err(|error| task.not_begun(error))?,
            task,
        })
    }

    /// Returns the only reply; None if there is none, or it is malformed.
    pub(super) async fn reply(&mut self) -> Option<FileReply> {
        const MOST: u64 = FileReply::MAX_FRAME as u64 + 4;
        let stdout = self.process.stdout.take()?;
        let bytes = rest(Some(stdout.take(MOST))).await.ok()?;
        micabox_wire::read_message(&mut &bytes[..]).ok().flatten()
    }

    /// Ends its stdin, and waits for its end.
    pub(super) async fn end(mut self) -> Result<(), Error> {
        if let Some(mut stdin) = self.process.stdin.take() {
            stdin.end();
        }
        let stderr = self.process.stderr.take();
        let messages = rest(stderr.map(|stderr| stderr.take(MAX_MESSAGES)));
        let messages = messages.await.unwrap_or_default();
        // A sandbox that ended has the better reason.
        let status = self.process.wait().await?;
        self.task.end(status, &messages[..]).map(drop)
    }
}

impl From<Operation> for Ending {
    fn from(operation: Operation) -> Self {
        Self {
            task: operation.task.clone(),
            operation: Some(operation),
            end: None,
        }
    }
}

impl Ending {
    pub(super) fn task(&self) -> &FileTask {
        &self.task
    }

    /// Waits for the end. Succeeds after it.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if let Some(operation) = self.operation.take() {
            self.end = Some(Box::pin(operation.end()));
        }
        let Some(end) = &mut self.end else {
            return Poll::Ready(Ok(()));
        };
        let ended = ready!(end.as_mut().poll(context));
        self.end = None;
        Poll::Ready(ended)
    }

    /// Ends the operation, done or not.
    pub(super) fn give_up(&mut self) {
        self.operation = None;
        self.end = None;
    }
}

impl fmt::Debug for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ending").field(&self.task).finish()
    }
}
