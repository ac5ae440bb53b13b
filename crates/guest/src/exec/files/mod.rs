//! Performs operations on the sandbox's files ([`micabox_wire::files`]), in a process of the sandbox
//! that has switched to its user.

mod list;
mod operate;
mod stream;
mod watch;

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use micabox_tree::{Root, Source};
use micabox_wire::files::{FILES, FileFailed, FileReply, FileRequest};
use micabox_wire::{Exec, StartFailed, StartFailure, encode};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::program::{describe, shown};
use super::watches::Watching;

/// What is left to do once an operation has begun.
pub enum Work {
    /// Nothing.
    Done,
    /// Send a reply.
    Reply(FileReply),
    /// Write a file's bytes to stdout.
    Read(OwnedFd, Option<u64>),
    /// Write stdin to a file.
    Write(OwnedFd),
    /// Write the files on stdin, which this opens.
    WriteMany(Open),
    /// Remove the directory of this name in a directory.
    Remove(OwnedFd, Vec<u8>),
    /// List a directory.
    List(OwnedFd, u32),
    /// Write an archive of what is at this path to stdout, below this name.
    Pack(Source, Vec<u8>, Vec<u8>),
    /// Unpack the archive on stdin below this path.
    Unpack(Root, Vec<u8>),
    /// Report changes.
    Watch(Box<watch::Watcher>),
}

/// Opens the file of a path, to write to it.
type Open = Box<dyn Fn(&[u8]) -> Result<OwnedFd, Failed>>;

/// Why an operation failed.
#[derive(Debug)]
pub struct Failed {
    /// The file, if it is not the one of the request.
    path: Vec<u8>,
    errno: Option<Errno>,
    message: String,
}

impl From<Errno> for Failed {
    fn from(errno: Errno) -> Self {
        Self {
            path: Vec::new(),
            errno: Some(errno),
            message: describe(errno),
        }
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        match Errno::from_io_error(&error) {
            Some(errno) => errno.into(),
            None => Self::new(error.to_string()),
        }
    }
}

impl From<micabox_tree::Error> for Failed {
    fn from(error: micabox_tree::Error) -> Self {
        match error {
            micabox_tree::Error::File { path, source } => Self {
                path,
                ..source.into()
            },
            error => Self::new(error.to_string()),
        }
    }
}

impl Failed {
    fn new(message: String) -> Self {
        Self {
            path: Vec::new(),
            errno: None,
            message,
        }
    }

    /// Names the file, if no other is named.
    fn of(self, path: &[u8]) -> Self {
        if self.path.is_empty() {
            Self {
                path: path.to_vec(),
                ..self
            }
        } else {
            self
        }
    }

    fn at(path: &[u8], errno: Errno) -> Self {
        Self {
            path: path.to_vec(),
            ..errno.into()
        }
    }
}

/// Returns whether the command is an operation on files.
pub fn is_operation(spec: &Exec) -> bool {
    spec.argv.first().is_some_and(|name| name == FILES)
}

/// Returns whether the command watches files.
pub fn is_watch(spec: &Exec) -> bool {
    let [name, request] = spec.argv.as_slice() else {
        return false;
    };
    name == FILES && matches!(FileRequest::decode(request), Ok(FileRequest::Watch { .. }))
}

/// Begins an operation: does all of it but what needs stdin and stdout.
pub fn begin(spec: &Exec, watching: Option<Watching>) -> Result<Work, StartFailed> {
    let failed = |message: String, errno: Option<Errno>| StartFailed {
        reason: StartFailure::File,
        message,
        errno: errno.map_or(0, Errno::raw_os_error),
    };
    let argument = spec.argv.get(1).map(Vec::as_slice).unwrap_or_default();
    let request = FileRequest::decode(argument);
    let request = request.map_err(|error| failed(error.to_string(), Some(Errno::INVAL)))?;
    prepare();
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open("/", flags, Mode::empty()).map(Root::new);
    let begun = root
        .map_err(Failed::from)
        .and_then(|root| operate::begin(root, request, watching));
    begun.map_err(|problem| {
        let message = match &*problem.path {
            [] => problem.message,
            path => format!("{}: {}", shown(path), problem.message),
        };
        failed(message, problem.errno)
    })
}

/// Does the rest of an operation. Returns the exit code.
pub fn finish(work: Work) -> i32 {
    let Err(problem) = stream::finish(work) else {
        return 0;
    };
    let failed = FileFailed {
        path: problem.path,
        errno: problem.errno.map_or(0, Errno::raw_os_error),
        message: problem.message,
    };
    let _ = send(&rustix::stdio::stderr(), &FileReply::Failed(failed));
    1
}

/// Lets the modes of requests be those of files, and trees be as deep as paths can be.
fn prepare() {
    rustix::process::umask(Mode::empty());
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    );
}

fn send(to: &impl AsFd, reply: &FileReply) -> io::Result<()> {
    let mut frame = Vec::new();
    encode(reply, &mut frame).map_err(io::Error::other)?;
    write_all(to, &frame)
}

fn write_all(to: &impl AsFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(to, bytes) {
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
