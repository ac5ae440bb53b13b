//! A command that runs. No thread waits for it: its streams are pipes, and its end is a message on a socket.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use micabox::{Command, ExecOptions, ExitStatus, Handle, SandboxRef, Stdio};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe::{Receiver, Sender};

use crate::e2b::http::blocking;
use crate::e2b::problem::{Kind, Problem};

/// A command, and this process's ends of its streams.
#[derive(Debug)]
pub struct Running {
    pub pid: u32,
    pub handle: Handle,
    /// None without a stdin.
    pub stdin: Option<Sender>,
    /// A terminal's output, with one.
    pub stdout: Receiver,
    /// None with a terminal.
    pub stderr: Option<Receiver>,
}

impl Running {
    /// Starts a command, and waits until it runs. It goes on without this process.
    pub async fn start(sandbox: SandboxRef, command: Command) -> Result<Self, Problem> {
        let failed = |error: io::Error| Problem::new(Kind::Internal, error.to_string());
        let stdin = if command.stdin {
            Some(io::pipe().map_err(failed)?)
        } else {
            None
        };
        let (theirs_in, ours_in) = stdin.unzip();
        let (ours_out, theirs_out) = io::pipe().map_err(failed)?;
        let stderr = match command.tty {
            Some(_) => None,
            None => Some(io::pipe().map_err(failed)?),
        };
        let (ours_err, theirs_err) = stderr.unzip();
        let end = |end: Option<OwnedFd>| match end {
            Some(end) => shared(end).map(Stdio::Descriptor).map_err(failed),
            None => Ok(Stdio::Null),
        };
        let options = ExecOptions {
            stdin: end(theirs_in.map(Into::into))?,
            stdout: end(Some(theirs_out.into()))?,
            stderr: end(theirs_err.map(Into::into))?,
            detach: true,
            ..ExecOptions::default()
        };
        let started = blocking(move || {
            let process = sandbox.exec_with(&command, options)?;
            Ok((process.pid(), process.handle()))
        });
        let (pid, handle) = started.await?;
        let stdin = ours_in.map(|pipe| Sender::from_owned_fd(pipe.into()));
        let stderr = ours_err.map(|pipe| Receiver::from_owned_fd(pipe.into()));
        Ok(Self {
            pid,
            handle,
            stdin: stdin.transpose().map_err(failed)?,
            stdout: Receiver::from_owned_fd(ours_out.into()).map_err(failed)?,
            stderr: stderr.transpose().map_err(failed)?,
        })
    }
}

/// Prepares an end that a sandbox's owner uses, which must not wait for it.
fn shared(end: OwnedFd) -> io::Result<OwnedFd> {
    fcntl_setfl(&end, fcntl_getfl(&end)? | OFlags::NONBLOCK)?;
    Ok(end)
}

/// Waits for a command's end.
pub async fn ended(handle: &Handle) -> Result<ExitStatus, Problem> {
    #[expect(
        deprecated,
        reason = "sound for a descriptor that is borrowed, as this is"
    )]
    let socket = AsyncFd::with_interest(handle.as_fd(), Interest::READABLE)
        .map_err(|error| Problem::new(Kind::Internal, error.to_string()))?;
    loop {
        // What has come before is not told again.
        if let Some(status) = handle.wait_timeout(Duration::ZERO)? {
            return Ok(status);
        }
        let ready = socket.readable().await;
        let mut ready = ready.map_err(|e| Problem::new(Kind::Internal, e.to_string()))?;
        ready.clear_ready();
    }
}
