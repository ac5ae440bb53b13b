//! The calls of `process.Process`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::future::ready;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use micabox::{Command, EnvChange, Error, FileKind, Overrides, StartFailure, TtySize};
use micabox_async::{ExecOptions, Stdio};
use rustix::process::Signal;
use serde::de::Visitor;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::accounts::Caller;
use super::kept::Note;
use super::login;
use super::output::Received;
use super::table::{Process, Selector, outputs};
use crate::e2b::connect::{self, Messages, Timing};
use crate::e2b::http::{Answer, Nothing, Request};
use crate::e2b::incoming::Incoming;
use crate::e2b::map;
use crate::e2b::places;
use crate::e2b::problem::{Kind, Problem};
use crate::e2b::sandbox::Served;
use crate::e2b::server::Server;

/// The shell that E2B's clients name, and one that more images have.
const BASH: &str = "/bin/bash";
const SH: &str = "/bin/sh";

/// A command that a client asks for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Start {
    process: Config,
    pty: Option<Pty>,
    tag: Option<String>,
    /// Older clients don't say it, and have one.
    stdin: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    cmd: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default, deserialize_with = "map::unique")]
    envs: BTreeMap<String, String>,
    cwd: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pty {
    size: Size,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Size {
    cols: u16,
    rows: u16,
}

impl From<Size> for TtySize {
    fn from(size: Size) -> Self {
        Self {
            rows: size.rows,
            columns: size.cols,
        }
    }
}

/// The field of calls for a command that runs.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ask {
    process: Which,
}

/// The fields of `SendInput`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SendInput {
    process: Which,
    input: Input,
}

/// The fields of `SendSignal`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SignalTo {
    process: Which,
    signal: Named,
}

/// The fields of `Update`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Update {
    process: Which,
    pty: Option<Pty>,
}

/// A signal's name or number.
#[derive(Debug)]
enum Named {
    Name(String),
    Number(i64),
}

impl<'de> Deserialize<'de> for Named {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = Named;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a signal's name or number")
            }

            fn visit_str<E>(self, name: &str) -> Result<Named, E> {
                Ok(Named::Name(name.to_owned()))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Named, E> {
                Ok(Named::Number(number))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Named, E> {
                Ok(Named::Number(i64::try_from(number).unwrap_or(0)))
            }
        }
        from.deserialize_any(Either)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Which {
    pid: Option<u32>,
    tag: Option<String>,
}

/// Bytes in base64 for a stdin or a terminal.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Input {
    stdin: Option<String>,
    pty: Option<String>,
}

/// A message of a stream of input.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Streamed {
    start: Option<Begin>,
    data: Option<More>,
    #[serde(rename = "keepalive")]
    _keepalive: Option<Nothing>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Begin {
    process: Which,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct More {
    input: Input,
}

/// Answers a call.
pub async fn answer(
    server: Arc<Server>,
    served: Served,
    user: Option<String>,
    call: &str,
    request: Request,
) -> Answer {
    let places = &server.bounds.commands;
    server.processes.take_over(places, &served).await;
    let (head, body) = request.into_parts();
    let timing = Timing::of(&head.headers)?;
    let keepalive = json!({"event": {"keepalive": {}}});
    let (all, of) = (&server, &served);
    match call {
        "Start" => {
            let started = start(&server, served, user, body, timing).await;
            Ok(connect::relay(started, timing, &keepalive))
        }
        "Connect" => {
            let ask = Messages::new(body).only::<Ask>().await;
            let received = match ask.and_then(|ask| ask.process.find(all, of)) {
                Ok(process) => process.receive(&all.processes).await,
                Err(problem) => Err(problem),
            };
            Ok(connect::relay(received, timing, &keepalive))
        }
        "StreamInput" => Ok(connect::one(stream_input(all, of, body).await)),
        "List" => connect::call(body, |Nothing {}| ready(Ok(list(all, of)))).await,
        "SendInput" => {
            let send = |ask: SendInput| async move {
                let process = ask.process.find(all, of)?;
                let bytes = ask.input.bytes(&process)?;
                process.write_soon(&bytes).await?;
                Ok(json!({}))
            };
            connect::call(body, send).await
        }
        "CloseStdin" => {
            let close = |ask: Ask| async move {
                ask.process.find(all, of)?.close().await?;
                Ok(json!({}))
            };
            connect::call(body, close).await
        }
        "SendSignal" => {
            let signal = |ask: SignalTo| {
                let signaled = ask.signal.known().and_then(|signal| {
                    ask.process.find(all, of)?.signal(signal);
                    Ok(json!({}))
                });
                ready(signaled)
            };
            connect::call(body, signal).await
        }
        "Update" => {
            let update = |ask: Update| {
                let updated = ask.process.find(all, of).map(|process| {
                    if let Some(pty) = ask.pty.filter(|_| process.has_terminal()) {
                        process.handle().resize(pty.size.into());
                    }
                    json!({})
                });
                ready(updated)
            };
            connect::call(body, update).await
        }
        call => connect::unknown(call),
    }
}

impl Which {
    fn find(&self, server: &Server, served: &Served) -> Result<Arc<Process>, Problem> {
        let which = match (&self.pid, &self.tag) {
            (Some(pid), None) => Selector::Pid(*pid),
            (None, Some(tag)) => Selector::Tag(tag.clone()),
            (None, None) => return Err(Problem::invalid("neither a pid nor a tag is given")),
            (Some(_), Some(_)) => return Err(Problem::invalid("a pid and a tag are given")),
        };
        server.processes.find(served.id(), &which)
    }
}

impl Named {
    fn known(&self) -> Result<Signal, Problem> {
        let signals = [
            ("SIGNAL_SIGTERM", Signal::TERM),
            ("SIGNAL_SIGKILL", Signal::KILL),
        ];
        let found = signals.into_iter().find(|(name, signal)| match self {
            Self::Name(given) => given == name,
            Self::Number(given) => *given == i64::from(signal.as_raw()),
        });
        let unknown = || Problem::unsupported("the signals here are SIGTERM and SIGKILL");
        found.map(|(_, signal)| signal).ok_or_else(unknown)
    }
}

impl Input {
    fn bytes(&self, process: &Process) -> Result<Vec<u8>, Problem> {
        let encoded = match (&self.stdin, &self.pty) {
            (Some(bytes), None) if !process.has_terminal() => bytes,
            (None, Some(bytes)) if process.has_terminal() => bytes,
            _ => {
                let message =
                    "the command has a stdin or a terminal, and the input is for the other";
                return Err(Problem::invalid(message));
            }
        };
        let bytes = STANDARD.decode(encoded);
        bytes.map_err(|_| Problem::invalid("the input is not in base64"))
    }
}

fn list(server: &Server, served: &Served) -> Value {
    let all = server.processes.of(served.id()).into_iter().map(|process| {
        let note = &process.note;
        let mut shown = json!({"pid": process.pid(), "config": note.config});
        if let (Some(tag), Some(shown)) = (&note.tag, shown.as_object_mut()) {
            shown.insert("tag".to_owned(), json!(tag));
        }
        shown
    });
    json!({"processes": all.collect::<Vec<_>>()})
}

async fn stream_input(server: &Server, served: &Served, body: Incoming) -> Result<Value, Problem> {
    let mut messages = Messages::new(body);
    let mut process: Option<Arc<Process>> = None;
    loop {
        let message = match &process {
            None => messages.next::<Streamed>().await?,
            Some(process) => tokio::select! {
                biased;
                message = messages.next::<Streamed>() => message?,
                () = process.over() => return Err(Problem::not_found("the command has ended")),
            },
        };
        let Some(message) = message else {
            return Ok(json!({}));
        };
        if let Some(begin) = message.start {
            process = Some(begin.process.find(server, served)?);
            messages.be_patient();
        }
        if let Some(more) = message.data {
            let missing = || Problem::invalid("the stream does not begin with a process");
            let process = process.as_ref().ok_or_else(missing)?;
            let bytes = more.input.bytes(process)?;
            // Others wait for the room of one that is large.
            if messages.is_large() {
                process.write_soon(&bytes).await?;
            } else {
                process.write(&bytes).await?;
            }
        }
    }
}

async fn start(
    server: &Arc<Server>,
    served: Served,
    user: Option<String>,
    body: Incoming,
    timing: Timing,
) -> Result<Received, Problem> {
    let room = server.bounds.commands.take(served.id())?;
    let start: Start = Messages::new(body).only().await?;
    let config = json!({
        "cmd": start.process.cmd,
        "args": start.process.args,
        "envs": start.process.envs,
        "cwd": start.process.cwd,
    });
    let note = Note::new(config, start.tag.clone(), timing.timeout);
    let command = start.command(&served, user.as_deref()).await?;
    // Its place is taken until the guest has answered, also where the client has left before.
    let begun = tokio::spawn(begin(Arc::clone(server), served, command, note, room));
    let failed = |_| Problem::new(Kind::Internal, "a task has failed");
    begun.await.map_err(failed)?
}

async fn begin(
    server: Arc<Server>,
    served: Served,
    mut command: Command,
    note: Note,
    room: places::Permit,
) -> Result<Received, Problem> {
    let sandbox = served.connect().await?;
    let commands = sandbox.commands();
    let is_bash = command.argv.first().is_some_and(|name| name == BASH);
    // It goes on without this process, with its stdin open. Other servers find it by its note.
    let begin = |command: &Command| {
        let options = ExecOptions {
            stdin: if command.stdin {
                Stdio::Piped
            } else {
                Stdio::Null
            },
            detach: true,
            fallback: if is_bash { SH.into() } else { OsString::new() },
            note: note.text(),
            ..outputs(command.tty.is_some())
        };
        let (commands, command) = (commands.clone(), command.clone());
        async move { commands.spawn_with(&command, options).await }
    };
    let running = match begin(&command).await {
        // It has a file, and no loader; or its owner is of an earlier version, which knows no fallback.
        Err(Error::Start(failed)) if is_bash && failed.reason == StartFailure::NotFound => {
            if let Some(name) = command.argv.first_mut() {
                *name = SH.into();
            }
            begin(&command).await
        }
        first => first,
    };
    let (all, mut running) = (&server.processes, running?);
    let process = all.follow(sandbox, &mut running, note, room);
    process.begun(all, running)
}

impl Start {
    /// Makes the command, with what E2B tells commands about their sandbox.
    async fn command(&self, served: &Served, user: Option<&str>) -> Result<Command, Problem> {
        let caller = Caller::of(served, user).await?;
        let config = &self.process;
        let workdir = match &config.cwd {
            Some(path) => {
                let path = caller.path(path).await?;
                let missing =
                    || Problem::invalid(format!("cwd '{}' does not exist", path.display()));
                match caller.files().stat(&path).await {
                    Ok(stat) if stat.kind == FileKind::Directory => path,
                    Ok(_) | Err(Error::File { .. }) => return Err(missing()),
                    Err(error) => return Err(error.into()),
                }
            }
            None => caller.base().to_owned(),
        };
        let told = [
            ("USER", caller.name()),
            ("LOGNAME", caller.name()),
            ("E2B_SANDBOX", "true"),
            ("E2B_SANDBOX_ID", served.id()),
            ("E2B_TEMPLATE_ID", &served.label.template),
        ];
        let given = config.envs.iter();
        let given = given.map(|(name, value)| (name.as_str(), value.as_str()));
        let env = told.into_iter().chain(given);
        let argv = std::iter::once(&config.cmd).chain(&config.args);
        let overrides = Overrides {
            args: argv.map(Into::into).collect(),
            env: env
                .map(|(name, value)| EnvChange::Set(name.into(), value.into()))
                .collect(),
            user: Some(caller.user.clone()),
            workdir: Some(workdir.into()),
            ..Overrides::default()
        };
        let mut command = served.command(overrides).await?;
        login::keep_path(&mut command);
        // An account's own is made.
        command.make_workdir = config.cwd.is_none();
        command.tty = self.pty.map(|pty| pty.size.into());
        command.stdin = self.pty.is_some() || self.stdin.unwrap_or(true);
        Ok(command)
    }
}
