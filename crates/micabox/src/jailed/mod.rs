//! What reads bytes that guests and strangers wrote, each in a process of its own, in jail.
//!
//! A kind of job is one type: its fields are the request, [`Call::run`] is the worker's side.
//! It is given open files and opens nothing: first the filesystem, then a stream in or out if
//! there is one, then what is below a disk for changes. What may be large comes or goes through
//! the stream, which is a pipe: an archive, bytes, or [`records`]. The caller's side is beside
//! what it is for: [`crate::files`], [`crate::commit`], `crate::upper::still`.
//!
//! | kind | reads | writes |
//! |---|---|---|
//! | [`disk`] | a disk for changes, an image or a root disk | what `diff`, `commit`, `cp` are about; patches; what a root disk is |
//! | [`ext4`] | any ext4 filesystem | what `mica ext4` is about |

mod disk;
pub mod ext4;
pub(crate) mod records;
mod stream;
mod unread;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use micabox_jail::{Call, Kind, Limits, Worker};
use serde::{Deserialize, Serialize};

pub use micabox_jail::CallError;

pub(crate) use disk::{Changes, Inspect, Inspected, Layer, Look, Pack, Patches, Settle};
pub use stream::{Records, Stream};
pub(crate) use unread::About;
pub use unread::Unread;

/// All kinds of jobs.
pub(crate) const KINDS: &[Kind] = &[
    Kind::parser::<Changes>(),
    Kind::parser::<Layer>(),
    Kind::parser::<Look>(),
    Kind::parser::<Pack>(),
    Kind::parser::<Patches>(),
    Kind::parser::<Settle>(),
    Kind::parser::<Inspect>(),
    Kind::parser::<ext4::List>(),
    Kind::parser::<ext4::Show>(),
    Kind::parser::<ext4::Read>(),
    Kind::parser::<ext4::Export>(),
    Kind::parser::<ext4::Import>(),
    Kind::parser::<ext4::Check>(),
    Kind::parser::<ext4::Replay>(),
    Kind::parser::<ext4::Grow>(),
];

/// Bytes of memory of a worker: more than any filesystem in order needs, but for what says of
/// each block of a large one whether it is in use.
const MEMORY: u64 = 2 << 30;

/// Bytes of a filesystem that may cost a byte of memory beside that.
const BYTES_A_BYTE: u64 = 8192;

/// Bytes of a reply: a list of names at most, all else goes through streams.
const REPLY: u64 = 64 << 20;

/// What a worker may use that reads a filesystem. A file that it writes to may become
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
    /// The filesystem that it is about.
    #[error("{0}")]
    Disk(String),
    /// What is below a disk for changes.
    #[error("{0}")]
    Below(String),
    /// What was asked for: a path, an archive's member.
    #[error("{0}")]
    Asked(String),
    /// What is written to failed.
    #[error("{0}")]
    Output(String),
}

impl Fault {
    fn disk(error: impl ToString) -> Self {
        Self::Disk(error.to_string())
    }

    fn asked(error: impl ToString) -> Self {
        Self::Asked(error.to_string())
    }

    fn output(error: impl ToString) -> Self {
        Self::Output(error.to_string())
    }
}

/// What there is to tell of a disk that was read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notes {
    /// Its filesystem had errors, and has been marked so since: some of it may be lost.
    pub damaged: bool,
    /// Paths of sockets that were left out, of the first hundred.
    pub sockets: Vec<Vec<u8>>,
    /// How many more sockets there were.
    pub more_sockets: u64,
}

/// Files that a worker was given, in their order.
struct Files(std::vec::IntoIter<OwnedFd>);

impl Files {
    fn new(files: Vec<OwnedFd>) -> Self {
        Self(files.into_iter())
    }

    fn next(&mut self) -> Result<File, Fault> {
        let next = self.0.next().map(File::from);
        next.ok_or_else(|| Fault::Disk("a file was not handed over".into()))
    }

    fn rest(self) -> Vec<File> {
        self.0.map(File::from).collect()
    }
}

/// Has a job done whose files are `first` and `rest`. A file that is written to may become
/// `file_size` bytes long.
pub(crate) fn call<C: Call>(
    job: &C,
    first: File,
    rest: Vec<File>,
    file_size: u64,
) -> Result<C::Reply, CallError<C::Error>> {
    let limits = limits(&first, file_size);
    let files = [first].into_iter().chain(rest).map(OwnedFd::from);
    Worker::start(job, files.collect(), &limits)?.wait()
}

/// Bytes of a file, or of a block device.
fn length(mut file: &File) -> io::Result<u64> {
    io::Seek::seek(&mut file, io::SeekFrom::End(0))
}
