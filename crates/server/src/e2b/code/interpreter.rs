//! An interpreter in a sandbox. It runs the program of the Python SDK, or IPython's kernel if the image has it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use micabox::{Command, ExitStatus, Overrides};
use micabox_async::{ExecOptions, Handle, Output, Stdin};
use rustix::process::Signal;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep_until};

use super::replies::{Coming, REPLY, Replies};
use super::reply::Reply;
use crate::e2b::envd::WINDOW;
use crate::e2b::places::{Account, Permit};
use crate::e2b::problem::{Kind, Problem};
use crate::e2b::sandbox::Served;

/// The program that takes code, and one that passes it on to IPython's kernel; without a kernel, it becomes the
/// former.
const DRIVER: &str = include_str!("../../../../../sdk/python/micabox/code/driver.py");
const KERNEL: &str = include_str!("kernel.py");

/// Bytes of memory that a reply takes, for each of its own: while it is received, while it is read, as it is passed on.
const GROWTH: usize = 3;

/// How long a reply may take from its head on.
const PATIENCE: Duration = Duration::from_secs(60);

/// Most bytes that are kept of what the interpreter itself says when it fails.
const SAID: usize = 4 << 10;

/// A Python that takes code.
#[derive(Debug)]
pub struct Interpreter {
    handle: Handle,
    stdin: Stdin,
    stdout: Output,
    stderr: Output,
    replies: Replies,
    account: Account,
    /// For the reply that comes: its room, and until when it may take.
    coming: Option<(Option<Permit>, Instant)>,
    said: Vec<u8>,
    requests: u64,
}

impl Interpreter {
    /// Starts it, and waits until it takes code.
    pub async fn start(
        served: &Served,
        account: Account,
        directory: &Path,
    ) -> Result<Self, Problem> {
        let command = command(served, directory).await?;
        let commands = served.connect().await?.commands();
        let options = ExecOptions {
            window: WINDOW,
            ..ExecOptions::piped(true)
        };
        let mut running = commands.spawn_with(&command, options).await?;
        let streams = running.stdin.take().zip(running.stdout.take());
        let streams = streams.zip(running.stderr.take());
        let ((stdin, stdout), stderr) = streams
            .ok_or_else(|| Problem::new(Kind::Internal, "the interpreter has no streams"))?;
        let mut interpreter = Self {
            handle: running.handle(),
            stdin,
            stdout,
            stderr,
            replies: Replies::default(),
            account,
            coming: None,
            said: Vec::new(),
            requests: 0,
        };
        let (ready, _) = interpreter.next().await?;
        if ready.kind != "ready" {
            return Err(Problem::new(Kind::Internal, "python3 did not begin"));
        }
        Ok(interpreter)
    }

    /// Asks it to run code. Its replies have the number that is returned.
    pub async fn ask(
        &mut self,
        code: &str,
        variables: &BTreeMap<String, String>,
    ) -> Result<u64, Problem> {
        self.requests += 1;
        let request = json!({"request": self.requests, "code": code, "envs": variables});
        let body = request.to_string();
        let length = u32::try_from(body.len()).map_err(|_| Problem::invalid("too much code"))?;
        let frame = [&length.to_le_bytes()[..], body.as_bytes()].concat();
        let written = self.stdin.write_all(&frame).await;
        match written {
            Ok(()) => Ok(self.requests),
            Err(_) => Err(self.over().await),
        }
    }

    /// Returns the next reply, and its room. Nothing is lost if this is dropped before.
    pub async fn next(&mut self) -> Result<(Reply, Option<Permit>), Problem> {
        loop {
            match self.replies.coming() {
                Coming::Nothing => {}
                Coming::Reply(length) => {
                    if self.coming.is_none() {
                        let room = self.account.room(length * GROWTH).await?;
                        self.coming = Some((room, Instant::now() + PATIENCE));
                    }
                    if let Some(reply) = self.replies.take() {
                        let room = self.coming.take().and_then(|(room, _)| room);
                        return Ok((reply.map_err(|_| broken())?, room));
                    }
                }
                Coming::TooLarge => {
                    self.coming
                        .get_or_insert_with(|| (None, Instant::now() + PATIENCE));
                    if self.replies.skip() {
                        self.coming = None;
                        let value = format!("a result has more than {} MiB", REPLY >> 20);
                        let reply = Reply::error(self.requests, "ResultTooLarge", &value);
                        return Ok((reply, None));
                    }
                }
            }
            let until = self.coming.as_ref().map_or_else(far, |(_, until)| *until);
            let mut said = [0; 1024];
            tokio::select! {
                read = self.stdout.read_buf(self.replies.buffer()) => {
                    if !matches!(read, Ok(1..)) {
                        return Err(self.over().await);
                    }
                }
                () = sleep_until(until) => return Err(broken()),
                read = self.stderr.read(&mut said) => match read {
                    Ok(count @ 1..) => {
                        self.said.extend_from_slice(said.get(..count).unwrap_or_default());
                        let most = self.said.len().saturating_sub(SAID);
                        self.said.drain(..most);
                    }
                    _ => {
                        // Its end is also that of stdout.
                        if !matches!(self.stdout.read_buf(self.replies.buffer()).await, Ok(1..)) {
                            return Err(self.over().await);
                        }
                    }
                },
            }
        }
    }

    /// Why there are no more replies.
    async fn over(&mut self) -> Problem {
        let how = match self.handle.wait().await {
            Ok(ExitStatus::Exited(code)) => format!("exit code {code}"),
            Ok(ExitStatus::Signaled(signal)) => format!("signal {signal}"),
            Err(error) => return error.into(),
        };
        let said = String::from_utf8_lossy(&self.said);
        let message = format!("the sandbox's python3 has ended ({how}) {said}");
        Problem::new(Kind::Internal, message.trim_end())
    }

    /// Returns its process's handle.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Returns whether its sandbox is gone.
    pub fn is_lost(&self) -> bool {
        self.handle.try_wait().is_err()
    }

    /// Interrupts the code that it runs.
    pub fn interrupt(&self) {
        self.handle.signal(Signal::INT.as_raw());
    }
}

impl Drop for Interpreter {
    fn drop(&mut self) {
        self.handle.signal(Signal::KILL.as_raw());
    }
}

fn broken() -> Problem {
    Problem::new(Kind::Internal, "the interpreter sends something else")
}

/// A time that does not come.
fn far() -> Instant {
    Instant::now() + Duration::from_secs(365 * 86_400)
}

async fn command(served: &Served, directory: &Path) -> Result<Command, Problem> {
    let overrides = Overrides {
        args: ["python3", "-c", KERNEL, DRIVER].map(Into::into).into(),
        workdir: Some(directory.into()),
        ..Overrides::default()
    };
    let mut command = served.command(overrides).await?;
    command.stdin = true;
    Ok(command)
}
