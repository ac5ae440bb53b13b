//! Operations on the sandbox's files, which the agent performs itself.
//!
//! An operation is a command whose program is [`FILES`] and whose only argument is an encoded
//! [`FileRequest`]; it runs as [`Exec::user`](crate::Exec::user). An operation that can't
//! begin is a command that fails to start ([`StartFailure::File`](crate::StartFailure::File)). Of
//! one that began, stdin has the bytes to write and stdout the bytes that were read, or
//! [`FileReply`] messages, framed as on the agent's channel. If it fails after its start, stderr has
//! a [`FileFailed`], and the exit code is 1.
//!
//! Requests and replies are in JSON: a sandbox's owner passes them on without a look, from and to clients
//! in any language.

use std::io;

use micabox_file::{FileKind, Timestamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{AsText, Error, Message};

/// The program's name for an operation on files: no file's name has a NUL byte.
pub const FILES: &[u8] = b"\0files";

/// An operation on files. Paths are from the sandbox's root, with or without a slash in front.
/// Symbolic links in them lead where they lead for programs inside, except for the kernel's own
/// links in `/proc`, which are not followed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FileRequest {
    /// Writes a file's bytes to stdout.
    Read {
        /// The file.
        #[serde(with = "AsText")]
        path: Vec<u8>,
        /// The first byte.
        offset: u64,
        /// Maximum number of bytes.
        #[serde(default)]
        length: Option<u64>,
    },
    /// Writes stdin to a file.
    Write {
        /// The file.
        #[serde(with = "AsText")]
        path: Vec<u8>,
        /// What becomes of an existing file.
        existing: Existing,
        /// Permission bits of a new file.
        mode: u16,
        /// Whether missing parent directories are made.
        parents: bool,
    },
    /// Writes the files that come on stdin: a [`FilePiece`], framed as replies are, before the bytes of each.
    WriteMany {
        /// What becomes of existing files.
        existing: Existing,
        /// Permission bits of new files.
        mode: u16,
        /// Whether missing parent directories are made.
        parents: bool,
    },
    /// Replies with [`FileReply::Stat`].
    Stat {
        /// The file.
        #[serde(with = "AsText")]
        path: Vec<u8>,
        /// Whether a symbolic link at the path's end is followed.
        follow: bool,
    },
    /// Replies with a [`FileReply::Entry`] for each file below a directory, a directory before what
    /// is in it.
    List {
        /// The directory.
        #[serde(with = "AsText")]
        path: Vec<u8>,
        /// How many levels: 1 for the directory's own entries.
        depth: u32,
    },
    /// Makes a directory.
    MakeDirectory {
        /// The directory.
        #[serde(with = "AsText")]
        path: Vec<u8>,
        /// Permission bits.
        mode: u16,
        /// Whether missing parents are made too, and an existing directory is no error.
        parents: bool,
    },
    /// Removes a file or an empty directory; not what a symbolic link leads to.
    Remove {
        /// The file.
        #[serde(with = "AsText")]
        path: Vec<u8>,
        /// Whether a directory is removed with everything below it.
        recursive: bool,
    },
    /// Gives a file another path.
    Rename {
        /// The file.
        #[serde(with = "AsText")]
        from: Vec<u8>,
        /// Its new path.
        #[serde(with = "AsText")]
        to: Vec<u8>,
        /// Whether a file that is there is replaced.
        replace: bool,
    },
    /// Makes a symbolic link.
    Symlink {
        /// What the link says.
        #[serde(with = "AsText")]
        target: Vec<u8>,
        /// The link.
        #[serde(with = "AsText")]
        path: Vec<u8>,
    },
    /// Gives a file a second name.
    HardLink {
        /// The file.
        #[serde(with = "AsText")]
        file: Vec<u8>,
        /// Its second name.
        #[serde(with = "AsText")]
        path: Vec<u8>,
    },
    /// Replies with [`FileReply::Target`].
    ReadLink {
        /// The symbolic link.
        #[serde(with = "AsText")]
        path: Vec<u8>,
    },
    /// Replies with [`FileReply::Target`]: the path without symbolic links that leads to the same file.
    Resolve {
        /// The file.
        #[serde(with = "AsText")]
        path: Vec<u8>,
    },
    /// Sets what is given.
    Set {
        /// The file.
        #[serde(with = "AsText")]
        path: Vec<u8>,
        /// Whether a symbolic link at the path's end is followed.
        follow: bool,
        /// Permission bits.
        #[serde(default)]
        mode: Option<u16>,
        /// The owner's number.
        #[serde(default)]
        uid: Option<u32>,
        /// The group's number.
        #[serde(default)]
        gid: Option<u32>,
        /// Time of the last access.
        #[serde(default)]
        accessed: Option<Timestamp>,
        /// Time of the last change of the contents.
        #[serde(default)]
        modified: Option<Timestamp>,
    },
    /// Writes a file, or a directory with everything below it, to stdout as an archive.
    Pack {
        /// The file.
        #[serde(with = "AsText")]
        path: Vec<u8>,
        /// Whether a symbolic link at the path's end is followed.
        follow: bool,
        /// What the file is called in the archive; empty for members without a directory in front.
        #[serde(with = "AsText")]
        name: Vec<u8>,
    },
    /// Unpacks the archive on stdin.
    Unpack {
        /// The directory to unpack into; made if missing.
        #[serde(with = "AsText")]
        path: Vec<u8>,
    },
    /// Replies with a [`FileReply::Event`] for each change, until it is killed; and with a
    /// [`FileReply::Told`] for each byte of stdin, once all changes before it have been told.
    Watch {
        /// The file or directory.
        #[serde(with = "AsText")]
        path: Vec<u8>,
        /// Whether everything below the directory is watched.
        recursive: bool,
    },
}

/// What the bytes behind it are: all of a file, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FilePiece {
    /// The file.
    #[serde(with = "AsText")]
    pub path: Vec<u8>,
    /// How many bytes follow.
    pub size: u64,
    /// Whether they go on with the file of the piece before, whatever the path is here.
    #[serde(default)]
    pub continues: bool,
}

impl Message for FilePiece {
    const MAX_FRAME: usize = 64 * 1024;

    fn append(&self, bytes: Vec<u8>) -> Result<Vec<u8>, Error> {
        append(self, bytes)
    }

    fn from_frame(frame: &[u8]) -> Result<Self, Error> {
        from_json(frame, "not a piece of a file")
    }
}

/// What becomes of an existing file that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Existing {
    /// It loses its bytes.
    Truncate,
    /// It keeps them, and grows.
    Append,
    /// It keeps them, except for those that are overwritten from this one on.
    At(u64),
    /// The operation fails.
    Refuse,
}

/// A reply of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FileReply {
    /// A file's attributes.
    Stat(FileStat),
    /// A file in a directory.
    Entry(FileEntry),
    /// What a symbolic link says, or where it leads.
    Target {
        /// Its target.
        #[serde(with = "AsText")]
        target: Vec<u8>,
    },
    /// A change.
    Event(FileEvent),
    /// All changes that came before a byte of stdin have been told.
    Told,
    /// Why the operation failed, on stderr.
    Failed(FileFailed),
    /// Something that is not in an archive, or was not unpacked from it, on stderr.
    LeftOut {
        /// The file's path in the archive.
        #[serde(with = "AsText")]
        path: Vec<u8>,
        /// What, and why.
        what: String,
    },
}

impl Message for FileReply {
    /// A path and a link's target, with each byte escaped.
    const MAX_FRAME: usize = 64 * 1024;

    fn append(&self, bytes: Vec<u8>) -> Result<Vec<u8>, Error> {
        append(self, bytes)
    }

    fn from_frame(frame: &[u8]) -> Result<Self, Error> {
        from_json(frame, "not a reply of an operation on files")
    }
}

fn append(value: &impl Serialize, mut bytes: Vec<u8>) -> Result<Vec<u8>, Error> {
    let written = serde_json::to_writer(&mut bytes, value);
    written.map_err(|_| Error::Malformed("not encodable"))?;
    Ok(bytes)
}

fn from_json<T: DeserializeOwned>(bytes: &[u8], otherwise: &'static str) -> Result<T, Error> {
    serde_json::from_slice(bytes).map_err(|_| Error::Malformed(otherwise))
}

/// A file's attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FileStat {
    /// Its type.
    pub kind: FileKind,
    /// Permission bits, 07777.
    pub mode: u16,
    /// The owner's number.
    pub uid: u32,
    /// The group's number.
    pub gid: u32,
    /// Its length in bytes.
    pub size: u64,
    /// Bytes that it occupies.
    pub allocated: u64,
    /// How many names it has.
    pub links: u32,
    /// Its number in its filesystem.
    pub inode: u64,
    /// A device's major and minor number.
    pub device: (u32, u32),
    /// Time of the last access.
    pub accessed: Timestamp,
    /// Time of the last change of the contents.
    pub modified: Timestamp,
    /// Time of the last change of contents or attributes.
    pub changed: Timestamp,
    /// Time at which it was made, where the filesystem knows it.
    pub created: Option<Timestamp>,
}

/// A file in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FileEntry {
    /// Its path from the listed directory.
    #[serde(with = "AsText")]
    pub path: Vec<u8>,
    /// Its attributes; a symbolic link's own.
    pub stat: FileStat,
    /// What a symbolic link says; empty for all else.
    #[serde(with = "AsText")]
    pub target: Vec<u8>,
}

/// A change of a file that is watched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FileEvent {
    /// What changed.
    pub change: FileChange,
    /// The file's path from the watched directory; empty for what is watched itself.
    #[serde(with = "AsText")]
    pub path: Vec<u8>,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// The same number in both halves of a move within what is watched; otherwise 0.
    pub cookie: u32,
}

/// What changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FileChange {
    /// It was made.
    Created,
    /// Its contents changed.
    Modified,
    /// It was closed by a process that had it open for writing.
    Written,
    /// Its mode, owner, times, links or extended attributes changed.
    Attributes,
    /// It was removed.
    Removed,
    /// It was moved away from this path.
    MovedFrom,
    /// It was moved to this path.
    MovedTo,
    /// Changes were lost: there were more than the kernel or the agent keeps track of.
    Overflow,
}

/// Why an operation failed after its start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FileFailed {
    /// The file, if it is another than that of the request.
    #[serde(with = "AsText")]
    pub path: Vec<u8>,
    /// The kernel's error number; 0 if the error is not the kernel's.
    pub errno: i32,
    /// The cause in words.
    pub message: String,
}

impl FileRequest {
    /// Encodes the request for [`FILES`].
    pub fn encode(&self) -> Vec<u8> {
        // Writing into memory fails only for maps whose keys are not strings, and it has none.
        append(self, Vec::new()).unwrap_or_default()
    }

    /// Decodes a request.
    ///
    /// # Errors
    /// [`Error::Malformed`] if the bytes are not exactly one request.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        from_json(bytes, "not an operation on files")
    }
}

impl FileFailed {
    /// Returns the failure as an error of the system.
    pub fn error(&self) -> io::Error {
        match self.errno {
            0 => io::Error::other(self.message.clone()),
            errno => io::Error::from_raw_os_error(errno),
        }
    }
}
