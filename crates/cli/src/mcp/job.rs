//! A command with the ends of what it has written: for the call that started it, or for later ones.

use std::io::{self, Read, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use micabox::{Command, ExecOptions, ExitStatus, Handle, Output, SandboxRef, Stdio};
use rustix::process::Signal;
use tokio::sync::OwnedSemaphorePermit;

use super::excerpt::{Excerpt, Text, last_line};
use crate::failure::Failure;
use crate::run::start_failure;

/// Time between the signal that asks a command to end, after its timeout, and SIGKILL.
const GRACE: Duration = Duration::from_secs(2);

/// A command that was started.
#[derive(Debug)]
pub struct Job {
    handle: Handle,
    started: Instant,
    timeout: Option<Duration>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
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
    /// Starts a command, which counts as one that runs until it has ended. `heard` is told of the last line with each
    /// piece of an output.
    pub fn start(
        sandbox: &SandboxRef,
        command: &Command,
        stdin: Option<String>,
        timeout: Option<Duration>,
        heard: impl Fn(&str) + Send + Sync + 'static,
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
        let process = sandbox.exec_with(command, options);
        let mut process = process.map_err(start_failure)?;
        let job = Arc::new(Self {
            handle: process.handle(),
            started,
            timeout,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let heard: Arc<dyn Fn(&str) + Send + Sync> = Arc::new(heard);
        let (pipe, bytes) = (process.stdin.take(), stdin.unwrap_or_default());
        let outputs = [process.stdout.take(), process.stderr.take()];
        let begin = || {
            in_a_thread(move || {
                // A command need not read it.
                let _ = pipe.map(|mut pipe| pipe.write_all(bytes.as_bytes()));
                Ok(())
            })?;
            let readers = outputs.into_iter().enumerate().map(|(which, output)| {
                let (job, heard) = (Arc::clone(&job), Arc::clone(&heard));
                in_a_thread(move || {
                    output.map_or(Ok(()), |output| job.read(which, output, &*heard))
                })
            });
            let readers = readers.collect::<io::Result<Vec<_>>>()?;
            let job = Arc::clone(&job);
            in_a_thread(move || {
                job.attend(readers);
                drop(place);
                Ok(())
            })
        };
        begin().map_err(|error| {
            job.kill();
            Failure::of(&error).context("starting a thread for a command")
        })?;
        Ok(job)
    }

    /// Sends the command a signal, with what it has started.
    pub fn signal(&self, signal: i32) {
        self.handle.signal(signal);
    }

    /// Kills the command.
    pub fn kill(&self) {
        self.signal(Signal::KILL.as_raw());
    }

    /// Returns whether the command has ended, and all its output was read.
    pub fn has_ended(&self) -> bool {
        self.lock().end.is_some()
    }

    /// Waits for the command's end, until `deadline` if there is one, and while `may_wait`: see [`Job::wake`].
    pub fn wait(&self, deadline: Option<Instant>, may_wait: impl Fn() -> bool) {
        let mut state = self.lock();
        while state.end.is_none() && may_wait() {
            state = match deadline.map(|at| at.saturating_duration_since(Instant::now())) {
                None => {
                    let waited = self.changed.wait(state);
                    waited.unwrap_or_else(PoisonError::into_inner)
                }
                Some(Duration::ZERO) => return,
                Some(left) => {
                    let waited = self.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Has those who wait look whether they may.
    pub fn wake(&self) {
        // Between their look and their sleep they have it.
        drop(self.lock());
        self.changed.notify_all();
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

    /// Reads an output to its end.
    fn read(&self, which: usize, mut from: Output, heard: &dyn Fn(&str)) -> io::Result<()> {
        let mut buffer = vec![0; 64 << 10];
        loop {
            match from.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => {
                    let piece = buffer.get(..count).unwrap_or_default();
                    if let Some(output) = self.lock().outputs.get_mut(which) {
                        output.push(piece);
                    }
                    if let Some(line) = last_line(piece) {
                        heard(&line);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for the end of the outputs and of the command.
    fn attend(&self, readers: Vec<JoinHandle<io::Result<()>>>) {
        let read = readers.into_iter().try_for_each(|reader| {
            let failed = |_| Err(io::Error::other("a thread has failed"));
            reader.join().unwrap_or_else(failed)
        });
        // A sandbox that ended has the better reason.
        let end = self.handle.wait().map_err(Failure::from);
        let end = end.and_then(|status| match read {
            Ok(()) => Ok(self.end(status)),
            Err(error) => Err(Failure::of(&error).context("reading the command's output")),
        });
        self.lock().end = Some(end);
        self.changed.notify_all();
    }

    fn end(&self, status: ExitStatus) -> End {
        let was_killed = status == ExitStatus::Signaled(Signal::KILL.as_raw());
        let is_late = self
            .timeout
            .is_some_and(|timeout| self.started.elapsed() >= timeout);
        End {
            code: status.code(),
            timed_out: self.handle.timed_out() || was_killed && is_late,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn in_a_thread(
    work: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> io::Result<JoinHandle<io::Result<()>>> {
    std::thread::Builder::new().spawn(work)
}
