//! Converts layers in a worker process in the jail.
//!
//! The caller reads the blob into memory that the worker can read but not change ([`Feed`]), and
//! hashes it there. The worker receives that memory and the files to write, and replies with the
//! layer's metadata. So a compromised worker can't pass off other bytes as the blob. It can lie
//! about the result, including the diff ID, which is why a layer is used for another blob only
//! after that blob was converted to exactly the same image ([`crate::store::Store::claim_layer`]).

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::time::SystemTime;

use micabox_jail::{Call, CallError, Fed, Feed, Kind, Worker};
use serde::{Deserialize, Serialize};

use super::converted::Converted;
use super::decompress::ForeignCompression;
use super::error::Reason;
use super::expect::Expect;
use super::image::make;
use super::media_type::LayerKind;
use super::pipeline;
use super::source::Expected;
use crate::Limits;
use crate::limits::Limit;
use crate::store::ChecksummedFile;
use micabox_oci::Digest;

/// Where layers are converted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Place {
    /// In a separate process, in the jail: the process that reads the blob can open no files, and
    /// its memory and its writes are limited. The program must call
    /// [`micabox_jail::run_if_worker`] with [`WORKER`], or have `mica` beside it.
    #[default]
    Jail,
    /// In the calling process.
    Here,
}

/// The kind of worker that converts layers.
pub const WORKER: Kind = Kind::parser::<Task>();

/// Memory of a conversion apart from the settings' limits: buffers, and 64 MiB that the allocator
/// reserves for each thread.
const FIXED_MEMORY: u64 = 512 << 20;
/// Bytes of an image apart from files and metadata: padding of blocks and inodes.
const SLACK: u64 = 1 << 30;

/// A request to a worker. Its files are the blob's two, the image, and the recipe or the file into
/// which an EROFS image is unpacked.
#[derive(Serialize, Deserialize)]
struct Task {
    diff_id: Digest,
    kind: LayerKind,
    blob_size: Option<u64>,
    limits: Limits,
}

impl Call for Task {
    const KIND: &'static str = "convert";
    type Reply = Converted;
    type Error = Refusal;

    fn run(self, files: Vec<OwnedFd>) -> Result<Converted, Refusal> {
        let [memory, signals, image, second] = <[OwnedFd; 4]>::try_from(files)
            .map_err(|_| Refusal::Source(None, "four files are needed".to_owned()))?;
        let blob =
            Fed::new([memory, signals]).map_err(|error| Refusal::from(Reason::Source(error)))?;
        let expect = Expect {
            blob: None,
            diff_id: self.diff_id,
            archive: self.kind.archive(),
            checksum: None,
        };
        let expected = Expected {
            what: &expect,
            hashed_by_caller: true,
            blob_size: self.blob_size,
        };
        let out = ChecksummedFile::new(image.into());
        make(blob, expected, self.kind, out, second.into(), &self.limits).map_err(Refusal::from)
    }
}

/// Makes a worker write `image`, and the recipe into `second`.
pub(super) fn convert(
    source: impl Read,
    expected: Expected<'_>,
    kind: LayerKind,
    image: &File,
    second: &File,
    limits: &Limits,
) -> Result<Converted, Reason> {
    let task = Task {
        diff_id: expected.what.diff_id,
        kind,
        blob_size: expected.blob_size,
        limits: limits.clone(),
    };
    let (mut feed, [memory, signals]) = Feed::new().map_err(Reason::Write)?;
    let copy = |file: &File| file.try_clone().map(OwnedFd::from).map_err(Reason::Write);
    let files = vec![memory, signals, copy(image)?, copy(second)?];
    let worker = Worker::start(&task, files, &jail_limits(limits)).map_err(reason)?;
    // If the source fails, the worker is dropped and thereby killed.
    let mut patience = Patience::new([image, second], limits.idle_timeout);
    let passed = pipeline::pass(source, expected, &mut feed, |got| patience.lasts(got))?;
    let answer = worker.wait_while(|| patience.lasts(0));
    if patience.is_over() {
        return Err(Reason::Worker(format!(
            "it neither read nor wrote for {} s, the limit `idle-timeout`, which can be raised in \
             the settings",
            limits.idle_timeout
        )));
    }
    let answer = match (passed, answer.map_err(reason)) {
        (_, Err(worker @ Reason::Worker(_))) => return Err(worker),
        (None, Ok(_)) => return Err(Reason::Worker("it replied before the blob's end".into())),
        (None, Err(refusal)) => return Err(refusal),
        (Some(passed), answer) => {
            // Exceeded limits are independent of the rest of the blob.
            if let Err(limit @ (Reason::Limit { .. } | Reason::Write(_))) = answer {
                return Err(limit);
            }
            passed.check(expected)?;
            answer?
        }
    };
    check(&answer, kind, second)?;
    Ok(answer)
}

/// Limits the wait for a worker that may be compromised: it must make progress, in the bytes it
/// reads or in the files it writes.
pub(super) struct Patience<'a> {
    files: [&'a File; 2],
    /// Blob bytes that the worker was given, and the state of its files.
    seen: (u64, [Option<Written>; 2]),
    idle: u64,
    limit: u64,
}

/// Length and mtime of a file.
type Written = (u64, SystemTime);

impl<'a> Patience<'a> {
    pub(super) fn new(files: [&'a File; 2], limit: u64) -> Self {
        Self {
            files,
            seen: (0, [None; 2]),
            idle: 0,
            // At least one check must pass before the wait is over.
            limit: limit.max(1),
        }
    }

    /// Returns whether to keep waiting. Called once per second of waiting, so time in which this
    /// process was stopped as well doesn't count.
    pub(super) fn lasts(&mut self, given: u64) -> bool {
        if self.is_over() {
            return false;
        }
        let state = |file: &File| {
            let state = file.metadata().ok()?;
            Some((state.len(), state.modified().ok()?))
        };
        let now = (given, self.files.map(state));
        self.idle = if self.seen == now { self.idle + 1 } else { 0 };
        self.seen = now;
        !self.is_over()
    }

    fn is_over(&self) -> bool {
        self.idle >= self.limit
    }
}

pub(super) fn jail_limits(limits: &Limits) -> micabox_jail::Limits {
    micabox_jail::Limits {
        memory: limits
            .metadata_size
            .saturating_mul(2)
            .saturating_add(limits.zstd_window)
            .saturating_add(FIXED_MEMORY),
        // A file's length includes blocks that are partly a hole, though the disk usage doesn't.
        file_size: limits
            .layer_size
            .saturating_mul(2)
            .saturating_add(limits.metadata_size)
            .saturating_add(SLACK),
        ..micabox_jail::Limits::default()
    }
}

/// Checks what can be checked of a reply without repeating the work.
fn check(converted: &Converted, kind: LayerKind, recipe: &File) -> Result<(), Reason> {
    let length = recipe.metadata().map_err(Reason::Write)?.len();
    let is_whole = match (&converted.recipe, kind) {
        (Some(recipe), LayerKind::Archive) => recipe.size == length,
        (None, LayerKind::Erofs | LayerKind::Device { .. }) => true,
        _ => false,
    };
    if !is_whole || converted.blocks > u64::from(u32::MAX) {
        return Err(Reason::Worker("its answer contradicts itself".into()));
    }
    Ok(())
}

/// Why a worker made no layer: a [`Reason`] that can leave the jail.
#[derive(Debug, Serialize, Deserialize, thiserror::Error)]
pub(super) enum Refusal {
    #[error("{1}")]
    Source(Option<i32>, String),
    #[error("{1}")]
    Write(Option<i32>, String),
    #[error("{actual}")]
    DiffId { expected: Digest, actual: Digest },
    #[error("{0}")]
    Compression(ForeignCompression),
    #[error("{0}")]
    Compressed(String),
    #[error("{problem}")]
    Archive {
        offset: u64,
        entry: Option<String>,
        problem: String,
    },
    #[error("{problem}")]
    Entry { entry: String, problem: String },
    #[error("{setting}")]
    Limit {
        setting: Limit,
        limit: u64,
        entry: Option<String>,
    },
    #[error("{0}")]
    ForeignErofs(String),
    #[error("{0}")]
    Erofs(String),
    #[error("{0}")]
    Other(String),
}

impl From<Reason> for Refusal {
    fn from(reason: Reason) -> Self {
        match reason {
            Reason::Source(error) => Self::Source(error.raw_os_error(), error.to_string()),
            Reason::Write(error) => Self::Write(error.raw_os_error(), error.to_string()),
            Reason::DiffId { expected, actual } => Self::DiffId { expected, actual },
            Reason::Compression(name) => Self::Compression(name),
            Reason::Compressed(problem) => Self::Compressed(problem),
            Reason::Archive {
                offset,
                entry,
                problem,
            } => Self::Archive {
                offset,
                entry,
                problem,
            },
            Reason::Entry { entry, problem } => Self::Entry { entry, problem },
            Reason::Limit {
                setting,
                limit,
                entry,
            } => Self::Limit {
                setting,
                limit,
                entry,
            },
            Reason::ForeignErofs(problem) => Self::ForeignErofs(problem),
            Reason::Erofs(problem) => Self::Erofs(problem),
            other => Self::Other(other.to_string()),
        }
    }
}

pub(super) fn reason(error: CallError<Refusal>) -> Reason {
    let refusal = match error {
        CallError::Refused(refusal) => refusal,
        CallError::Died { death, .. } => return Reason::Worker(bounded(&format!("it {death}"))),
        CallError::Start { source, .. } => return Reason::Worker(format!("no start: {source}")),
    };
    let entry = |entry: Option<String>| entry.as_deref().map(bounded);
    match refusal {
        Refusal::Source(code, text) => Reason::Source(io_error(code, &text)),
        Refusal::Write(code, text) => Reason::Write(io_error(code, &text)),
        Refusal::DiffId { expected, actual } => Reason::DiffId { expected, actual },
        Refusal::Compression(name) => Reason::Compression(name),
        Refusal::Compressed(problem) => Reason::Compressed(bounded(&problem)),
        Refusal::Archive {
            offset,
            entry: name,
            problem,
        } => Reason::Archive {
            offset,
            entry: entry(name),
            problem: bounded(&problem),
        },
        Refusal::Entry { entry, problem } => Reason::Entry {
            entry: bounded(&entry),
            problem: bounded(&problem),
        },
        Refusal::Limit {
            setting,
            limit,
            entry: name,
        } => Reason::Limit {
            setting,
            limit,
            entry: entry(name),
        },
        Refusal::ForeignErofs(problem) => Reason::ForeignErofs(bounded(&problem)),
        Refusal::Erofs(problem) => Reason::Erofs(bounded(&problem)),
        Refusal::Other(problem) => Reason::Worker(bounded(&problem)),
    }
}

fn io_error(code: Option<i32>, text: &str) -> io::Error {
    match code {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::other(bounded(text)),
    }
}

/// Limits and cleans a worker's text, which is as foreign as the blob.
fn bounded(text: &str) -> String {
    const MOST: usize = 2000;
    let clean = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    clean.take(MOST).collect()
}
