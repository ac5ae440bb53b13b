//! What a sandbox's disk is read for: an archive that comes from a worker, and what to say when
//! none comes.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use micabox_jail::{Call, CallError};

use super::{Fault, Notes, Stream, length};
use crate::error::chain;
use crate::{Base, Error};

/// How many times what is below may come out: an image may have one body for several files.
const SHARED: u64 = 16;

/// Bytes of headers of an archive, beside those that the disk has.
pub(super) const HEADERS: u64 = 64 << 20;

/// What is read, and what for, as errors name it.
#[derive(Clone, Debug)]
pub(crate) struct About {
    doing: &'static str,
    disk: PathBuf,
    below: PathBuf,
    /// What was asked for.
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

    /// With the path that was asked for.
    pub(crate) fn asked(self, path: &[u8]) -> Self {
        let path = String::from_utf8_lossy(path);
        Self {
            asked: Some(format!("{} {path}", self.doing)),
            ..self
        }
    }

    /// Most bytes that may come out of these files: as many as the disk has, as many again for
    /// what an archive says of files, and what is below, of which several files may be one.
    pub(crate) fn most(&self, disk: &File, below: &[File]) -> u64 {
        let bytes = |file: &File| length(file).unwrap_or(0);
        let below = below.iter().map(bytes).fold(0, u64::saturating_add);
        bytes(disk)
            .saturating_mul(2)
            .saturating_add(HEADERS)
            .saturating_add(below.saturating_mul(SHARED))
    }

    /// An error about the disk.
    pub(crate) fn disk(&self, problem: String) -> Error {
        Error::Disk {
            what: self.doing,
            path: self.disk.clone(),
            problem,
        }
    }

    pub(crate) fn error(&self, error: CallError<Fault>) -> Error {
        match error {
            CallError::Refused(Fault::Disk(problem)) => self.disk(problem),
            CallError::Refused(Fault::Below(problem)) => Error::ImageFile {
                path: self.below.clone(),
                problem,
            },
            CallError::Refused(Fault::Asked(problem)) => match &self.asked {
                Some(what) => Error::Patch {
                    what: what.clone(),
                    problem,
                },
                None => self.disk(problem),
            },
            CallError::Refused(Fault::Output(problem)) => Error::System {
                what: "writing the archive",
                source: io::Error::other(problem),
            },
            error => self.disk(chain(&error)),
        }
    }
}

/// An archive that a worker writes while it is read. Only [`finish`](Unread::finish) says
/// whether that was all; dropped before, the worker ends.
#[derive(Debug)]
pub struct Unread {
    archive: Box<dyn Archive>,
    about: About,
}

/// A [`Stream`] whose kind of job does not matter any more.
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
        disk: File,
        below: Vec<File>,
    ) -> Result<Self, Error>
    where
        C: Call<Reply = Notes, Error = Fault> + 'static,
    {
        let most = about.most(&disk, &below);
        let started = Stream::start(&job, disk, below, most);
        let stream = started.map_err(|error| about.error(error))?;
        Ok(Self {
            archive: Box::new(stream),
            about,
        })
    }

    /// Whether the archive came to its end as it was to, after the rest of it.
    ///
    /// # Errors
    /// Why it did not.
    pub fn finish(self) -> Result<Notes, Error> {
        let finished = self.archive.finish();
        finished.map_err(|error| self.about.error(error))
    }

    /// What is wrong with the disk, if that is why reading failed.
    pub fn verdict(self) -> Option<Error> {
        let verdict = self.archive.verdict();
        verdict.map(|error| self.about.error(error))
    }
}

impl Read for Unread {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.archive.read(buffer)
    }
}
