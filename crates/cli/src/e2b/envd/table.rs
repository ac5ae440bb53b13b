//! The commands of this server's clients, and the clients that receive their output.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use micabox::{ExitStatus, Handle};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

use super::kept::{Known, Note};
use super::running::{Input, Running, ended};
use crate::e2b::connect::{self, Piece};
use crate::e2b::places::Place;
use crate::e2b::problem::{Kind, Problem};

/// The most clients that may be attached to one command.
const CLIENTS: usize = 64;

/// Bytes of output that are read at a time.
const PIECE: usize = 32 << 10;

/// Pieces of output that wait for a client. The command waits for the slowest.
const PIECES: usize = 4;

/// How long a command may leave a client's input unread.
const UNREAD: Duration = Duration::from_secs(60);

/// Grace between reporting a time-out to the client and killing the command.
const LAG: Duration = Duration::from_millis(200);

/// All commands.
#[derive(Debug, Default)]
pub struct Processes {
    /// By sandbox and process ID.
    all: Mutex<HashMap<(String, u32), Arc<Process>>>,
    pub known: Known,
}

/// A command that runs.
#[derive(Debug)]
pub struct Process {
    pub pid: u32,
    pub note: Note,
    pub has_terminal: bool,
    pub handle: Handle,
    /// None once it is closed.
    stdin: Mutex<Option<Arc<Input>>>,
    /// Whose input is written: what one client sends is in one piece.
    turn: tokio::sync::Mutex<()>,
    /// Tells the end of its stdin.
    closed: Notify,
    /// None once it is over.
    clients: Mutex<Option<Vec<mpsc::Sender<Piece>>>>,
    /// Tells its end.
    over: Notify,
    _place: Place,
}

impl Processes {
    /// Follows a command to its end, which is that of its time at the latest. Returns what its first client
    /// hears.
    pub fn follow(
        self: &Arc<Self>,
        sandbox: &str,
        running: Running,
        note: Note,
        place: Place,
    ) -> Result<mpsc::Receiver<Piece>, Problem> {
        let time = note.left();
        let process = Arc::new(Process {
            pid: running.pid,
            note,
            has_terminal: running.stderr.is_none(),
            handle: running.handle,
            stdin: Mutex::new(running.stdin.map(Arc::new)),
            turn: tokio::sync::Mutex::default(),
            closed: Notify::new(),
            clients: Mutex::new(Some(Vec::new())),
            over: Notify::new(),
            _place: place,
        });
        let rest = process.hear()?;
        if let Some(time) = time {
            process.limit(time);
        }
        let key = (sandbox.to_owned(), process.pid);
        self.lock().insert(key.clone(), Arc::clone(&process));
        let all = Arc::clone(self);
        tokio::spawn(async move {
            let end = process.pass_on(running.stdout, running.stderr).await;
            {
                let mut all = all.lock();
                // Another command may have its process ID by now.
                if all
                    .get(&key)
                    .is_some_and(|other| Arc::ptr_eq(other, &process))
                {
                    all.remove(&key);
                }
            }
            process.finish(end).await;
        });
        Ok(rest)
    }

    /// Finds a command by its process ID or tag.
    pub fn find(&self, sandbox: &str, which: &Selector) -> Result<Arc<Process>, Problem> {
        let all = self.lock();
        let found = match which {
            Selector::Pid(pid) => all.get(&(sandbox.to_owned(), *pid)),
            Selector::Tag(tag) => all
                .iter()
                .find(|((of, _), process)| of == sandbox && process.note.tag.as_ref() == Some(tag))
                .map(|(_, process)| process),
        };
        let unknown = || Problem::not_found(format!("process with {which} not found"));
        found.map(Arc::clone).ok_or_else(unknown)
    }

    /// Returns all of a sandbox.
    pub fn of(&self, sandbox: &str) -> Vec<Arc<Process>> {
        let all = self.lock();
        let ours = all.iter().filter(|((of, _), _)| of == sandbox);
        ours.map(|(_, process)| Arc::clone(process)).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<(String, u32), Arc<Process>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a client names a command.
#[derive(Debug)]
pub enum Selector {
    Pid(u32),
    Tag(String),
}

impl std::fmt::Display for Selector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Pid(pid) => write!(f, "pid {pid}"),
            Self::Tag(tag) => write!(f, "tag {tag}"),
        }
    }
}

impl Process {
    /// Returns the command's output from now on, after a message that it runs.
    pub fn hear(&self) -> Result<mpsc::Receiver<Piece>, Problem> {
        let mut clients = self.lock();
        let over = || Problem::not_found(format!("process with pid {} not found", self.pid));
        let clients = clients.as_mut().ok_or_else(over)?;
        clients.retain(|client| !client.is_closed());
        if clients.len() == CLIENTS {
            let message = format!("the command has {CLIENTS} clients already");
            return Err(Problem::new(Kind::TooMany, message));
        }
        let (client, rest) = mpsc::channel(PIECES);
        let start = event(&json!({"start": {"pid": self.pid}}));
        let _ = client.try_send(Piece::Message(start));
        clients.push(client);
        Ok(rest)
    }

    /// Passes output on until the command has ended.
    async fn pass_on(
        &self,
        mut stdout: Receiver,
        stderr: Option<Receiver>,
    ) -> Result<ExitStatus, Problem> {
        let name = if self.has_terminal { "pty" } else { "stdout" };
        let errors = async {
            if let Some(mut stderr) = stderr {
                self.copy(&mut stderr, "stderr").await;
            }
        };
        tokio::join!(self.copy(&mut stdout, name), errors);
        ended(&self.handle).await
    }

    async fn copy(&self, from: &mut Receiver, name: &str) {
        let mut buffer = vec![0; PIECE];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let bytes = buffer.get(..count).unwrap_or_default();
            let data = STANDARD.encode(bytes);
            self.tell(&event(&json!({"data": {name: data}}))).await;
        }
    }

    async fn tell(&self, message: &Bytes) {
        let clients = self.lock().clone().unwrap_or_default();
        for client in clients {
            // One that has left needs nothing.
            let _ = client.send(Piece::Message(message.clone())).await;
        }
    }

    /// Waits for its end.
    pub async fn over(&self) {
        let over = self.over.notified();
        if self.lock().is_some() {
            over.await;
        }
    }

    async fn finish(&self, end: Result<ExitStatus, Problem>) {
        let clients = self.lock().take().unwrap_or_default();
        self.over.notify_waiters();
        self.take_stdin();
        for client in clients {
            match &end {
                Ok(status) => {
                    let _ = client.send(Piece::Message(event(&exit(*status)))).await;
                    let _ = client.send(Piece::End(None)).await;
                }
                Err(problem) => {
                    let _ = client.send(Piece::End(Some(problem.clone()))).await;
                }
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Vec<mpsc::Sender<Piece>>>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes to its stdin or terminal, as it reads, or until that is closed.
    pub async fn write(&self, bytes: &[u8]) -> Result<(), Problem> {
        let _turn = self.turn.lock().await;
        let end = self.closed.notified();
        let input = self.stdin().as_ref().map(Arc::clone);
        let input = input.ok_or_else(closed)?;
        tokio::select! {
            biased;
            written = input.write(bytes) => written.map_err(|_| closed()),
            () = end => Err(closed()),
        }
    }

    /// The same for a client that does not wait for long: the command need not read.
    pub async fn write_soon(&self, bytes: &[u8]) -> Result<(), Problem> {
        let late = |_| Problem::new(Kind::Deadline, "the command does not read its input");
        timeout(UNREAD, self.write(bytes)).await.map_err(late)?
    }

    /// Ends its stdin.
    pub fn close(&self) -> Result<(), Problem> {
        if self.has_terminal {
            let message = "a terminal's input does not end: send it Ctrl-D";
            return Err(Problem::new(Kind::Conflict, message));
        }
        let stdin = self.take_stdin().ok_or_else(closed)?;
        stdin.end();
        Ok(())
    }

    fn take_stdin(&self) -> Option<Arc<Input>> {
        let stdin = self.stdin().take();
        self.closed.notify_waiters();
        stdin
    }

    fn stdin(&self) -> std::sync::MutexGuard<'_, Option<Arc<Input>>> {
        self.stdin.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends it a signal, and all that it has started and that is in no process group of its own.
    pub fn signal(&self, signal: Signal) {
        self.handle.signal(signal.as_raw());
    }

    /// Kills it after this time, once its client has heard that it is over.
    fn limit(self: &Arc<Self>, time: Duration) {
        let process = Arc::downgrade(self);
        tokio::spawn(async move {
            tokio::time::sleep(time.saturating_add(LAG)).await;
            if let Some(process) = process.upgrade() {
                process.signal(Signal::KILL);
            }
        });
    }
}

fn closed() -> Problem {
    Problem::new(Kind::Conflict, "the command has no stdin, or it is closed")
}

/// A message of a command's stream.
fn event(event: &Value) -> Bytes {
    connect::message(&json!({"event": event}))
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
