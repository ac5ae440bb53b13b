//! Starts an owner: its creator's side.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use super::NAME;
use super::job::{self, Job};

/// An owner, as its creator sees it.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) connection: UnixStream,
    /// None if it is not this process's child.
    pub(crate) process: Option<Child>,
}

/// Starts an owner and sends it its job with the job's descriptors. The owner's log goes to
/// `stderr`.
pub(crate) fn start<'a>(
    job: &Job,
    descriptors: impl IntoIterator<Item = &'a File>,
    stderr: Stdio,
) -> io::Result<Owner> {
    let (ours, theirs) = UnixStream::pair()?;
    let program = micabox_jail::program(NAME)?;
    let process = Command::new(program)
        .arg0("mica-owner")
        .args(micabox_jail::plain_arguments(NAME, 0))
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(stderr)
        .spawn()?;
    job::send(&ours, job, descriptors)?;
    Ok(Owner {
        connection: ours,
        process: Some(process),
    })
}
