//! Processes of this program that outlive what started them: owners of sandboxes, holders of images, servers
//! of mounted trees. Each is in a session of its own, and its stdin is a connection to the process that
//! started it, which sends a job first.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{self, Command, Stdio};

use micabox_jail::Forked;
use rustix::event::{PollFd, PollFlags, poll};
use serde::de::DeserializeOwned;

use crate::owner::receive;
use crate::worker::worker_kinds;

/// A process that was started, as its creator sees it.
#[derive(Debug)]
pub(crate) enum OwnProcess {
    Executed(process::Child),
    Forked(Forked),
}

/// From now on, forks the processes of containers and of their images instead of executing this program for
/// each ([`Builder::create`](crate::Builder::create) with the host backend), which saves some milliseconds.
/// Must be called while the process has one thread, and has no effect otherwise; it keeps a small process for
/// as long as this one lives. For a program that calls [`run_if_worker`](crate::run_if_worker).
pub fn fork_processes() {
    // Without one, processes are executed.
    let _ = micabox_jail::start_zygote(&worker_kinds());
}

/// Starts a process of a kind, which lists of processes show as `name`; returns it and the connection to it.
/// Its log goes to `log`, if anywhere.
pub(crate) fn start(
    kind: &str,
    name: &str,
    log: Option<Stdio>,
) -> io::Result<(UnixStream, OwnProcess)> {
    let (ours, theirs) = UnixStream::pair()?;
    let theirs = OwnedFd::from(theirs);
    if log.is_none()
        && let Some(forked) = micabox_jail::fork(kind, name, &theirs)
    {
        return Ok((ours, OwnProcess::Forked(forked)));
    }
    // Ours is the only end that is left open here, so that the process's death is seen.
    let child = Command::new(micabox_jail::program(kind)?)
        .arg0(name)
        .args(micabox_jail::plain_arguments(kind, 0))
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(log.unwrap_or_else(Stdio::null))
        .spawn()?;
    Ok((ours, OwnProcess::Executed(child)))
}

/// Begins as such a process. Returns the connection, the job, and the descriptors that came with it.
pub(crate) fn begin<J: DeserializeOwned>() -> io::Result<(UnixStream, J, Vec<OwnedFd>)> {
    // A terminal's signals are for the programs on it.
    let _ = rustix::process::setsid();
    let connection = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    rustix::stdio::dup2_stdin(&File::open("/dev/null")?)?;
    let (job, files) = receive::<J>(&connection)?;
    Ok((connection, job, files))
}

impl OwnProcess {
    pub(crate) fn id(&self) -> u32 {
        match self {
            Self::Executed(child) => child.id(),
            Self::Forked(forked) => forked.id,
        }
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) {
        match self {
            Self::Executed(child) => _ = child.wait(),
            Self::Forked(forked) => {
                let mut ended = [PollFd::new(&forked.handle, PollFlags::IN)];
                let _ = rustix::io::retry_on_intr(|| poll(&mut ended, None));
            }
        }
    }

    /// Returns whether it needs no wait any more: otherwise it stays a zombie after its end.
    pub(crate) fn is_reaped(&mut self) -> bool {
        match self {
            Self::Executed(child) => matches!(child.try_wait(), Ok(Some(_))),
            // It is another process's child.
            Self::Forked(_) => true,
        }
    }
}
