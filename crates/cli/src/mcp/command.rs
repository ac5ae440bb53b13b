//! The tool `run_command`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use micabox::{Command, EnvChange, Overrides};
use rmcp::schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Server;
use super::call::Call;
use super::job::{Job, News};
use super::progress::Step;
use super::tool::{Effect, Tool};
use crate::failure::Failure;

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
    /// Working directory, which must be there; the image's unless given.
    workdir: Option<String>,
    /// Name or number of a user, optionally with :group; the image's unless given.
    user: Option<String>,
    /// Variables of the environment, beside those of the image and the sandbox.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Seconds after which the command is ended; none unless given.
    timeout: Option<f64>,
    /// Whether to return at once, and not at the command's end: read_output reads what it writes, `kill_command` ends
    /// it. It ends with this session.
    #[serde(default)]
    background: bool,
}

/// What a command has written, and how it ended.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub struct Ran {
    /// The number of a command in the background.
    command: Option<u64>,
    /// Whether it still runs.
    running: bool,
    /// The exit code; 128 and the signal's number if a signal ended the command.
    exit_code: Option<i32>,
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
    /// Whether `stdout` is what was written; else bytes that are not UTF-8 are replaced in it.
    stdout_is_utf8: bool,
    /// The same of `stderr`.
    stderr_is_utf8: bool,
}

impl Ran {
    /// Makes a result.
    pub fn new(command: Option<u64>, news: News) -> Self {
        let News {
            end,
            stdout,
            stderr,
        } = news;
        Self {
            command,
            running: end.is_none(),
            exit_code: end.map(|end| end.code),
            timed_out: end.is_some_and(|end| end.timed_out),
            stdout: stdout.text,
            stderr: stderr.text,
            stdout_left_out: stdout.left_out,
            stderr_left_out: stderr.left_out,
            stdout_is_utf8: stdout.is_utf8,
            stderr_is_utf8: stderr.is_utf8,
        }
    }

    /// Returns the result as a person reads it.
    pub fn readable(&self) -> String {
        let mut text = match (self.exit_code, self.command) {
            (Some(code), _) if self.timed_out => format!("ended by the timeout, exit code {code}"),
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(command)) => format!("command {command} runs in the background"),
            (None, None) => "it runs".to_owned(),
        };
        for (name, output, is_utf8) in [
            ("stdout", &self.stdout, self.stdout_is_utf8),
            ("stderr", &self.stderr, self.stderr_is_utf8),
        ] {
            if !output.is_empty() {
                let note = if is_utf8 {
                    ""
                } else {
                    " (bytes that are not UTF-8 are replaced)"
                };
                let _ = write!(text, "\n\n{name}{note}:\n{output}");
            }
        }
        text
    }
}

impl Tool for RunCommand {
    const NAME: &'static str = "run_command";
    const DESCRIPTION: &'static str = "Runs a command in a running sandbox and waits for its end: exit code, \
        stdout and stderr. A command that fails is a result, not an error. Cancelling the call kills the \
        command. With `background`, it returns at once, and the command goes on: for servers, and for what takes \
        longer than a call may.";
    const EFFECT: Effect = Effect::Changes;
    type Output = Ran;

    fn call(mut self, server: &Server, call: &Call) -> Result<Ran, Failure> {
        let timeout = seconds("timeout", self.timeout)?;
        let stdin = self.stdin.take();
        let is_background = self.background;
        let name = self.sandbox.clone();
        let overrides = self.overrides()?;
        let sandbox = server.sandbox(&name)?;
        let mut command = sandbox.command(&overrides)?;
        command.stdin = stdin.is_some();
        let start = |heard: Heard| start(server, &sandbox, &command, stdin, timeout, heard);
        if is_background {
            return server.background.start(|| start(Heard::default()), call);
        }
        let job = start(Heard {
            started: Some(Instant::now()),
            steps: call.steps(),
        })?;
        let killed = Arc::clone(&job);
        let _watch = call.when_cancelled(move || killed.kill());
        job.wait(None, || true);
        Ok(Ran::new(None, job.news()?))
    }

    fn readable(ran: &Ran) -> Vec<String> {
        vec![ran.readable()]
    }
}

impl RunCommand {
    fn overrides(self) -> Result<Overrides, Failure> {
        let argv = match (self.command, self.argv) {
            (Some(script), None) => vec![SHELL.to_owned(), "-c".to_owned(), script],
            (None, Some(argv)) => argv,
            _ => return Err(Failure::new("run_command needs either `command` or `argv`")),
        };
        let variables = self.env.into_iter();
        Ok(Overrides {
            args: argv.into_iter().map(Into::into).collect(),
            env: variables
                .map(|(name, value)| EnvChange::Set(name.into(), value.into()))
                .collect(),
            user: self.user,
            workdir: self.workdir.map(Into::into),
            ..Overrides::default()
        })
    }
}

/// Starts a command, unless too many run.
fn start(
    server: &Server,
    sandbox: &micabox::SandboxRef,
    command: &Command,
    stdin: Option<String>,
    timeout: Option<Duration>,
    heard: Heard,
) -> Result<Arc<Job>, Failure> {
    let place = Arc::clone(&server.commands).try_acquire_owned();
    let place = place.map_err(|_| {
        Failure::new(format!("{} commands run in this session", super::COMMANDS))
            .hint("kill_command ends one that runs in the background")
    })?;
    Job::start(
        sandbox,
        command,
        stdin,
        timeout,
        move |line| heard.line(line),
        place,
    )
}

/// Parses a number of seconds.
pub fn seconds(name: &str, given: Option<f64>) -> Result<Option<Duration>, Failure> {
    let parsed = given.map(|seconds| {
        let time = Duration::try_from_secs_f64(seconds).ok();
        time.filter(|time| !time.is_zero())
            .ok_or_else(|| Failure::new(format!("`{name}` is not a positive number of seconds")))
    });
    parsed.transpose()
}

/// Tells of a command's last line, as the progress of the call.
#[derive(Debug, Default)]
struct Heard {
    started: Option<Instant>,
    steps: Option<tokio::sync::watch::Sender<Step>>,
}

impl Heard {
    fn line(&self, line: &str) {
        if let (Some(steps), Some(started)) = (&self.steps, self.started) {
            steps.send_replace(Step::new(started.elapsed().as_secs_f64(), None, line));
        }
    }
}
