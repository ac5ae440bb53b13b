//! A command with the ends of what it has written: for the call that started it, or for later ones.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use micabox::{Command, Error, ExecOptions, ExitStatus, Stdio};
use micabox_async::{Handle, Output, Process, Sandbox};
use micabox_ground::lock;
use rustix::process::Signal;
use tokio::io::AsyncWriteExt;
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::excerpt::{Excerpt, Text, last_line};
use micabox_program::failure::Failure;

/// Time between the signal that asks a command to end, after its timeout, and SIGKILL.
const GRACE: Duration = Duration::from_secs(2);

/// A command that was started.
#[derive(Debug)]
pub struct Job {
    started: Instant,
    timeout: Option<Duration>,
    state: Mutex<State>,
    has_ended: watch::Sender<bool>,
}

#[derive(Debug)]
struct State {
    /// None once it has ended: nothing keeps the connection to its sandbox then.
    handle: Option<Handle>,
    /// What was not read yet of stdout and stderr.
    outputs: [Excerpt; 2],
    end: Option<Result<End, Failure>>,
}

/// How a command ended.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// The exit code; 128 and the signal's number if a signal ended it.
    pub code: i32,
    /// Whether it was ended by its timeout.
    pub timed_out: bool,
}

/// What a command has written since the last time, and how it ended if it has.
#[derive(Debug)]
pub struct News {
    pub end: Option<End>,
    pub stdout: Text,
    pub stderr: Text,
}

impl Job {
    /// Starts a command, which counts as one that runs until it has ended. `report` is given the last line of each
    /// piece of an output.
    pub async fn start(
        sandbox: &Sandbox,
        command: &Command,
        stdin: Option<String>,
        timeout: Option<Duration>,
        report: impl Fn(&str) + Send + Sync + 'static,
        place: OwnedSemaphorePermit,
    ) -> Result<Arc<Self>, Failure> {
        let options = ExecOptions {
            stdin: match stdin {
                Some(_) => Stdio::Piped,
                None => Stdio::Null,
            },
            stdout: Stdio::Piped,
            stderr: Stdio::Piped,
            timeout,
            grace: GRACE,
            ..ExecOptions::default()
        };
        let started = Instant::now();
        let process = sandbox.commands().spawn_with(command, options).await?;
        let job = Arc::new(Self {
            started,
            timeout,
            state: Mutex::new(State {
                handle: Some(process.handle()),
                outputs: Default::default(),
                end: None,
            }),
            has_ended: watch::Sender::new(false),
        });
        let followed = Arc::clone(&job);
        tokio::spawn(async move {
            followed
                .follow(process, stdin.unwrap_or_default(), &report)
                .await;
            drop(place);
        });
        Ok(job)
    }

    /// Sends the command a signal, with what it has started.
    pub fn signal(&self, signal: i32) {
        if let Some(handle) = &self.lock().handle {
            handle.signal(signal);
        }
    }

    /// Kills the command.
    pub fn kill(&self) {
        self.signal(Signal::KILL.as_raw());
    }

    /// Returns whether the command has ended, and all its output was read.
    pub fn has_ended(&self) -> bool {
        *self.has_ended.borrow()
    }

    /// Waits for the command's end.
    pub async fn ended(&self) {
        // Its other end is here.
        let _ = self
            .has_ended
            .subscribe()
            .wait_for(|has_ended| *has_ended)
            .await;
    }

    /// Takes what the command has written.
    ///
    /// # Errors
    /// If it has ended with its sandbox.
    pub fn news(&self) -> Result<News, Failure> {
        let mut state = self.lock();
        let end = state.end.clone().transpose()?;
        let [stdout, stderr] = &mut state.outputs;
        Ok(News {
            end,
            stdout: stdout.take(end.is_some()),
            stderr: stderr.take(end.is_some()),
        })
    }

    /// Writes the command's input, and reads its outputs, until its end.
    async fn follow(&self, mut process: Process, input: String, report: &(dyn Fn(&str) + Sync)) {
        let stdin = process.stdin.take();
        let (stdout, stderr) = (process.stdout.take(), process.stderr.take());
        let written = async {
            if let Some(mut stdin) = stdin {
                // A command need not read it.
                let _ = stdin.write_all(input.as_bytes()).await;
            }
        };
        let end = async {
            tokio::join!(self.read(0, stdout, report), self.read(1, stderr, report));
            self.end(&process.handle()).await
        };
        tokio::pin!(end);
        let end = tokio::select! {
            end = &mut end => end,
            () = written => end.await,
        };
        let mut state = self.lock();
        state.end = Some(end.map_err(Failure::from));
        state.handle = None;
        drop(state);
        self.has_ended.send_replace(true);
    }

    /// Reads an output to its end. Of an early one, the command has the reason.
    async fn read(&self, which: usize, from: Option<Output>, report: &(dyn Fn(&str) + Sync)) {
        let Some(mut from) = from else { return };
        while let Some(Ok(bytes)) = from.next().await {
            if let Some(output) = self.lock().outputs.get_mut(which) {
                output.push(&bytes);
            }
            if let Some(line) = last_line(&bytes) {
                report(&line);
            }
        }
    }

    async fn end(&self, handle: &Handle) -> Result<End, Error> {
        let status = handle.wait().await?;
        let was_killed = status == ExitStatus::Signaled(Signal::KILL.as_raw());
        let is_late = self
            .timeout
            .is_some_and(|timeout| self.started.elapsed() >= timeout);
        Ok(End {
            code: status.code(),
            timed_out: handle.timed_out().await? || was_killed && is_late,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}
