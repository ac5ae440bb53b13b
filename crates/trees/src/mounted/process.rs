//! A process that lives as long as a mounted tree: one of this program's, in a session of its own.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use micabox_holders::own_process::Environment;
use micabox_holders::{own_process, receive, send};
use micabox_state::ProcessId;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Starts a process of a kind with a job and files, and waits until it says that it has begun, or why it
/// has not.
pub(super) fn start<'a>(
    kind: &str,
    job: &impl Serialize,
    files: impl IntoIterator<Item = &'a File>,
) -> io::Result<Result<ProcessId, String>> {
    let (ours, process) = own_process::start(kind, "mica-mount", None, Environment::Programs)?;
    send(&ours, job, files)?;
    let problem = match receive::<Result<(), String>>(&ours) {
        Ok((Ok(()), _)) => {
            let id = ProcessId::of(process.id());
            process.goes_on();
            return Ok(id.ok_or_else(|| "its server ended at once".to_owned()));
        }
        Ok((Err(problem), _)) => problem,
        Err(_) => "its server was killed".to_owned(),
    };
    process.ends();
    Ok(Err(problem))
}

/// Returns the connection for the report that such a process has begun, its job, and its files.
pub(super) fn receive_job<J: DeserializeOwned>() -> io::Result<(UnixStream, J, Vec<OwnedFd>)> {
    let received = own_process::begin()?;
    // It keeps no directory busy.
    rustix::process::chdir("/")?;
    Ok(received)
}
