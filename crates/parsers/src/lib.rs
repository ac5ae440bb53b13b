//! Jobs that read bytes written by guests and strangers, each in a process of its own, in the jail.
//!
//! A kind of job is one type: its fields are the request, and [`Call::run`] is the worker's side. A
//! worker gets open files and opens nothing: first the filesystem, then a stream in or out if there
//! is one, then the base of a disk for changes. What may be large passes through the stream, which
//! is a pipe: an archive, bytes, or [`records`].
//!
//! | kind | reads | writes |
//! |---|---|---|
//! | [`disk`] | a disk for changes, an image or a root disk | for `diff`, `commit`, `cp`; patches; checks |
//! | [`ext4`] | any ext4 filesystem | for `mica ext4` |
//! | [`unwrap`] | a disk image, with or without partitions | the filesystem in it |

mod changes;
mod disk;
pub mod ext4;
mod patches;
pub mod records;
mod root_disk;
mod served;
mod stream;
mod unwrap;
mod wrapped;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use micabox_jail::{Call, Kind, Limits, Worker};
use serde::{Deserialize, Serialize};

pub use micabox_jail::CallError;

pub use changes::{ChangesError, read_changes, write_changes};
pub use patches::PatchFault;
pub use root_disk::{Claim, Format, OpenDisk, RootDisk, filesystem, foreign, is_dirty};
pub use served::Served;
pub use wrapped::{is_wrapped, unwrap};

pub use disk::{Changes, Inspect, Inspected, Layer, Look, Medium, Pack, Patches, Settle};
pub use stream::{Records, Stream};
pub use unwrap::{NoFilesystem, Unwrap};

/// All kinds of jobs.
pub const KINDS: &[Kind] = &[
    Kind::parser::<Changes>(),
    Kind::parser::<Layer>(),
    Kind::parser::<Look>(),
    Kind::parser::<Pack>(),
    Kind::parser::<Patches>(),
    Kind::parser::<Settle>(),
    Kind::parser::<Inspect>(),
    Kind::parser::<Unwrap>(),
    Kind::parser::<ext4::List>(),
    Kind::parser::<ext4::Show>(),
    Kind::parser::<ext4::Read>(),
    Kind::parser::<ext4::Export>(),
    Kind::parser::<ext4::Import>(),
    Kind::parser::<ext4::Check>(),
    Kind::parser::<ext4::Replay>(),
    Kind::parser::<ext4::Grow>(),
];

/// Bytes of memory of a worker: more than any sound filesystem needs, except for the block bitmap
/// of a large one.
const MEMORY: u64 = 2 << 30;

/// Bytes of a filesystem for each additional byte of memory.
const BYTES_A_BYTE: u64 = 8192;

/// Most bytes of a reply: a list of names at most. Everything else goes through streams.
const REPLY: u64 = 64 << 20;

/// Bytes of an archive's headers, beside the disk's size.
pub const HEADERS: u64 = 64 << 20;

/// Returns the limits of a worker that reads a filesystem. A file that it writes to may become
/// `file_size` bytes long.
fn limits(filesystem: &File, file_size: u64) -> Limits {
    let size = length(filesystem).unwrap_or(0);
    Limits {
        memory: MEMORY + size / BYTES_A_BYTE,
        file_size,
        processor_seconds: None,
        reply: REPLY,
    }
}

/// Why a job was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Fault {
    /// The filesystem can't be read or written.
    #[error("{0}")]
    Disk(String),
    /// The base of a disk for changes can't be read.
    #[error("{0}")]
    Below(String),
    /// The requested path or an archive's member is the problem.
    #[error("{0}")]
    Asked(String),
    /// Writing the output failed.
    #[error("{0}")]
    Output(String),
    /// Nothing is at the requested path.
    #[error("{0}")]
    Missing(String),
}

impl Fault {
    /// A fault of the filesystem.
    pub fn disk(error: impl ToString) -> Self {
        Self::Disk(error.to_string())
    }

    /// A fault of the request.
    pub fn asked(error: impl ToString) -> Self {
        Self::Asked(error.to_string())
    }

    /// A fault of the output.
    pub fn output(error: impl ToString) -> Self {
        Self::Output(error.to_string())
    }
}

/// Notes about a disk that was read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notes {
    /// Whether its filesystem is marked as having had errors: some of it may be lost.
    pub damaged: bool,
    /// Paths of the first hundred sockets that were left out.
    pub sockets: Vec<Vec<u8>>,
    /// How many more sockets were left out.
    pub more_sockets: u64,
}

/// The files that a worker was given, in order.
pub struct Files(std::vec::IntoIter<OwnedFd>);

impl Files {
    /// Takes the files of a call.
    pub fn new(files: Vec<OwnedFd>) -> Self {
        Self(files.into_iter())
    }

    /// Returns the next file.
    ///
    /// # Errors
    /// [`Fault::Disk`] if there is none.
    pub fn take(&mut self) -> Result<File, Fault> {
        let next = self.0.next().map(File::from);
        next.ok_or_else(|| Fault::Disk("a file was not handed over".into()))
    }

    /// Returns the remaining files.
    pub fn rest(self) -> Vec<File> {
        self.0.map(File::from).collect()
    }
}

/// Runs a job with the files `first` and `rest` in a worker. A file that it writes to may become
/// `file_size` bytes long.
pub fn call<C: Call>(
    job: &C,
    first: File,
    rest: Vec<File>,
    file_size: u64,
) -> Result<C::Reply, CallError<C::Error>> {
    let limits = limits(&first, file_size);
    let files = [first].into_iter().chain(rest).map(OwnedFd::from);
    Worker::start(job, files.collect(), &limits)?.wait()
}

/// Returns the length of a file or a block device in bytes.
pub fn length(mut file: &File) -> io::Result<u64> {
    io::Seek::seek(&mut file, io::SeekFrom::End(0))
}
