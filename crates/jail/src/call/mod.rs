//! Calls of parsers: a worker gets a request and open files, and returns a reply.

mod owner;
mod serve;

use std::fmt;
use std::io;
use std::os::fd::{OwnedFd, RawFd};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{Kind, Walls};
pub use owner::{Worker, wait_for_ended_workers};
pub(crate) use serve::{parser_filter, serve};

/// A request to a kind of parser, and how the parser answers it. Requests and replies are encoded
/// with `postcard`: any bytes, but no `serde_json::Value` and no untagged enum.
pub trait Call: Serialize + DeserializeOwned {
    /// Its name on the worker's command line.
    const KIND: &'static str;
    /// The reply.
    type Reply: Serialize + DeserializeOwned + 'static;
    /// System calls that it makes beside those of all parsers.
    const CALLS: &'static [libc::c_long] = &[];
    /// The error in place of a reply.
    type Error: Serialize + DeserializeOwned + fmt::Debug + fmt::Display + 'static;

    /// Computes the reply, in the worker. `files` are the caller's, in the same order.
    ///
    /// # Errors
    /// The call's own error, which the caller gets.
    fn run(self, files: Vec<OwnedFd>) -> Result<Self::Reply, Self::Error>;
}

/// Limits on a worker.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of address space beyond what every worker needs: what it allocates and maps, and 2 MiB
    /// for the stack of each thread.
    pub memory: u64,
    /// The maximum length in bytes of a file that the worker writes to. At that length its writes
    /// fail (`EFBIG`).
    pub file_size: u64,
    /// Seconds of processor time, of all its threads together.
    pub processor_seconds: Option<u64>,
    /// Maximum bytes of the reply.
    pub reply: u64,
}

impl Default for Limits {
    /// 256 MiB of memory, no writing, unlimited time, a reply of 1 MiB.
    fn default() -> Self {
        Self {
            memory: 256 << 20,
            file_size: 0,
            processor_seconds: None,
            reply: 1 << 20,
        }
    }
}

/// Why there is no reply.
#[derive(Debug, thiserror::Error)]
pub enum CallError<E: fmt::Debug + fmt::Display> {
    /// The worker's own error.
    #[error("{0}")]
    Refused(E),
    /// The worker ended without a reply, or with an invalid one.
    #[error("the worker that parses ({kind}) {death}")]
    Died {
        /// The kind of worker.
        kind: &'static str,
        /// How it ended.
        death: Death,
    },
    /// The worker could not be started.
    #[error("starting a worker ({kind})")]
    Start {
        /// The kind of worker.
        kind: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// How a worker without a reply ended. Texts are what it wrote to stderr, cleaned for a terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Death {
    /// It aborted, mostly because it ran out of memory; the text has the reason.
    Aborted(String),
    /// It used up its processor time.
    OutOfTime,
    /// The caller gave up waiting.
    GivenUp,
    /// It made a system call that parsers must not make.
    ForbiddenCall(String),
    /// It panicked: a bug in this program.
    Panicked(String),
    /// A signal ended it; SIGKILL is the kernel's when the host is out of memory.
    Signal(i32),
    /// It could not enter the jail, or exited without a reply.
    Exited(i32, String),
    /// The reply is too long or can't be decoded.
    BadReply,
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Aborted(text) => write!(f, "gave up: {text}"),
            Self::OutOfTime => f.write_str("used up its processor time"),
            Self::GivenUp => f.write_str("took too long"),
            Self::ForbiddenCall(text) => write!(f, "was stopped by its filter: {text}"),
            Self::Panicked(text) => f.write_str(text),
            Self::Signal(libc::SIGKILL) => f.write_str("was killed: the host may be out of memory"),
            Self::Signal(signal) => write!(f, "was ended by signal {signal}"),
            Self::Exited(code, text) => write!(f, "ended with code {code}: {text}"),
            Self::BadReply => f.write_str("sent no valid reply"),
        }
    }
}

/// A worker's descriptors: of its reply, and of its files in order.
#[derive(Debug, Serialize, Deserialize)]
struct Given {
    reply: RawFd,
    files: Vec<RawFd>,
}

/// Request for the walls of a worker's jail.
#[derive(Serialize, Deserialize)]
struct Probe;

impl Call for Probe {
    const KIND: &'static str = "probe";
    type Reply = Walls;
    type Error = String;

    fn run(self, _files: Vec<OwnedFd>) -> Result<Walls, String> {
        serve::walls().ok_or_else(|| "it is not in jail".to_owned())
    }
}

/// The worker for [`Probe`], which every program that runs workers has.
pub(crate) const PROBE: Kind = Kind::parser::<Probe>();

/// Starts a worker to find out which jail a parser gets on this host.
///
/// # Errors
/// Why a worker could not be started.
pub fn probe() -> Result<Walls, String> {
    let worker = Worker::start(&Probe, Vec::new(), &Limits::default());
    worker.and_then(Worker::wait).map_err(|error| match error {
        CallError::Start { source, .. } => source.to_string(),
        error => error.to_string(),
    })
}
