//! A command in a sandbox.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use micabox_wire::{Exec, ExitStatus, OutputStream, TtySize};

use crate::Error;
use crate::agent::{Moments, Shared};
use crate::error::Lost;

/// A running command. Dropping it leaves the command running, with its stdin closed
/// and its output thrown away.
#[derive(Debug)]
pub struct Process {
    /// The command's stdin, if it was started with one.
    pub stdin: Option<Stdin>,
    /// The command's stdout, or its terminal.
    pub stdout: Option<Output>,
    /// The command's stderr; empty with a terminal.
    pub stderr: Option<Output>,
    pid: u32,
    handle: Handle,
}

/// Everything that can be done to a command but reading and writing; can be cloned
/// and sent to other threads.
#[derive(Clone, Debug)]
pub struct Handle {
    command: Arc<Command>,
}

/// Writes a command's stdin. A write waits while the command does not read; one
/// after the command has closed its stdin or ended fails with `BrokenPipe`. Dropping
/// it closes the stdin.
#[derive(Debug)]
pub struct Stdin {
    command: Arc<Command>,
}

/// Reads what a command writes. The end comes when the command has ended. A command
/// whose output nobody reads is made to wait; dropping this throws the rest away.
#[derive(Debug)]
pub struct Output {
    command: Arc<Command>,
    stream: OutputStream,
}

/// What a command left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// Everything it wrote to stdout.
    pub stdout: Vec<u8>,
    /// Everything it wrote to stderr.
    pub stderr: Vec<u8>,
}

/// A command as the agent knows it; forgotten when nobody holds it.
struct Command {
    shared: Arc<Shared>,
    id: u32,
}

impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Command").field("id", &self.id).finish()
    }
}

impl Drop for Command {
    fn drop(&mut self) {
        self.shared.release(self.id);
    }
}

impl Process {
    /// Starts a command and waits until it runs.
    pub(crate) fn start(shared: Arc<Shared>, spec: Exec) -> Result<Self, Error> {
        let has_stdin = spec.stdin;
        let id = shared.exec(spec)?;
        Self::started(Command { shared, id }, has_stdin)
    }

    /// The command of this id, which the guest goes on with in a copy of its machine.
    pub(crate) fn adopted(shared: Arc<Shared>, id: u32) -> Result<Self, Error> {
        Self::started(Command { shared, id }, true)
    }

    fn started(command: Command, has_stdin: bool) -> Result<Self, Error> {
        let (id, command) = (command.id, Arc::new(command));
        let pid = command.shared.started(id)?.map_err(Error::Start)?;
        let output = |stream| {
            Some(Output {
                command: Arc::clone(&command),
                stream,
            })
        };
        Ok(Self {
            stdin: has_stdin.then(|| Stdin {
                command: Arc::clone(&command),
            }),
            stdout: output(OutputStream::Stdout),
            stderr: output(OutputStream::Stderr),
            pid,
            handle: Handle { command },
        })
    }

    /// Its process ID inside the sandbox.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// A handle for other threads.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// As [`Handle::wait`].
    ///
    /// # Errors
    /// As [`Handle::wait`].
    pub fn wait(&self) -> Result<ExitStatus, Error> {
        self.handle.wait()
    }

    /// Closes stdin, reads stdout and stderr to their ends, and waits.
    ///
    /// # Errors
    /// [`Error::Lost`] if the sandbox ends first.
    pub fn finish(mut self) -> Result<Finished, Error> {
        drop(self.stdin.take());
        let read = |output: Option<Output>| {
            let mut bytes = Vec::new();
            match output {
                Some(mut output) => output.read_to_end(&mut bytes).map(|_| bytes),
                None => Ok(bytes),
            }
        };
        let (stdout, stderr) = (self.stdout.take(), self.stderr.take());
        let (stdout, stderr) = std::thread::scope(|scope| {
            let stderr = scope.spawn(|| read(stderr));
            (read(stdout), stderr.join())
        });
        // Both fail only because the sandbox is gone, which the wait tells better.
        let status = self.wait()?;
        let system = |source| Error::System {
            what: "reading a command's output",
            source,
        };
        Ok(Finished {
            status,
            stdout: stdout.map_err(system)?,
            stderr: stderr
                .unwrap_or_else(|_| Err(io::Error::other("the reading thread died")))
                .map_err(system)?,
        })
    }
}

impl Handle {
    /// Waits for the command's end.
    ///
    /// # Errors
    /// [`Error::Lost`] if the sandbox ends first.
    pub fn wait(&self) -> Result<ExitStatus, Error> {
        let status = self.command.shared.exited(self.command.id, None)?;
        Ok(status.ok_or_else(Lost::closed)?)
    }

    /// Waits for the command's end for at most `timeout`; None if it still runs.
    ///
    /// # Errors
    /// [`Error::Lost`] if the sandbox ends first.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<Option<ExitStatus>, Error> {
        let deadline = Instant::now().checked_add(timeout);
        Ok(self.command.shared.exited(self.command.id, deadline)?)
    }

    /// Sends the command's process a signal: its number on Linux, 1 to 64.
    pub fn signal(&self, signal: i32) {
        self.command.shared.signal(self.command.id, signal);
    }

    /// Tells the command's terminal its size.
    pub fn resize(&self, size: TtySize) {
        self.command.shared.resize(self.command.id, size);
    }

    /// The agent's number for it.
    pub(crate) fn id(&self) -> u32 {
        self.command.id
    }

    /// When the command started and first wrote something.
    pub(crate) fn moments(&self) -> Moments {
        self.command.shared.moments(self.command.id)
    }
}

impl Read for Output {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.command
            .shared
            .read(self.command.id, self.stream, buffer)
            .map_err(io::Error::other)
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.command.shared.discard(self.command.id, self.stream);
    }
}

impl Write for Stdin {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.command
            .shared
            .write(self.command.id, data)
            .map_err(io::Error::other)?
            .ok_or_else(|| io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Stdin {
    fn drop(&mut self) {
        self.command.shared.close_stdin(self.command.id);
    }
}
