//! A sandbox's disk at one moment.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{Change, copy, disk, read_changes};
use crate::jailed::{About, Changes, Layer, Notes, Stream, Unread};
use crate::state::control::{self, Answer, Connection, Request};
use crate::state::{Found, ProcessId, Sandboxes};
use crate::{Base, Error};

/// How long a machine may take to stand still.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often it is looked at.
const POLL: Duration = Duration::from_millis(1);

/// A disk that nobody writes to, or a copy of one of a moment at which nobody did.
#[derive(Debug)]
pub struct StillDisk {
    path: PathBuf,
    /// Holds the copy.
    _directory: Option<tempfile::TempDir>,
}

impl StillDisk {
    /// Calls `each` with everything in which the disk differs from `base`, which must be the
    /// sandbox's: each directory before what is in it. What was told before an error is true.
    ///
    /// # Errors
    /// [`Error::Disk`], [`Error::ImageFile`], [`Error::RootDisk`]; [`Error::System`] if `each`
    /// fails.
    pub fn changes(
        &self,
        base: &Base,
        each: impl FnMut(Change<'_>) -> io::Result<()>,
    ) -> Result<Notes, Error> {
        let about = self.about("reading", base);
        let (lower, below) = base.lower_files()?;
        let disk = self.open(&about)?;
        let most = about.most(&disk, &below);
        let started = Stream::start(&Changes { lower }, disk, below, most);
        let mut stream = started.map_err(|error| about.error(error))?;
        match read_changes(&mut stream, each) {
            Ok(()) => stream.finish().map_err(|error| about.error(error)),
            Err(source) => Err(match stream.verdict() {
                Some(error) => about.error(error),
                None => Error::System {
                    what: "telling the changes",
                    source,
                },
            }),
        }
    }

    /// The changes as a layer of an image: an uncompressed archive, with whiteouts for what is
    /// gone. `base` must be the sandbox's.
    ///
    /// # Errors
    /// [`Error::Disk`], [`Error::ImageFile`], [`Error::RootDisk`].
    pub fn layer(&self, base: &Base) -> Result<Unread, Error> {
        let about = self.about("making a layer of", base);
        let (lower, below) = base.lower_files()?;
        let disk = self.open(&about)?;
        Unread::start(Layer { lower }, about, disk, below)
    }

    /// What to say of failures of what reads the disk.
    pub(crate) fn about(&self, doing: &'static str, base: &Base) -> About {
        About::new(doing, &self.path, base)
    }

    /// Opens its file.
    pub(crate) fn open(&self, about: &About) -> Result<File, Error> {
        File::open(&self.path).map_err(|error| about.disk(error.to_string()))
    }

    /// Its file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Sandboxes {
    /// The disk of a sandbox as it is now. A running one stands still for as long as a copy
    /// takes; what it had not flushed is in the copy only as far as its kernel had written
    /// it, as after a power cut.
    ///
    /// # Errors
    /// [`Error::NotKept`] if it has none, [`Error::InPlace`] if that is its root;
    /// [`Error::Disk`].
    pub fn still_disk(&self, name_or_id: &str) -> Result<StillDisk, Error> {
        let Found { record, path } = self.find(name_or_id)?;
        record.disk_size()?;
        let original = disk(&path);
        let failed = |source: io::Error| Error::Disk {
            what: "copying",
            path: original.clone(),
            problem: source.to_string(),
        };
        if !record.status.is_live() {
            return Ok(StillDisk {
                path: original,
                _directory: None,
            });
        }
        let directory = tempfile::tempdir_in(&path).map_err(failed)?;
        let to = directory.path().join("copy.ext4");
        let held = self.hold_still(&record.id)?;
        copy(&original, &to).map_err(failed)?;
        drop(held);
        Ok(StillDisk {
            path: to,
            _directory: Some(directory),
        })
    }
}

impl Sandboxes {
    /// Has the creator of a sandbox keep its machine from running until the result is dropped
    /// or this process is gone, whatever ends it; none if the sandbox has ended meanwhile.
    fn hold_still(&self, id: &str) -> Result<Option<Connection>, Error> {
        let failed = |source| Error::System {
            what: "pausing the machine",
            source,
        };
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = self.find(id)?;
            if !found.record.status.is_live() {
                return Ok(None);
            }
            match control::ask_and_stay(&found.path, &Request::Hold, PATIENCE) {
                Ok((Answer::Done, held)) => return Ok(Some(held)),
                Ok((Answer::Failed(why), _)) => return Err(failed(io::Error::other(why))),
                // It has no ear yet, or has just lost it.
                Err(_) if Instant::now() < deadline => std::thread::sleep(POLL),
                Err(error) => return Err(failed(error)),
            }
        }
    }
}

/// A machine whose process stands still until this is dropped.
pub(crate) struct Paused(ProcessId);

impl Paused {
    pub(crate) fn new(machine: ProcessId) -> Result<Self, Error> {
        machine.pause();
        let paused = Self(machine);
        let deadline = Instant::now() + PATIENCE;
        // Every thread: one may be in the middle of a write.
        while !machine.stands_still() {
            if Instant::now() > deadline {
                return Err(Error::System {
                    what: "pausing the machine",
                    source: io::ErrorKind::TimedOut.into(),
                });
            }
            std::thread::sleep(POLL);
        }
        Ok(paused)
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        self.0.resume();
    }
}
