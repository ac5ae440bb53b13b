//! Reads archives of a sandbox's disk from a worker, and turns the worker's faults into errors.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use micabox_error::{Error, Source};
use micabox_jail::{Call, CallError};
use micabox_parsers::{Fault, HEADERS, Notes, Stream, length};

use crate::Base;
use crate::upper::{Keep, Opened};

/// How many times the base's bytes may be read: an image may have one body for several files.
const SHARED: u64 = 16;

/// What is read and for what purpose, as errors name it.
#[derive(Clone, Debug)]
pub struct About {
    doing: &'static str,
    disk: PathBuf,
    below: PathBuf,
    /// The requested path with the operation.
    asked: Option<String>,
}

impl About {
    /// Describes a read of the disk at a path, over its base.
    pub fn new(doing: &'static str, disk: &Path, base: &Base) -> Self {
        Self {
            doing,
            disk: disk.to_owned(),
            below: base.metadata_path(),
            asked: None,
        }
    }

    /// Adds the requested path.
    pub fn asked(self, path: &[u8]) -> Self {
        let path = String::from_utf8_lossy(path);
        Self {
            asked: Some(format!("{} {path}", self.doing)),
            ..self
        }
    }

    /// Returns the most bytes that may be read from a filesystem of `size` bytes and these files: the
    /// filesystem's size, as many again for headers, and the base's size times [`SHARED`].
    pub fn most(&self, size: u64, below: &[File]) -> u64 {
        let bytes = |file: &File| length(file).unwrap_or(0);
        let below = below.iter().map(bytes).fold(0, u64::saturating_add);
        size.saturating_mul(2)
            .saturating_add(HEADERS)
            .saturating_add(below.saturating_mul(SHARED))
    }

    /// Makes an error about the disk.
    pub fn disk(&self, source: impl Into<Source>) -> Error {
        Error::Disk {
            what: self.doing,
            path: self.disk.clone(),
            source: source.into(),
        }
    }

    /// Makes an error of a worker's fault.
    pub fn error(&self, error: CallError<Fault>) -> Error {
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
/// [`finish`](Unread::finish) reports whether it is complete. Dropping it ends what writes it.
#[derive(Debug)]
pub struct Unread {
    archive: Box<dyn Archive>,
}

/// What writes an archive, as it is read.
pub trait Archive: Read + std::fmt::Debug + Send {
    /// Discards the rest of the archive and checks that it was complete.
    ///
    /// # Errors
    /// Why the archive is incomplete.
    fn finish(self: Box<Self>) -> Result<Notes, Error>;

    /// Returns the error of what writes it, if reading failed because of that.
    fn verdict(self: Box<Self>) -> Option<Error>;
}

/// An archive of a disk or a folder, which a worker writes.
#[derive(Debug)]
struct OfDisk<C: Call> {
    stream: Stream<C>,
    about: About,
    keep: Keep,
}

impl<C: Call<Error = Fault>> Read for OfDisk<C> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.read(buffer)
    }
}

impl<C: Call<Reply = Notes, Error = Fault> + std::fmt::Debug> Archive for OfDisk<C> {
    fn finish(self: Box<Self>) -> Result<Notes, Error> {
        let Self {
            stream,
            about,
            keep,
        } = *self;
        let notes = stream.finish().map_err(|error| about.error(error))?;
        keep.check().map_err(|error| about.disk(error))?;
        Ok(notes)
    }

    fn verdict(self: Box<Self>) -> Option<Error> {
        let Self { stream, about, .. } = *self;
        stream.verdict().map(|error| about.error(error))
    }
}

impl Unread {
    /// Starts a job that writes an archive of an upper layer and the base below it.
    ///
    /// # Errors
    /// [`Error::Disk`] if the worker can't be started.
    pub fn start<C>(job: C, about: About, disk: Opened, below: Vec<File>) -> Result<Self, Error>
    where
        C: Call<Reply = Notes, Error = Fault> + std::fmt::Debug + 'static,
    {
        let most = about.most(disk.size, &below);
        let started = Stream::start(&job, disk.file, below, most);
        let stream = started.map_err(|error| about.error(error))?;
        let keep = disk.keep;
        Ok(Self::of(OfDisk {
            stream,
            about,
            keep,
        }))
    }

    /// Reads an archive that something else writes.
    pub fn of(archive: impl Archive + 'static) -> Self {
        Self {
            archive: Box::new(archive),
        }
    }

    /// Discards the rest of the archive and checks that it was complete.
    ///
    /// # Errors
    /// Why the archive is incomplete.
    pub fn finish(self) -> Result<Notes, Error> {
        self.archive.finish()
    }

    /// Returns the error about the disk or in the sandbox, if reading failed because of it.
    pub fn verdict(self) -> Option<Error> {
        self.archive.verdict()
    }
}

impl Read for Unread {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.archive.read(buffer)
    }
}
