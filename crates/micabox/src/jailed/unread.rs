//! Reads archives of a sandbox's disk from a worker, and turns the worker's faults into errors.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use micabox_jail::{Call, CallError};

use super::{Fault, Notes, Stream, length};
use crate::files::Packed;
use crate::upper::{Keep, Opened};
use crate::{Base, Error, Source};

/// How many times the base's bytes may be read: an image may have one body for several files.
const SHARED: u64 = 16;

/// Bytes of an archive's headers, beside the disk's size.
pub(super) const HEADERS: u64 = 64 << 20;

/// What is read and for what purpose, as errors name it.
#[derive(Clone, Debug)]
pub(crate) struct About {
    doing: &'static str,
    disk: PathBuf,
    below: PathBuf,
    /// The requested path with the operation.
    asked: Option<String>,
}

impl About {
    pub(crate) fn new(doing: &'static str, disk: &Path, base: &Base) -> Self {
        Self {
            doing,
            disk: disk.to_owned(),
            below: base.metadata_path(),
            asked: None,
        }
    }

    /// Adds the requested path.
    pub(crate) fn asked(self, path: &[u8]) -> Self {
        let path = String::from_utf8_lossy(path);
        Self {
            asked: Some(format!("{} {path}", self.doing)),
            ..self
        }
    }

    /// Returns the most bytes that may be read from a filesystem of `size` bytes and these files: the
    /// filesystem's size, as many again for headers, and the base's size times [`SHARED`].
    pub(crate) fn most(&self, size: u64, below: &[File]) -> u64 {
        let bytes = |file: &File| length(file).unwrap_or(0);
        let below = below.iter().map(bytes).fold(0, u64::saturating_add);
        size.saturating_mul(2)
            .saturating_add(HEADERS)
            .saturating_add(below.saturating_mul(SHARED))
    }

    /// Makes an error about the disk.
    pub(crate) fn disk(&self, source: impl Into<Source>) -> Error {
        Error::Disk {
            what: self.doing,
            path: self.disk.clone(),
            source: source.into(),
        }
    }

    pub(crate) fn error(&self, error: CallError<Fault>) -> Error {
        match error {
            CallError::Refused(Fault::Disk(problem)) => self.disk(problem),
            CallError::Refused(Fault::Below(problem)) => Error::ImageFile {
                path: self.below.clone(),
                source: problem.into(),
            },
            CallError::Refused(Fault::Asked(problem)) => match &self.asked {
                Some(what) => Error::Patch {
                    what: what.clone(),
                    source: problem.into(),
                },
                None => self.disk(problem),
            },
            CallError::Refused(Fault::Missing(problem)) => Error::Patch {
                what: self.asked.clone().unwrap_or_default(),
                source: io::Error::new(io::ErrorKind::NotFound, problem).into(),
            },
            CallError::Refused(Fault::Output(problem)) => Error::System {
                what: "writing the archive",
                source: io::Error::other(problem),
            },
            error => self.disk(error),
        }
    }
}

/// An archive that a worker, or a running sandbox's agent, writes while the caller reads it. Only
/// [`finish`](Unread::finish) reports whether it is complete. Dropping it ends the worker.
#[derive(Debug)]
pub struct Unread {
    made: Made,
}

#[derive(Debug)]
enum Made {
    Disk(Box<dyn Archive>, About, Keep),
    Agent(Packed),
}

/// A [`Stream`] of any kind of job.
trait Archive: Read + std::fmt::Debug + Send {
    fn finish(self: Box<Self>) -> Result<Notes, CallError<Fault>>;
    fn verdict(self: Box<Self>) -> Option<CallError<Fault>>;
}

impl<C> Archive for Stream<C>
where
    C: Call<Reply = Notes, Error = Fault> + 'static,
{
    fn finish(self: Box<Self>) -> Result<Notes, CallError<Fault>> {
        Self::finish(*self)
    }

    fn verdict(self: Box<Self>) -> Option<CallError<Fault>> {
        Self::verdict(*self)
    }
}

impl Unread {
    pub(crate) fn start<C>(
        job: C,
        about: About,
        disk: Opened,
        below: Vec<File>,
    ) -> Result<Self, Error>
    where
        C: Call<Reply = Notes, Error = Fault> + 'static,
    {
        let most = about.most(disk.size, &below);
        let started = Stream::start(&job, disk.file, below, most);
        let stream = started.map_err(|error| about.error(error))?;
        Ok(Self {
            made: Made::Disk(Box::new(stream), about, disk.keep),
        })
    }

    /// Discards the rest of the archive and checks that it was complete.
    ///
    /// # Errors
    /// Why the archive is incomplete.
    pub fn finish(self) -> Result<Notes, Error> {
        match self.made {
            Made::Disk(archive, about, keep) => {
                let notes = archive.finish().map_err(|error| about.error(error))?;
                keep.check().map_err(|error| about.disk(error))?;
                Ok(notes)
            }
            Made::Agent(archive) => archive.finish(),
        }
    }

    /// Returns the error about the disk or in the sandbox, if reading failed because of it.
    pub fn verdict(self) -> Option<Error> {
        match self.made {
            Made::Disk(archive, about, _) => archive.verdict().map(|error| about.error(error)),
            Made::Agent(archive) => archive.finish().err(),
        }
    }
}

impl From<Packed> for Unread {
    fn from(archive: Packed) -> Self {
        Self {
            made: Made::Agent(archive),
        }
    }
}

impl Read for Unread {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.made {
            Made::Disk(archive, _, _) => archive.read(buffer),
            Made::Agent(archive) => archive.read(buffer),
        }
    }
}
