//! A process that lives as long as a mounted tree: this program executed once more, in a session of its own.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::ProcessId;
use crate::owner::{receive, send};

/// Starts a process of a kind with a job and files, and waits until it says that it has begun, or why it
/// has not.
pub(super) fn start<'a>(
    kind: &str,
    job: &impl Serialize,
    files: impl IntoIterator<Item = &'a File>,
) -> io::Result<Result<ProcessId, String>> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut process = Command::new(micabox_jail::program(kind)?);
    process
        .arg0("mica-mount")
        .args(micabox_jail::plain_arguments(kind, 0))
        .current_dir("/")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let child = process.spawn()?;
    // Ours must be the only end, so that its death is seen.
    drop(process);
    send(&ours, job, files)?;
    match receive::<Result<(), String>>(&ours) {
        Ok((Ok(()), _)) => {
            let process = ProcessId::of(child.id());
            Ok(process.ok_or_else(|| "its server ended at once".to_owned()))
        }
        Ok((Err(problem), _)) => Ok(Err(problem)),
        Err(_) => Ok(Err("its server was killed".to_owned())),
    }
}

/// Returns what such a process is given, and where it says that it has begun.
pub(super) fn told<J: DeserializeOwned>() -> io::Result<(UnixStream, J, Vec<OwnedFd>)> {
    // A terminal's signals are not for it.
    let _ = rustix::process::setsid();
    let connection = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    rustix::stdio::dup2_stdin(&File::open("/dev/null")?)?;
    let (job, files) = receive::<J>(&connection)?;
    Ok((connection, job, files))
}
