//! The tool `run_command`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use micabox::{Command, EnvChange, Overrides};
use micabox_async::Sandbox;
use rmcp::schemars::JsonSchema;
use serde::Deserialize;

use super::call::Call;
use super::job::Job;
use super::progress::Step;
use super::ran::Ran;
use super::server::{COMMANDS, Server};
use super::tool::{Effect, Tool, Waiting};
use micabox_program::failure::Failure;

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

impl Tool for RunCommand {
    const NAME: &'static str = "run_command";
    const DESCRIPTION: &'static str = "Runs a command in a running sandbox and waits for its end: exit code, \
        stdout and stderr. A command that fails is a result, not an error. Cancelling the call kills the \
        command. With `background`, it returns at once, and the command goes on: for servers, and for what takes \
        longer than a call may.";
    const EFFECT: Effect = Effect::Changes;
    type Output = Ran;

    fn readable(ran: &Ran) -> Vec<String> {
        vec![ran.readable()]
    }
}

impl Waiting for RunCommand {
    async fn call(mut self, server: &Server, call: &Call) -> Result<Ran, Failure> {
        let timeout = seconds("timeout", self.timeout)?;
        let stdin = self.stdin.take();
        let is_background = self.background;
        let name = self.sandbox.clone();
        let overrides = self.overrides()?;
        let (sandbox, mut command) = server.command(name, overrides).await?;
        command.stdin = stdin.is_some();
        let progress = if is_background {
            LineProgress::default()
        } else {
            LineProgress {
                started: Some(Instant::now()),
                steps: call.steps(),
            }
        };
        let job = start(server, &sandbox, &command, stdin, timeout, progress).await?;
        if is_background {
            return server.background.keep(job, call);
        }
        tokio::select! {
            () = job.ended() => {}
            () = call.cancelled() => {
                job.kill();
                job.ended().await;
            }
        }
        Ok(Ran::new(None, job.news()?))
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
async fn start(
    server: &Server,
    sandbox: &Sandbox,
    command: &Command,
    stdin: Option<String>,
    timeout: Option<Duration>,
    progress: LineProgress,
) -> Result<Arc<Job>, Failure> {
    let place = Arc::clone(&server.commands).try_acquire_owned();
    let place = place.map_err(|_| {
        Failure::new(format!("{} commands run in this session", COMMANDS))
            .hint("kill_command ends one that runs in the background")
    })?;
    Job::start(
        sandbox,
        command,
        stdin,
        timeout,
        move |line| progress.report(line),
        place,
    )
    .await
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

/// Reports a command's last line, as the progress of the call.
#[derive(Debug, Default)]
struct LineProgress {
    started: Option<Instant>,
    steps: Option<tokio::sync::watch::Sender<Step>>,
}

impl LineProgress {
    fn report(&self, line: &str) {
        if let (Some(steps), Some(started)) = (&self.steps, self.started) {
            steps.send_replace(Step::new(started.elapsed().as_secs_f64(), None, line));
        }
    }
}
