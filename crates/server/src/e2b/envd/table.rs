//! The commands of this server's clients.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use micabox::Error;
use micabox_async::{ExecOptions, Handle, Sandbox, Stdin, Stdio};
use micabox_ground::lock;
use rustix::process::Signal;
use tokio::io::AsyncWriteExt;
use tokio::sync::{Mutex as Turns, Semaphore};
use tokio::time::timeout;

use super::kept::{Known, Note};
use super::output::Received;
use crate::e2b::owners;
use crate::e2b::places::Permit;
use crate::e2b::problem::{Kind, Problem};

/// The most clients that may be attached to one command.
const CLIENTS: usize = 64;

/// Bytes of each output that wait for a client. The command waits for the slowest.
pub const WINDOW: u32 = 64 << 10;

/// How long a command may leave a client's input unread.
const UNREAD: Duration = Duration::from_secs(60);

/// Grace between reporting a time-out to the client and killing the command.
const LAG: Duration = Duration::from_millis(200);

/// All commands.
#[derive(Debug, Default)]
pub struct Processes {
    all: Mutex<HashMap<Key, Arc<Process>>>,
    pub known: Known,
}

/// A sandbox's ID, and a process ID in it.
type Key = (String, u32);

/// A command that runs.
#[derive(Debug)]
pub struct Process {
    pub note: Note,
    key: Key,
    has_terminal: bool,
    sandbox: Sandbox,
    handle: Handle,
    /// None without one, and after its end. What one client sends is in one piece.
    stdin: Turns<Option<Stdin>>,
    clients: Arc<Semaphore>,
    _permit: Permit,
}

/// The options of a command's outputs for one client.
pub fn outputs(has_terminal: bool) -> ExecOptions {
    ExecOptions {
        stdout: Stdio::Piped,
        stderr: if has_terminal {
            Stdio::Null
        } else {
            Stdio::Piped
        },
        window: WINDOW,
        // A client that does not read is given up by this server.
        output_outlives_kill: true,
        ..ExecOptions::default()
    }
}

impl Processes {
    /// Follows a command to its end, which is that of its time at the latest. `running` has been started for a client, or
    /// attached to for none.
    pub fn follow(
        self: &Arc<Self>,
        sandbox: Sandbox,
        running: &mut micabox_async::Process,
        note: Note,
        permit: Permit,
    ) -> Arc<Process> {
        let process = Arc::new(Process {
            note,
            key: (sandbox.id().to_owned(), running.pid()),
            has_terminal: running.has_terminal(),
            sandbox,
            handle: running.handle(),
            stdin: Turns::new(running.stdin.take()),
            clients: Arc::new(Semaphore::new(CLIENTS)),
            _permit: permit,
        });
        self.lock()
            .insert(process.key.clone(), Arc::clone(&process));
        let (all, followed) = (Arc::clone(self), Arc::clone(&process));
        tokio::spawn(async move {
            followed.limit().await;
            all.remove(&followed);
            // A connection may end before its sandbox.
            if followed.is_lost() && owners::connect(followed.sandbox.found()).await.is_ok() {
                all.known.again(&followed.key.0);
            }
        });
        process
    }

    /// Removes a command that is over.
    pub fn remove(&self, process: &Arc<Process>) {
        let mut all = self.lock();
        // Another command may have its process ID by now.
        let is_it = |other: &Arc<Process>| Arc::ptr_eq(other, process);
        if all.get(&process.key).is_some_and(is_it) {
            all.remove(&process.key);
        }
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

    /// Returns whether a command with this process ID is known.
    pub fn has(&self, sandbox: &str, pid: u32) -> bool {
        self.lock().contains_key(&(sandbox.to_owned(), pid))
    }

    /// Returns all of a sandbox.
    pub fn of(&self, sandbox: &str) -> Vec<Arc<Process>> {
        let all = self.lock();
        let ours = all.iter().filter(|((of, _), _)| of == sandbox);
        ours.map(|(_, process)| Arc::clone(process)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Arc<Process>>> {
        lock(&self.all)
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
    pub fn pid(&self) -> u32 {
        self.key.1
    }

    pub fn has_terminal(&self) -> bool {
        self.has_terminal
    }

    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Returns its output from when it was started, for the client that did.
    pub fn begun(
        self: &Arc<Self>,
        all: &Arc<Processes>,
        running: micabox_async::Process,
    ) -> Result<Received, Problem> {
        let permit = Arc::clone(&self.clients).try_acquire_owned();
        let permit = permit.map_err(|_| too_many())?;
        Ok(Received::new(all, self, running, permit))
    }

    /// Returns its output from now on.
    pub async fn receive(self: &Arc<Self>, all: &Arc<Processes>) -> Result<Received, Problem> {
        let permit = Arc::clone(&self.clients).try_acquire_owned();
        let permit = permit.map_err(|_| too_many())?;
        let over = || Problem::not_found(format!("process with pid {} not found", self.pid()));
        let commands = self.sandbox.commands();
        let attached = commands.attach_with(self.pid(), outputs(self.has_terminal));
        match attached.await {
            // Another one may have its process ID by now.
            Ok(_) if self.is_over() => Err(over()),
            Ok(attached) => Ok(Received::new(all, self, attached, permit)),
            Err(Error::NoSuchCommand(_)) => Err(over()),
            Err(error) => Err(error.into()),
        }
    }

    fn is_lost(&self) -> bool {
        self.handle.try_wait().is_err()
    }

    fn is_over(&self) -> bool {
        !matches!(self.handle.try_wait(), Ok(None))
    }

    /// Waits for its end.
    pub async fn over(&self) {
        // It may end with its sandbox.
        let _ = self.handle.wait().await;
    }

    /// Writes to its stdin or terminal, as it reads, or until that is closed.
    pub async fn write(&self, bytes: &[u8]) -> Result<(), Problem> {
        let mut stdin = self.stdin.lock().await;
        let stdin = stdin.as_mut().ok_or_else(closed)?;
        stdin.write_all(bytes).await.map_err(|_| closed())
    }

    /// The same for a client that does not wait for long: the command need not read.
    pub async fn write_soon(&self, bytes: &[u8]) -> Result<(), Problem> {
        let late = |_| Problem::new(Kind::Deadline, "the command does not read its input");
        timeout(UNREAD, self.write(bytes)).await.map_err(late)?
    }

    /// Ends its stdin, also while something is written to it.
    pub async fn close(&self) -> Result<(), Problem> {
        if self.has_terminal {
            let message = "a terminal's input does not end: send it Ctrl-D";
            return Err(Problem::new(Kind::Conflict, message));
        }
        if self.is_over() {
            return Err(closed());
        }
        self.handle.end_stdin();
        let stdin = self.stdin.lock().await.take();
        stdin.map(drop).ok_or_else(closed)
    }

    /// Sends it a signal, and all that it has started and that is in no process group of its own.
    pub fn signal(&self, signal: Signal) {
        self.handle.signal(signal.as_raw());
    }

    /// Waits for its end, and kills it after its time, once its client knows that it is over.
    async fn limit(&self) {
        let Some(time) = self.note.left() else {
            return self.over().await;
        };
        if timeout(time.saturating_add(LAG), self.over())
            .await
            .is_err()
        {
            self.signal(Signal::KILL);
            self.over().await;
        }
    }
}

fn too_many() -> Problem {
    let message = format!("the command has {CLIENTS} clients already");
    Problem::new(Kind::TooMany, message)
}

fn closed() -> Problem {
    Problem::new(Kind::Conflict, "the command has no stdin, or it is closed")
}
