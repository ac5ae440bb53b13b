//! The process that answers for a mounted tree: this program executed once more, in a session of its
//! own. It starts the jailed worker that serves the tree, keeps the lock, and removes the record at the
//! end.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use micabox_jail::{CallError, Kind, Limits, Worker};
use serde::{Deserialize, Serialize};

use crate::ProcessId;
use crate::jailed::{Fault, Serve};
use crate::owner::{receive, send};

/// The kind of worker that answers for a mounted tree.
pub(crate) const KIND: Kind = Kind::new(NAME, work);

const NAME: &str = "mounted-owner";

/// Bytes of address space beyond what changes may take: tables of inodes, which are as many as the kernel
/// holds, and directories.
const MEMORY: u64 = 16 << 30;

/// What the process gets, with the lock and then the worker's files.
#[derive(Debug, Serialize, Deserialize)]
struct Job {
    serve: Serve,
    directory: PathBuf,
}

/// A tree's server that has started.
#[derive(Debug)]
pub(crate) struct Server {
    worker: Worker<Serve>,
}

impl Server {
    /// Starts the worker and waits until it serves.
    pub(crate) fn start(serve: &Serve, files: Vec<OwnedFd>) -> Result<Self, CallError<Fault>> {
        let pipe = io::pipe().map_err(|source| CallError::Start { kind: NAME, source });
        let (mut ready, worker_end) = pipe?;
        let limits = Limits {
            memory: MEMORY.saturating_add(serve.room.0),
            ..Limits::default()
        };
        let files = std::iter::once(OwnedFd::from(worker_end)).chain(files);
        let worker = Worker::start(serve, files.collect(), &limits)?;
        match ready.read(&mut [0]) {
            Ok(1) => Ok(Self { worker }),
            // It has ended, and says why.
            _ => match worker.wait() {
                Err(error) => Err(error),
                Ok(()) => Err(CallError::Refused(Fault::Output(
                    "it was unmounted at once".to_owned(),
                ))),
            },
        }
    }

    /// Waits until the tree is unmounted.
    pub(crate) fn wait(self) -> Result<(), CallError<Fault>> {
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
    let (ours, theirs) = UnixStream::pair()?;
    let mut process = Command::new(micabox_jail::program(NAME)?);
    process
        .arg0("mica-mount")
        .args(micabox_jail::plain_arguments(NAME, 0))
        .current_dir("/")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let child = process.spawn()?;
    // Ours must be the only end, so that its death is seen.
    drop(process);
    send(
        &ours,
        &Job { serve, directory },
        std::iter::once(lock).chain(files),
    )?;
    match receive::<Result<(), String>>(&ours) {
        Ok((Ok(()), _)) => {
            let process = ProcessId::of(child.id());
            Ok(process.ok_or_else(|| "its server ended at once".to_owned()))
        }
        Ok((Err(problem), _)) => Ok(Err(problem)),
        Err(_) => Ok(Err("its server was killed".to_owned())),
    }
}

fn work(descriptor: RawFd) -> i32 {
    debug_assert_eq!(descriptor, 0);
    // A terminal's signals are not for it.
    let _ = rustix::process::setsid();
    match run() {
        Ok(()) => 0,
        Err(_) => 1,
    }
}

fn run() -> io::Result<()> {
    let connection = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    rustix::stdio::dup2_stdin(&File::open("/dev/null")?)?;
    let (job, files) = receive::<Job>(&connection)?;
    let mut files = files.into_iter();
    let _lock = files.next().ok_or(io::ErrorKind::InvalidData)?;
    let server = match Server::start(&job.serve, files.collect()) {
        Ok(server) => server,
        Err(error) => return send(&connection, &Err::<(), String>(error.to_string()), []),
    };
    send(&connection, &Ok::<(), String>(()), [])?;
    drop(connection);
    // After its death the tree is still mounted, and its record says whose it was.
    if server.wait().is_ok() {
        let _ = fs::remove_dir_all(&job.directory);
    }
    Ok(())
}
