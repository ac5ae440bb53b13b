//! The tool `run_command`.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, Instant};

use micabox::{EnvChange, ExecOptions, ExitStatus, Handle, Overrides, Stdio};
use rmcp::schemars::JsonSchema;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::Server;
use super::call::Call;
use super::excerpt::Excerpt;
use super::progress::Step;
use super::tool::{Effect, Tool};
use crate::failure::Failure;
use crate::run::start_failure;

/// Time between the signal that asks a command to end, after its timeout, and SIGKILL.
const GRACE: Duration = Duration::from_secs(2);

/// How often a client is told at least that a command still runs.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// The program of a script.
const SHELL: &str = "/bin/sh";

/// Arguments.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub struct RunCommand {
    /// Name or ID of a running sandbox.
    sandbox: String,
    /// A script for `sh -c`. Give this or `argv`.
    command: Option<String>,
    /// A program and its arguments, for which no shell is needed. Give this or `command`.
    argv: Option<Vec<String>>,
    /// What the command reads from stdin; empty unless given.
    stdin: Option<String>,
    /// Working directory, made if missing; the image's unless given.
    workdir: Option<String>,
    /// Name or number of a user, optionally with :group; the image's unless given.
    user: Option<String>,
    /// Variables of the environment, beside those of the image and the sandbox.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Seconds after which the command is ended; none unless given.
    timeout: Option<f64>,
}

/// Result.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub struct Ran {
    /// The exit code; 128 and the signal's number if a signal ended the command.
    exit_code: i32,
    /// Whether it was ended by the timeout.
    timed_out: bool,
    /// What it wrote to stdout. A long one lacks its middle, and says so there.
    stdout: String,
    /// What it wrote to stderr, in the same way.
    stderr: String,
    /// How many bytes of stdout are left out.
    stdout_left_out: u64,
    /// How many bytes of stderr are left out.
    stderr_left_out: u64,
}

impl Tool for RunCommand {
    const NAME: &'static str = "run_command";
    const DESCRIPTION: &'static str = "Runs a command in a running sandbox and waits for its end: exit code, \
        stdout and stderr. A command that fails is a result, not an error. Cancelling the call kills the \
        command.";
    const EFFECT: Effect = Effect::Changes;
    type Output = Ran;

    fn call(self, server: &Server, call: &Call) -> Result<Ran, Failure> {
        let argv = match (self.command, self.argv) {
            (Some(script), None) => vec![SHELL.to_owned(), "-c".to_owned(), script],
            (None, Some(argv)) => argv,
            _ => return Err(Failure::new("run_command needs either `command` or `argv`")),
        };
        let timeout = match self.timeout {
            Some(seconds) => Some(
                Duration::try_from_secs_f64(seconds)
                    .ok()
                    .filter(|timeout| !timeout.is_zero())
                    .ok_or_else(|| Failure::new("`timeout` is not a positive number of seconds"))?,
            ),
            None => None,
        };
        let variables = self.env.into_iter();
        let overrides = Overrides {
            args: argv.into_iter().map(Into::into).collect(),
            env: variables
                .map(|(name, value)| EnvChange::Set(name.into(), value.into()))
                .collect(),
            user: self.user,
            workdir: self.workdir.map(Into::into),
            ..Overrides::default()
        };
        let sandbox = server.sandbox(&self.sandbox)?;
        let mut command = sandbox.command(&overrides)?;
        command.stdin = self.stdin.is_some();
        let options = ExecOptions {
            stdin: match self.stdin {
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
        let process = sandbox.exec_with(&command, options);
        let mut process = process.map_err(start_failure)?;
        let handle = process.handle();
        let killed = handle.clone();
        let _watch = call.when_cancelled(move || killed.signal(Signal::KILL.as_raw()));
        let heard = Heard {
            started,
            steps: call.steps(),
        };
        let (stdin, bytes) = (process.stdin.take(), self.stdin.unwrap_or_default());
        let (stdout, stderr) = (process.stdout.take(), process.stderr.take());
        let (status, stdout, stderr) = std::thread::scope(|scope| {
            scope.spawn(move || {
                // A command need not read it.
                stdin.map(|mut stdin| stdin.write_all(bytes.as_bytes()))
            });
            let read = |output: Option<_>| match output {
                Some(output) => Excerpt::read(output, |line| heard.line(line)),
                None => Ok(Excerpt::default()),
            };
            let stdout = scope.spawn(move || read(stdout));
            let stderr = scope.spawn(move || read(stderr));
            (heard.wait(&handle), stdout.join(), stderr.join())
        });
        // A sandbox that ended has the better reason.
        let status = status?;
        let text = |read: std::thread::Result<std::io::Result<Excerpt>>| {
            let read = read.unwrap_or_else(|_| Err(std::io::Error::other("a thread has failed")));
            read.map(Excerpt::finish)
                .map_err(|error| Failure::of(&error).context("reading the command's output"))
        };
        let ((stdout, stdout_left_out), (stderr, stderr_left_out)) = (text(stdout)?, text(stderr)?);
        let was_killed = status == ExitStatus::Signaled(Signal::KILL.as_raw());
        let is_late = timeout.is_some_and(|timeout| started.elapsed() >= timeout);
        let timed_out = handle.timed_out() || was_killed && is_late;
        Ok(Ran {
            exit_code: status.code(),
            timed_out,
            stdout,
            stderr,
            stdout_left_out,
            stderr_left_out,
        })
    }
}

/// Reports the progress of a command while it runs.
struct Heard {
    started: Instant,
    steps: Option<watch::Sender<Step>>,
}

impl Heard {
    /// An output has a new last line.
    fn line(&self, line: &str) {
        self.say(|done, _| Step::new(done, None, line));
    }

    fn say(&self, next: impl FnOnce(f64, &Step) -> Step) {
        if let Some(steps) = &self.steps {
            let done = self.started.elapsed().as_secs_f64();
            steps.send_modify(|step| *step = next(done, step));
        }
    }

    /// Waits for the command's end.
    fn wait(&self, handle: &Handle) -> Result<ExitStatus, Failure> {
        loop {
            if let Some(status) = handle.wait_timeout(HEARTBEAT)? {
                return Ok(status);
            }
            self.say(|done, last| last.later(done));
        }
    }
}
