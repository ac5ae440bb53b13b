//! A command that runs. No thread waits for it: its streams are pipes, and its end is a message on a socket.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use micabox::{
    Command, Error, ExecOptions, ExitStatus, Handle, NotedCommand, Process, SandboxRef, Stdio,
};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::Signal;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe::{Receiver, Sender};

use crate::e2b::http::waiting;
use crate::e2b::problem::{Kind, Problem};

/// A command, and this process's ends of its streams.
#[derive(Debug)]
pub struct Running {
    pub pid: u32,
    pub handle: Handle,
    /// None without a stdin.
    pub stdin: Option<Input>,
    /// A terminal's output, with one.
    pub stdout: Receiver,
    /// None with a terminal.
    pub stderr: Option<Receiver>,
}

/// A command's stdin.
#[derive(Debug)]
pub struct Input {
    pub pipe: Sender,
    /// Of a command that keeps its stdin when this process ends: what attaches the pipe to it.
    attached: Option<Handle>,
}

impl Input {
    /// Writes bytes, as the command reads them.
    pub async fn write(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.pipe.writable().await?;
            match self.pipe.try_write(bytes) {
                Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Ends the command's stdin, also while something is written to it.
    pub fn end(&self) {
        if let Some(attached) = &self.attached {
            attached.end_stdin();
        }
    }
}

/// This process's ends of a command's streams.
#[derive(Default)]
struct Ends {
    stdin: Option<OwnedFd>,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
}

impl Ends {
    /// Makes a pipe for stdin.
    fn input(&mut self) -> Result<Stdio, Problem> {
        let (theirs, ours) = io::pipe().map_err(failed)?;
        self.stdin = Some(ours.into());
        shared(theirs.into())
    }

    /// Makes pipes for the outputs; without one for stderr if there is a terminal.
    fn outputs(&mut self, has_terminal: bool) -> Result<ExecOptions, Problem> {
        let (ours, theirs) = io::pipe().map_err(failed)?;
        self.stdout = Some(ours.into());
        let stdout = shared(theirs.into())?;
        let stderr = if has_terminal {
            Stdio::Null
        } else {
            let (ours, theirs) = io::pipe().map_err(failed)?;
            self.stderr = Some(ours.into());
            shared(theirs.into())?
        };
        Ok(ExecOptions {
            stdout,
            stderr,
            ..ExecOptions::default()
        })
    }

    fn of(self, process: &Process, attached: Option<Handle>) -> Result<Running, Problem> {
        let missing = || failed(io::ErrorKind::InvalidInput.into());
        let pipe = self.stdin.map(Sender::from_owned_fd).transpose();
        let stderr = self.stderr.map(Receiver::from_owned_fd).transpose();
        Ok(Running {
            pid: process.pid(),
            handle: process.handle(),
            stdin: pipe.map_err(failed)?.map(|pipe| Input { pipe, attached }),
            stdout: Receiver::from_owned_fd(self.stdout.ok_or_else(missing)?).map_err(failed)?,
            stderr: stderr.map_err(failed)?,
        })
    }
}

impl Running {
    /// Starts a command, and waits until it runs. It is killed when this process ends.
    pub async fn start(sandbox: SandboxRef, command: Command) -> Result<Self, Problem> {
        let mut ends = Ends::default();
        let mut options = ends.outputs(command.tty.is_some())?;
        if command.stdin {
            options.stdin = ends.input()?;
        }
        let id = sandbox.id().to_owned();
        let started = waiting(&id, move || Ok(sandbox.exec_with(&command, options)?));
        ends.of(&started.await?, None)
    }

    /// Starts a command that goes on without this process, with its stdin open. Others find it by its note.
    pub async fn keep(
        sandbox: SandboxRef,
        command: Command,
        note: String,
    ) -> Result<Self, Problem> {
        let mut ends = Ends::default();
        let mut options = ExecOptions {
            detach: true,
            note,
            ..ends.outputs(command.tty.is_some())?
        };
        let mut input = None;
        if command.stdin {
            // The end of a pipe that it was started with would be its end as well.
            options.stdin = Stdio::Idle;
            input = Some(ExecOptions {
                stdin: ends.input()?,
                ..ExecOptions::default()
            });
        }
        let id = sandbox.id().to_owned();
        let started = waiting(&id, move || {
            let process = sandbox.exec_with(&command, options)?;
            let input = input.map(|input| sandbox.attach_to(process.pid(), input));
            let input = match input.transpose() {
                Ok(input) => input.map(|input| input.handle()),
                // It has ended already.
                Err(Error::NoSuchCommand(_)) => None,
                Err(error) => {
                    process.handle().signal(Signal::KILL.as_raw());
                    return Err(error.into());
                }
            };
            Ok((process, input))
        });
        let (process, input) = started.await?;
        ends.of(&process, input)
    }

    /// Attaches to a command that another process has started.
    pub async fn attach(sandbox: SandboxRef, command: &NotedCommand) -> Result<Self, Problem> {
        let mut ends = Ends::default();
        let outputs = ends.outputs(command.has_terminal)?;
        let input = ExecOptions {
            stdin: ends.input()?,
            ..ExecOptions::default()
        };
        let pid = command.pid;
        let id = sandbox.id().to_owned();
        let attached = waiting(&id, move || {
            let process = sandbox.attach_to(pid, outputs)?;
            // Where another process has its stdin, that is refused.
            let input = sandbox.attach_to(pid, input).ok();
            Ok((process, input.map(|input| input.handle())))
        });
        let (process, input) = attached.await?;
        if input.is_none() {
            ends.stdin = None;
        }
        ends.of(&process, input)
    }

    /// Connects to a port of the sandbox's 127.0.0.1. The connection ends when this process does.
    pub async fn connect(sandbox: SandboxRef, port: u16) -> Result<Self, Problem> {
        let mut ends = Ends::default();
        let options = ExecOptions {
            stdin: ends.input()?,
            ..ends.outputs(false)?
        };
        let id = sandbox.id().to_owned();
        let connected = waiting(&id, move || Ok(sandbox.connect_to(port, options)?));
        ends.of(&connected.await?, None)
    }
}

fn failed(error: io::Error) -> Problem {
    Problem::new(Kind::Internal, error.to_string())
}

/// Prepares an end that a sandbox's owner uses, which must not wait for it.
fn shared(end: OwnedFd) -> Result<Stdio, Problem> {
    let flags = fcntl_getfl(&end).map_err(|errno| failed(errno.into()))?;
    fcntl_setfl(&end, flags | OFlags::NONBLOCK).map_err(|errno| failed(errno.into()))?;
    Ok(Stdio::Descriptor(end))
}

/// Waits for a command's end.
pub async fn ended(handle: &Handle) -> Result<ExitStatus, Problem> {
    #[expect(
        deprecated,
        reason = "sound for a descriptor that is borrowed, as this is"
    )]
    let socket = AsyncFd::with_interest(handle.as_fd(), Interest::READABLE).map_err(failed)?;
    loop {
        // What has come before is not told again.
        if let Some(status) = handle.wait_timeout(Duration::ZERO)? {
            return Ok(status);
        }
        let mut ready = socket.readable().await.map_err(failed)?;
        ready.clear_ready();
    }
}
