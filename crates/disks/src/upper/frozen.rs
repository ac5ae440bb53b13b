//! Reads a sandbox's changes as of one moment.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use micabox_error::Error;
use micabox_parsers::{Layer, Medium, Notes, Stream, length, read_changes};
use micabox_share::{Process, Settings, Transport};
use micabox_spec::Upper;
use micabox_state::{BaseName, Directory, Found, Sandboxes, upper_disk};

use super::{Change, copy, folder};
use crate::Base;
use crate::flush::flush;
use crate::freeze::{Frozen, Problem, freeze};
use crate::held::Held;
use crate::upper::{About, Unread};

/// How long a freeze may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Interval between attempts to freeze.
const POLL: Duration = Duration::from_millis(10);

/// How many copies are tried: if this process is stopped during one, the machine is thawed before
/// the copy is complete.
const ATTEMPTS: usize = 3;

/// A disk that no machine writes to, or a copy of a frozen one; or a folder with a sandbox's changes,
/// whose machine stays frozen until this is dropped.
#[derive(Debug)]
pub struct FrozenDisk {
    /// The path of the sandbox's disk or folder.
    path: PathBuf,
    changes: Changes,
}

/// Where the changes are read.
#[derive(Debug)]
enum Changes {
    Disk,
    /// In a file without a name, so that nothing is left however this process ends.
    Copy(File),
    /// In a folder, which no sandbox uses that runs.
    Folder {
        folder: File,
        held: Option<Arc<Held>>,
        /// Whether this machine's kernel wrote them, and not a sandbox's through a server.
        as_it_is: bool,
    },
}

/// An upper layer that is open.
#[derive(Debug)]
pub struct Opened {
    /// What it is in.
    pub medium: Medium,
    /// The disk, or the socket of a folder's server.
    pub file: File,
    /// The size of its filesystem in bytes.
    pub size: u64,
    /// What must not be dropped while it is read.
    pub keep: Keep,
}

impl Opened {
    /// Opens the upper layer on a disk.
    pub fn disk(file: File) -> io::Result<Self> {
        Ok(Self {
            medium: Medium::Disk,
            size: length(&file)?,
            file,
            keep: Keep::default(),
        })
    }
}

/// What must not be dropped while an upper layer is read.
#[derive(Debug, Default)]
pub struct Keep {
    held: Option<Arc<Held>>,
    _server: Option<Process>,
}

impl Keep {
    /// Checks that nothing has changed meanwhile.
    pub fn check(&self) -> io::Result<()> {
        self.held.as_ref().map_or(Ok(()), |held| held.check())
    }
}

impl FrozenDisk {
    /// Returns the changes of the sandbox with this ID as they are now. A running sandbox is frozen while its disk is
    /// copied, or until its folder has been read. What the guest had not flushed is in the copy only as far as its
    /// kernel had written it, as after a power cut.
    ///
    /// # Errors
    /// [`Error::NotKept`] if the sandbox has no disk and no folder, [`Error::InPlace`] if it writes to
    /// its root disk; [`Error::Disk`]; [`Error::UpperFolder`], [`Error::UpperInUse`].
    pub fn of(sandboxes: &Sandboxes, id: &str) -> Result<Self, Error> {
        let directory = sandboxes.directory();
        let Found { record, path } = directory.find(id)?;
        if let Upper::Folder { path } = &record.spec.upper {
            return Self::of_folder(directory, id, path.as_ref(), &record.base);
        }
        record.disk_size()?;
        let path = upper_disk(&path);
        let changes = if record.status.is_live() {
            let copy = sandboxes.store().unnamed(&[])?;
            copy_frozen(directory, &record.id, &copy)?;
            Changes::Copy(copy)
        } else {
            Changes::Disk
        };
        Ok(Self { path, changes })
    }

    fn of_folder(
        sandboxes: &Directory,
        id: &str,
        path: &Path,
        base: &BaseName,
    ) -> Result<Self, Error> {
        let machine = frozen(sandboxes, id)?;
        let held = machine.map(Held::new).transpose().map_err(copying(path))?;
        let folder = folder::open_for_reading(path, base, held.is_some())?;
        Ok(Self {
            path: path.to_owned(),
            changes: Changes::Folder {
                folder,
                held: held.map(Arc::new),
                as_it_is: false,
            },
        })
    }

    /// The changes in a folder that this machine's kernel keeps there, for a tree mounted on `place`.
    pub fn of_mounted(place: &Path, folder: File) -> Self {
        Self {
            path: place.to_owned(),
            changes: Changes::Folder {
                folder,
                held: None,
                as_it_is: true,
            },
        }
    }

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
        let most = about.most(disk.size, &below);
        let job = micabox_parsers::Changes {
            medium: disk.medium,
            lower,
        };
        let started = Stream::start(&job, disk.file, below, most);
        let mut stream = started.map_err(|error| about.error(error))?;
        match read_changes(&mut stream, each) {
            Ok(()) => {
                let notes = stream.finish().map_err(|error| about.error(error))?;
                disk.keep.check().map_err(|error| about.disk(error))?;
                Ok(notes)
            }
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
        let job = Layer {
            medium: disk.medium,
            lower,
        };
        Unread::start(job, about, disk, below)
    }

    /// Describes reads of the disk, for errors.
    pub fn about(&self, doing: &'static str, base: &Base) -> About {
        About::new(doing, &self.path, base)
    }

    /// Opens the disk's file, or a way to read the folder.
    pub fn open(&self, about: &About) -> Result<Opened, Error> {
        let opened = match &self.changes {
            Changes::Copy(copy) => File::open(format!("/proc/self/fd/{}", copy.as_raw_fd())),
            Changes::Disk => File::open(&self.path),
            Changes::Folder {
                folder,
                held,
                as_it_is,
            } => {
                let folder = folder.try_clone().map_err(|error| about.disk(error))?;
                return serve(folder, held.clone(), *as_it_is, about);
            }
        };
        opened
            .and_then(Opened::disk)
            .map_err(|error| about.disk(error))
    }
}

/// Starts a server of the folder, through which it is read as the guest sees it, or as it is.
fn serve(
    folder: File,
    held: Option<Arc<Held>>,
    as_it_is: bool,
    about: &About,
) -> Result<Opened, Error> {
    let size = folder::capacity(&folder).map_err(|error| about.disk(error))?;
    let settings = Settings {
        read_only: true,
        cached: false,
        with_mounts: !as_it_is,
        upper: !as_it_is,
        as_it_is,
        only: None,
        transport: Transport::Stream,
    };
    let (server, socket) = micabox_share::start(folder.into(), &settings)?;
    Ok(Opened {
        medium: Medium::Folder,
        size,
        file: socket.into(),
        keep: Keep {
            held,
            _server: Some(server),
        },
    })
}

/// Copies a sandbox's disk as it is now into `to` ([`FrozenDisk::of`]).
pub fn copy_frozen(sandboxes: &Directory, id: &str, to: &File) -> Result<(), Error> {
    let original = upper_disk(&sandboxes.find(id)?.path);
    let source = File::open(&original).map_err(copying(&original))?;
    for _ in 0..ATTEMPTS {
        let mut machine = frozen(sandboxes, id)?;
        let mut keep = || machine.iter_mut().for_each(Frozen::hold);
        copy::fill(&source, to, &mut keep).map_err(copying(&original))?;
        if machine.is_none_or(Frozen::thaw) {
            return Ok(());
        }
    }
    let interrupted = io::Error::other("the sandbox was resumed before the copy was complete");
    Err(copying(&original)(interrupted))
}

/// Flushes a sandbox's root and freezes its machine through its owner, until the result is thawed or dropped,
/// or this process is stopped or gone; None if the sandbox has ended meanwhile.
fn frozen(sandboxes: &Directory, id: &str) -> Result<Option<Frozen>, Error> {
    let failed = |source| Error::System {
        what: "pausing the machine",
        source,
    };
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = sandboxes.find(id)?;
        if !found.record.status.is_live() {
            return Ok(None);
        }
        flush(&found.path);
        match freeze(&found.path, None, PATIENCE) {
            Ok(frozen) => return Ok(Some(frozen)),
            Err(Problem::Refused(why)) => return Err(failed(io::Error::other(why))),
            // The owner has no socket yet, or is about to end.
            Err(Problem::Ending(_)) if Instant::now() < deadline => std::thread::sleep(POLL),
            Err(Problem::Ending(error)) => return Err(failed(error)),
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
