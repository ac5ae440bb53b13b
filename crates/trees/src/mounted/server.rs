//! The process that answers for a mounted tree. It starts the jailed worker that serves the tree, keeps
//! the lock, and removes the record at the end.

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{OwnedFd, RawFd};
use std::path::PathBuf;

use micabox_holders::{own_process, send};
use micabox_jail::{CallError, Kind, Limits, Worker};
use micabox_parsers::Fault;
use micabox_share::{Process, Settings, Transport};
use micabox_state::ProcessId;
use serde::{Deserialize, Serialize};

use super::process;
use crate::mounted::{Below, Serve};

/// The kind of worker that answers for a mounted tree.
pub const KIND: Kind = Kind::new(NAME, work);

const NAME: &str = "mounted-owner";

/// Bytes of address space beyond what changes may take: tables of inodes, which are as many as the kernel
/// holds, and directories.
const MEMORY: u64 = 16 << 30;

/// How a directory is read.
const AS_IT_IS: Settings = Settings {
    read_only: true,
    cached: false,
    with_mounts: false,
    upper: false,
    as_it_is: true,
    only: None,
    transport: Transport::Stream,
};

/// What the process gets, with the lock and then the worker's files.
#[derive(Debug, Serialize, Deserialize)]
struct Job {
    serve: Serve,
    directory: PathBuf,
}

/// A tree's server that has started.
#[derive(Debug)]
pub struct Server {
    worker: Worker<Serve>,
    /// The server of a directory that the tree is over.
    _folder: Option<Process>,
}

impl Server {
    /// Starts the worker and waits until it serves.
    pub fn start(serve: &Serve, files: Vec<OwnedFd>) -> Result<Self, CallError<Fault>> {
        let failed = |source| CallError::Start { kind: NAME, source };
        let mut files = files;
        let mut folder = None;
        if serve.lower == Below::Folder {
            let directory = files.pop();
            let directory = directory.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
            let started = micabox_share::start(directory, &AS_IT_IS);
            let (process, socket) = started.map_err(|error| {
                let why = error
                    .source()
                    .map_or(String::new(), |why| format!(": {why}"));
                CallError::Refused(Fault::Below(format!("{error}{why}")))
            })?;
            files.push(socket);
            folder = Some(process);
        }
        let pipe = io::pipe().map_err(failed);
        let (mut ready, worker_end) = pipe?;
        let limits = Limits {
            memory: MEMORY.saturating_add(serve.room.0),
            ..Limits::default()
        };
        let files = std::iter::once(OwnedFd::from(worker_end)).chain(files);
        let worker = Worker::start(serve, files.collect(), &limits)?;
        match ready.read(&mut [0]) {
            Ok(1) => Ok(Self {
                worker,
                _folder: folder,
            }),
            // It has ended; its reply has the reason.
            _ => match worker.wait() {
                Err(error) => Err(error),
                Ok(()) => Err(CallError::Refused(Fault::Output(
                    "it was unmounted at once".to_owned(),
                ))),
            },
        }
    }

    /// Waits until the tree is unmounted.
    pub fn wait(self) -> Result<(), CallError<Fault>> {
        self.worker.wait()
    }
}

/// Starts the process, and waits until the tree is served. It holds the lock from then on.
pub(super) fn start(
    serve: Serve,
    directory: PathBuf,
    lock: &File,
    files: &[File],
) -> io::Result<Result<ProcessId, String>> {
    let job = Job { serve, directory };
    process::start(NAME, &job, std::iter::once(lock).chain(files))
}

fn work(_: RawFd) -> i32 {
    let ran = run();
    own_process::end();
    i32::from(ran.is_err())
}

fn run() -> io::Result<()> {
    let (connection, job, files) = process::receive_job::<Job>()?;
    let mut files = files.into_iter();
    let _lock = files.next().ok_or(io::ErrorKind::InvalidData)?;
    let server = match Server::start(&job.serve, files.collect()) {
        Ok(server) => server,
        Err(error) => return send(&connection, &Err::<(), String>(error.to_string()), []),
    };
    send(&connection, &Ok::<(), String>(()), [])?;
    drop(connection);
    // If the worker died, the tree is still mounted, and its record stays until it is unmounted.
    if server.wait().is_ok() {
        let _ = fs::remove_dir_all(&job.directory);
    }
    Ok(())
}
