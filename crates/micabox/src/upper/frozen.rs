//! Reads a sandbox's disk as of one moment.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{Change, copy, disk, read_changes};
use crate::freeze::{Frozen, Problem, freeze};
use crate::jailed::{About, Changes, Layer, Notes, Stream, Unread};
use crate::state::{Directory, Found};
use crate::{Base, Error, SandboxRef};

/// How long a freeze may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Interval between attempts to freeze.
const POLL: Duration = Duration::from_millis(10);

/// How many copies are tried: if this process is stopped during one, the machine is thawed before
/// the copy is complete.
const ATTEMPTS: usize = 3;

/// A disk that no machine writes to, or a copy of a frozen one.
#[derive(Debug)]
pub struct FrozenDisk {
    /// The path of the sandbox's disk.
    path: PathBuf,
    /// The copy; a file without a name, so that nothing is left however this process ends.
    copy: Option<File>,
}

impl FrozenDisk {
    /// Calls `each` with every difference between the disk and `base`, which must be the sandbox's:
    /// each directory before its contents. Changes passed before an error are correct.
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
                    what: "passing on the changes",
                    source,
                },
            }),
        }
    }

    /// Reads the changes as a layer of an image: an uncompressed archive, with whiteouts for
    /// removed entries. `base` must be the sandbox's.
    ///
    /// # Errors
    /// [`Error::Disk`], [`Error::ImageFile`], [`Error::RootDisk`].
    pub fn layer(&self, base: &Base) -> Result<Unread, Error> {
        let about = self.about("making a layer of", base);
        let (lower, below) = base.lower_files()?;
        let disk = self.open(&about)?;
        Unread::start(Layer { lower }, about, disk, below)
    }

    /// Describes reads of the disk, for errors.
    pub(crate) fn about(&self, doing: &'static str, base: &Base) -> About {
        About::new(doing, &self.path, base)
    }

    /// Opens the disk's file.
    pub(crate) fn open(&self, about: &About) -> Result<File, Error> {
        let opened = match &self.copy {
            Some(copy) => File::open(format!("/proc/self/fd/{}", copy.as_raw_fd())),
            None => File::open(&self.path),
        };
        opened.map_err(|error| about.disk(error))
    }
}

impl SandboxRef {
    /// Calls `each` with every change of the sandbox, as its disk is now: see
    /// [`SandboxRef::frozen_disk`] and [`FrozenDisk::changes`].
    ///
    /// # Errors
    /// Those of the two, and of [`SandboxRef::base`].
    pub fn diff(&self, each: impl FnMut(Change<'_>) -> io::Result<()>) -> Result<Notes, Error> {
        let disk = self.frozen_disk()?;
        disk.changes(&self.base()?, each)
    }

    /// Returns the disk of the sandbox as it is now. A running sandbox is frozen while the disk is
    /// copied. What the guest had not flushed is in the copy only as far as its kernel had written
    /// it, as after a power cut.
    ///
    /// # Errors
    /// [`Error::NotKept`] if the sandbox has no disk, [`Error::InPlace`] if it writes to its root
    /// disk; [`Error::Disk`].
    pub fn frozen_disk(&self) -> Result<FrozenDisk, Error> {
        let Found { record, path } = self.directory().find(self.id())?;
        record.disk_size()?;
        if !record.status.is_live() {
            return Ok(FrozenDisk {
                path: disk(&path),
                copy: None,
            });
        }
        let copy = self.sandboxes().store().unnamed(&[])?;
        self.directory().copy_frozen(&record.id, &copy)?;
        Ok(FrozenDisk {
            path: disk(&path),
            copy: Some(copy),
        })
    }
}

impl Directory {
    /// Copies a sandbox's disk as it is now into `to` ([`SandboxRef::frozen_disk`]).
    pub(crate) fn copy_frozen(&self, id: &str, to: &File) -> Result<(), Error> {
        let original = disk(&self.find(id)?.path);
        let source = File::open(&original).map_err(copying(&original))?;
        for _ in 0..ATTEMPTS {
            let mut frozen = self.freeze(id)?;
            let mut keep = || frozen.iter_mut().for_each(Frozen::hold);
            copy::fill(&source, to, &mut keep).map_err(copying(&original))?;
            if frozen.is_none_or(Frozen::thaw) {
                return Ok(());
            }
        }
        let interrupted = io::Error::other("the sandbox was resumed before the copy was complete");
        Err(copying(&original)(interrupted))
    }

    /// Freezes a sandbox's machine through its owner, until the result is thawed or dropped, or
    /// this process is stopped or gone; None if the sandbox has ended meanwhile.
    fn freeze(&self, id: &str) -> Result<Option<Frozen>, Error> {
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
            match freeze(&found.path, None, PATIENCE) {
                Ok(frozen) => return Ok(Some(frozen)),
                Err(Problem::Refused(why)) => return Err(failed(io::Error::other(why))),
                // The owner has no socket yet, or is about to end.
                Err(Problem::Ending(_)) if Instant::now() < deadline => std::thread::sleep(POLL),
                Err(Problem::Ending(error)) => return Err(failed(error)),
            }
        }
    }
}

/// Makes an error that names the disk that can't be copied.
fn copying(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |error| Error::Disk {
        what: "copying",
        path,
        source: error.into(),
    }
}
