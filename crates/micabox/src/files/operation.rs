//! One operation: a command of the agent's own.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use micabox_owner::Client;
use micabox_owner::protocol::{Exec, Text};
use micabox_wire::files::{FILES, FileFailed, FileReply, FileRequest};
use micabox_wire::{ExitStatus, StartFailed, StartFailure, read_message};

use super::{Files, bytes};
use crate::process::{Begin, ExecOptions, Process};
use crate::{Error, Stdio};

/// Most bytes of messages after an operation's end. The guest may lie.
const MAX_MESSAGES: u64 = 1 << 20;

/// Where an operation's streams come from and go to.
#[derive(Debug, Default)]
pub struct Ends {
    pub stdin: Stdio,
    pub stdout: Stdio,
}

/// What is done to which file, apart from the streams that it needs: the same for all clients of an
/// owner.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct FileTask {
    what: &'static str,
    path: PathBuf,
}

/// An operation that has begun. Dropping it ends it, done or not.
#[derive(Debug)]
pub struct Operation {
    pub process: Process,
    task: FileTask,
    is_over: bool,
}

impl Drop for Operation {
    fn drop(&mut self) {
        if !self.is_over {
            self.process.handle().signal(libc::SIGKILL);
        }
    }
}

/// Something that is not in an archive, or was not unpacked from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The file's path in the archive.
    pub path: Vec<u8>,
    /// What, and why.
    pub what: String,
}

impl Files {
    /// Begins an operation.
    pub(crate) fn start(
        &self,
        what: &'static str,
        path: &Path,
        request: &FileRequest,
        ends: Ends,
    ) -> Result<Operation, Error> {
        let task = FileTask::new(what, path);
        let exec = FileTask::exec(request, &self.user, self.answer_timeout);
        let options = ExecOptions {
            stdin: ends.stdin,
            stdout: ends.stdout,
            stderr: Stdio::Piped,
            ..ExecOptions::default()
        };
        let client = Client::connect(&self.directory);
        let client = client.map_err(|_| Error::DoesNotRun(self.name.clone()))?;
        let process = Process::start(client, Begin::Exec(exec), options);
        Ok(Operation {
            process: process.map_err(|error| task.not_begun(error))?,
            task,
            is_over: false,
        })
    }

    /// Performs an operation without a reply.
    pub(super) fn perform(
        &self,
        what: &'static str,
        path: &Path,
        request: &FileRequest,
    ) -> Result<(), Error> {
        let mut operation = self.start(what, path, request, Ends::default())?;
        operation.end().map(drop)
    }

    /// Performs an operation with one reply.
    pub(super) fn ask(
        &self,
        what: &'static str,
        path: &Path,
        request: &FileRequest,
    ) -> Result<FileReply, Error> {
        let ends = Ends {
            stdout: Stdio::Piped,
            ..Ends::default()
        };
        let mut operation = self.start(what, path, request, ends)?;
        let reply = match &mut operation.process.stdout {
            Some(stdout) => read_message(stdout).ok().flatten(),
            None => None,
        };
        operation.end()?;
        reply.ok_or(Error::BadReply)
    }
}

impl Operation {
    /// Waits for the operation's end. Returns what was left out.
    pub fn end(&mut self) -> Result<Vec<LeftOut>, Error> {
        drop(self.process.stdin.take());
        self.is_over = true;
        let status = self.process.wait()?;
        match self.process.stderr.take() {
            Some(stderr) => self.task.end(status, stderr),
            None => self.task.end(status, io::empty()),
        }
    }
}

impl FileTask {
    /// Names what is done to which file, as in "reading `/etc/passwd`".
    pub fn new(what: &'static str, path: &Path) -> Self {
        Self {
            what,
            path: path.to_owned(),
        }
    }

    /// Makes the request for a sandbox's owner, without streams.
    pub fn exec(request: &FileRequest, user: &str, answer_timeout: Duration) -> Exec {
        Exec {
            argv: [FILES.to_vec(), request.encode()].map(Text).to_vec(),
            user: user.to_owned(),
            answer_timeout: match request {
                // Its next message comes with the next change.
                FileRequest::Watch { .. } => 0,
                _ => u64::try_from(answer_timeout.as_millis())
                    .unwrap_or(u64::MAX)
                    .max(1),
            },
            ..Exec::default()
        }
    }

    /// Returns why an operation could not begin.
    pub fn not_begun(&self, error: Error) -> Error {
        match error {
            Error::Start(StartFailed {
                reason: StartFailure::File,
                message,
                errno,
            }) => self.failed(&FileFailed {
                path: Vec::new(),
                errno,
                message,
            }),
            error => error,
        }
    }

    /// Returns what an operation that has ended has left out. `messages` is its stderr.
    ///
    /// # Errors
    /// [`Error::File`]; [`Error::BadReply`] if the guest sends something else.
    pub fn end(&self, status: ExitStatus, messages: impl Read) -> Result<Vec<LeftOut>, Error> {
        let mut left_out = Vec::new();
        let mut messages = messages.take(MAX_MESSAGES);
        while let Some(reply) = read_message(&mut messages).map_err(|_| Error::BadReply)? {
            match reply {
                FileReply::Failed(failure) => return Err(self.failed(&failure)),
                FileReply::LeftOut { path, what } => left_out.push(LeftOut { path, what }),
                _ => return Err(Error::BadReply),
            }
        }
        match status {
            ExitStatus::Exited(0) => Ok(left_out),
            ExitStatus::Exited(_) => Err(Error::BadReply),
            ExitStatus::Signaled(signal) => {
                let message = format!("the agent's process was ended by signal {signal}");
                Err(self.error(io::Error::new(io::ErrorKind::Interrupted, message)))
            }
        }
    }

    /// Returns the error that the system gives as `source`.
    pub fn error(&self, source: io::Error) -> Error {
        Error::File {
            what: self.what,
            path: self.path.clone(),
            source,
        }
    }

    /// Returns the error that a stream of the operation had.
    pub fn of_stream(&self, error: io::Error) -> Error {
        error.downcast().unwrap_or_else(|source| self.error(source))
    }

    fn failed(&self, failure: &FileFailed) -> Error {
        let error = failure.error();
        // Of many files.
        if self.path.as_os_str().is_empty() && !failure.path.is_empty() {
            let path = Path::new(OsStr::from_bytes(&failure.path));
            return Self::new(self.what, path).error(error);
        }
        self.error(match &*failure.path {
            [] => error,
            file if file == bytes(&self.path) => error,
            // The kind is kept, and the file named.
            file => io::Error::new(error.kind(), format!("{}: {error}", file.escape_ascii())),
        })
    }
}
