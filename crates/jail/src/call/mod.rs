//! A call of a parser: a request and open files in, a reply out, by a worker in between.

mod owner;
mod serve;

use std::fmt;
use std::io;
use std::os::fd::{OwnedFd, RawFd};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{Kind, Walls};
pub use owner::Worker;
pub(crate) use serve::serve;

/// What a kind of parser is asked, and how it answers. Requests and replies travel in the
/// format of `postcard`: any bytes, but no `serde_json::Value` and no untagged enum.
pub trait Call: Serialize + DeserializeOwned {
    /// Its name on the worker's command line.
    const KIND: &'static str;
    /// What it answers.
    type Reply: Serialize + DeserializeOwned + 'static;
    /// Why it does not.
    type Error: Serialize + DeserializeOwned + fmt::Debug + fmt::Display + 'static;

    /// Answers, in the worker. `files` are those that the caller gave, in their order.
    ///
    /// # Errors
    /// The call's own, for the caller.
    fn run(self, files: Vec<OwnedFd>) -> Result<Self::Reply, Self::Error>;
}

/// What a worker may use.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of address space beyond what any worker needs: what it allocates and maps, and
    /// 2 MiB for the stack of each thread.
    pub memory: u64,
    /// The longest that a file may become which it writes to, in bytes. It gets an error
    /// (`EFBIG`) at that length.
    pub file_size: u64,
    /// Seconds of processor time, of all its threads together.
    pub processor_seconds: Option<u64>,
    /// Bytes of its reply.
    pub reply: u64,
}

impl Default for Limits {
    /// 256 MiB of memory, no writing, all the time it likes, a reply of 1 MiB.
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
    /// It ended without a reply, or with nonsense for one.
    #[error("the worker that parses ({kind}) {death}")]
    Died {
        /// The kind of worker.
        kind: &'static str,
        /// How.
        death: Death,
    },
    /// It was not started.
    #[error("starting a worker ({kind})")]
    Start {
        /// The kind of worker.
        kind: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// How a worker ended that gave no reply. Texts are what it said, for a terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Death {
    /// It gave up, mostly for want of memory: the text tells.
    Aborted(String),
    /// It used up its processor time.
    OutOfTime,
    /// Its caller waited no longer.
    GivenUp,
    /// It made a system call that no parser makes.
    ForbiddenCall(String),
    /// A mistake of ours.
    Panicked(String),
    /// A signal ended it; SIGKILL is the kernel's when the host is out of memory.
    Signal(i32),
    /// It did not get into jail, or left without a reply.
    Exited(i32, String),
    /// What it replied is too long, or can't be read.
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

/// Descriptors of a worker, beside its files in their order.
#[derive(Debug, Serialize, Deserialize)]
struct Given {
    reply: RawFd,
    files: Vec<RawFd>,
}

/// Asks a worker about its jail.
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

/// Every program of ours can be this one.
pub(crate) const PROBE: Kind = Kind::parser::<Probe>();

/// Starts a worker to see what jail a parser gets on this host.
///
/// # Errors
/// Why there is no worker at all.
pub fn probe() -> Result<Walls, String> {
    let worker = Worker::start(&Probe, Vec::new(), &Limits::default());
    worker.and_then(Worker::wait).map_err(|error| match error {
        CallError::Start { source, .. } => source.to_string(),
        error => error.to_string(),
    })
}
