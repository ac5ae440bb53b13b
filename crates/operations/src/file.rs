//! Operations on files: how they are asked for, and what a guest's answers are worth.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use micabox_error::Error;
use micabox_file::{FileKind, Timestamp};
use micabox_owner::protocol::{Exec, Text};
use micabox_wire::files::{
    Existing, FILES, FileChange, FileEntry, FileFailed, FileReply, FileRequest, FileStat,
};
use micabox_wire::{ExitStatus, StartFailed, StartFailure, read_message};

/// How long the guest may be silent. It has nothing to say while it removes a large tree.
pub const FILE_ANSWER_TIMEOUT: Duration = Duration::from_secs(300);

/// Most bytes of messages after an operation's end. The guest may lie.
pub const MAX_MESSAGES: u64 = 1 << 20;

/// How a file is written.
#[derive(Clone, Copy, Debug)]
pub struct WriteOptions {
    /// What becomes of an existing file.
    pub existing: Existing,
    /// Permission bits of a new file.
    pub mode: u16,
    /// Whether missing parent directories are made.
    pub parents: bool,
}

impl Default for WriteOptions {
    /// An existing file loses its bytes; a new one has mode 0644.
    fn default() -> Self {
        Self {
            existing: Existing::Truncate,
            mode: 0o644,
            parents: false,
        }
    }
}

/// The attributes to set; what is None stays as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attributes {
    /// Permission bits, 07777. A change of the owner resets set-id bits that are not given here.
    pub mode: Option<u16>,
    /// The owner's number.
    pub uid: Option<u32>,
    /// The group's number.
    pub gid: Option<u32>,
    /// Time of the last access.
    pub accessed: Option<Timestamp>,
    /// Time of the last change of the contents.
    pub modified: Option<Timestamp>,
    /// Whether a symbolic link at the path's end is itself changed, and not what it leads to.
    pub of_link: bool,
}

/// A file in a directory of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// Its path from the listed directory: names, without `..`.
    pub path: PathBuf,
    /// Its attributes; a symbolic link's own.
    pub stat: FileStat,
    /// What a symbolic link says.
    pub target: Option<PathBuf>,
}

/// A change of a file that is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEvent {
    /// What changed.
    pub change: FileChange,
    /// The file's path from the watched directory: names, without `..`. Empty for what is watched
    /// itself.
    pub path: PathBuf,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// The same number in both halves of a move within what is watched; otherwise 0.
    pub cookie: u32,
}

/// Something that is not in an archive, or was not unpacked from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The file's path in the archive.
    pub path: Vec<u8>,
    /// What, and why.
    pub what: String,
}

/// What is done to which file, apart from the streams that it needs: the same for all clients of an
/// owner.
#[derive(Clone, Debug)]
pub struct FileTask {
    what: &'static str,
    path: PathBuf,
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

/// Returns the bytes of a path, as a guest has it.
pub fn bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

/// Returns the path with these bytes.
pub fn from_bytes(path: Vec<u8>) -> PathBuf {
    OsString::from_vec(path).into()
}

impl DirectoryEntry {
    /// Checks what a guest sent: its paths must not lead anywhere else.
    pub fn new(entry: FileEntry) -> Result<Self, Error> {
        let path = from_bytes(entry.path);
        let mut parts = path.components();
        let is_plain = parts.all(|part| matches!(part, Component::Normal(_)));
        if !is_plain || path.as_os_str().is_empty() {
            return Err(Error::BadReply);
        }
        let is_link = entry.stat.kind == FileKind::Symlink;
        Ok(Self {
            path,
            stat: entry.stat,
            target: is_link.then(|| from_bytes(entry.target)),
        })
    }
}

impl FileEvent {
    /// Checks what a guest sent: its paths must not lead anywhere else.
    pub fn new(event: micabox_wire::files::FileEvent) -> Result<Self, Error> {
        let path = from_bytes(event.path);
        let mut parts = path.components();
        if !parts.all(|part| matches!(part, Component::Normal(_))) {
            return Err(Error::BadReply);
        }
        Ok(Self {
            change: event.change,
            path,
            is_directory: event.is_directory,
            cookie: event.cookie,
        })
    }
}
