//! Starts an owner: its creator's side.

use std::fs::File;
use std::io;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use micabox_holders::own_process::Environment;
use micabox_holders::{OwnProcess, own_process, send};

use super::NAME;
use super::job::Job;

/// An owner, as its creator sees it.
#[derive(Debug)]
pub struct Owner {
    pub connection: UnixStream,
    /// None if it is not this process's child.
    pub process: Option<OwnProcess>,
}

/// Starts an owner and sends it its job with the job's descriptors. The owner's log goes to `log`, if
/// anywhere.
pub fn start<'a>(
    job: &Job,
    descriptors: impl IntoIterator<Item = &'a File>,
    log: Option<Stdio>,
) -> io::Result<Owner> {
    let (connection, process) = own_process::start(NAME, "mica-owner", log, Environment::Programs)?;
    send(&connection, job, descriptors)?;
    Ok(Owner {
        connection,
        process: Some(process),
    })
}
