//! Trees that are mounted on this machine.
//!
//! ```text
//! sandboxes/mount-<id>/mount.json    the record
//! sandboxes/mount-<id>/lock          locked (flock) for as long as its server lives, or what keeps its changes;
//!                                then with what that could not do
//! sandboxes/mount-<id>/control       that process's socket, if the tree can be changed
//! sandboxes/mount-<id>/lease.json    keeps the image in the store
//! ```
//!
//! A tree is served by a process of its own ([`server`]) or by the kernel ([`kernel`]); then a process keeps
//! its changes, if it can be changed ([`layer`]); a filesystem in memory by the process that mounts it
//! ([`memory`]). Whether it is still
//! mounted is read from the kernel's table: a record of what is neither served nor mounted, in this run of the
//! machine, is removed by the first that sees it.

mod changes;
mod kernel;
mod layer;
mod memory;
mod pieces;
mod process;
mod record;
mod serve;
mod server;
mod source;
mod start;
mod table;

use std::fs::{self, File, TryLockError};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use micabox_error::Error;
use micabox_mount::unmount;
use micabox_state::{Lock, Sandboxes};
use rustix::io::Errno;

pub use changes::Changed;
pub use layer::KIND as LAYER_KIND;
pub use memory::MemoryRecord;
pub use pieces::Pieces;
pub use record::{MountRecord, ServedBy, TreeKind};
pub use serve::{Below, Serve, Shown};
pub use server::{KIND, Server};
pub use source::Tree;
pub use start::{MountOptions, MountedTree};

const PREFIX: &str = "mount-";
const LOCK: &str = "lock";
const CONTROL: &str = "control";

/// How long a server may take to end after its tree was unmounted, and one that saves what is in it.
const PATIENCE: Duration = Duration::from_secs(10);
const PATIENCE_TO_SAVE: Duration = Duration::from_secs(600);

/// Interval between looks at it.
const POLL: Duration = Duration::from_millis(5);

/// All trees that are mounted from a store, by any process.
#[derive(Clone, Debug)]
pub struct Mounts {
    sandboxes: Sandboxes,
}

/// How a tree was unmounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmounted {
    /// It is gone.
    Gone,
    /// No path leads there any more. Processes that use it do so until they end.
    InUse,
}

/// A record, and how things are with it.
struct Found {
    directory: PathBuf,
    record: MountRecord,
    /// Its place in the kernel's table.
    mounted: Option<usize>,
    is_served: bool,
}

impl Mounts {
    /// Opens the mounts of a store.
    #[must_use]
    pub fn of(sandboxes: impl AsRef<Sandboxes>) -> Self {
        Self {
            sandboxes: sandboxes.as_ref().clone(),
        }
    }

    /// Returns what is mounted, oldest first, with whether anything answers for it: nothing does once its
    /// server was killed. Removes what is left of trees that are not mounted any more.
    ///
    /// # Errors
    /// [`Error::State`].
    pub fn list(&self) -> Result<Vec<(MountRecord, bool)>, Error> {
        let found = self.scan()?.into_iter();
        let mounted = found.filter(|found| found.mounted.is_some());
        Ok(mounted
            .map(|found| {
                let is_alive = found.is_served || found.record.by == ServedBy::Kernel;
                (found.record, is_alive)
            })
            .collect())
    }

    /// Returns the tree on a directory; none if mica has mounted none there.
    ///
    /// # Errors
    /// [`Error::State`].
    pub fn at(&self, place: &Path) -> Result<Option<MountRecord>, Error> {
        Ok(self.find(place)?.map(|found| found.record))
    }

    fn find(&self, place: &Path) -> Result<Option<Found>, Error> {
        let place = without_links(place);
        let mut found = self.scan()?;
        // The last one hides the others.
        found.retain(|found| found.mounted.is_some() && found.record.place == place);
        Ok(found.pop())
    }

    /// Unmounts the tree on a directory, however its server is, and removes what is left of it.
    ///
    /// # Errors
    /// [`Error::NotMounted`]; [`Error::State`] if the kernel refuses; [`Error::NotKeptAtEnd`] if it is
    /// unmounted, and what was in it could not be saved.
    pub fn unmount(&self, place: &Path) -> Result<Unmounted, Error> {
        let found = self.find(place)?;
        let found = found.ok_or_else(|| Error::NotMounted(place.to_owned()))?;
        let (path, manner) = (&found.record.place, found.record.manner());
        // Any scan may remove the record once nothing is mounted; the open file keeps the report.
        let lock = File::open(found.directory.join(LOCK));
        let how = match unmount(path, manner, false) {
            Ok(()) => Unmounted::Gone,
            Err(_) => {
                unmount(path, manner, true).map_err(|error| Error::State {
                    what: "unmounting",
                    path: path.clone(),
                    source: error.into(),
                })?;
                Unmounted::InUse
            }
        };
        if how == Unmounted::InUse {
            return Ok(how);
        }
        let Some(problem) = lock.map_or(Some(String::new()), |lock| wait_for_end(&found, lock))
        else {
            return Ok(Unmounted::InUse);
        };
        self.tidy()?;
        if !problem.is_empty() {
            return Err(Error::NotKeptAtEnd {
                place: found.record.place,
                problem,
            });
        }
        Ok(how)
    }

    /// Returns the tree whose record, and lease in the store, has this name.
    ///
    /// # Errors
    /// [`Error::State`].
    pub fn named(&self, name: &str) -> Result<Option<MountRecord>, Error> {
        let mut found = self.scan()?.into_iter();
        let found = found.find(|found| found.directory.ends_with(name));
        Ok(found.map(|found| found.record))
    }

    /// Removes what is left of trees that are not mounted any more, so that they don't keep images in use.
    ///
    /// # Errors
    /// [`Error::State`].
    pub fn tidy(&self) -> Result<(), Error> {
        self.scan().map(drop)
    }

    fn scan(&self) -> Result<Vec<Found>, Error> {
        let all = self.sandboxes.directory();
        let _names = all.lock()?;
        let table =
            table::read().map_err(Error::state("reading", Path::new("/proc/self/mountinfo")))?;
        let boot = record::boot();
        let mut found = Vec::new();
        let reading = || Error::state("reading", all.path());
        for entry in fs::read_dir(all.path()).map_err(reading())? {
            let entry = entry.map_err(reading())?;
            if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
                continue;
            }
            let directory = entry.path();
            let is_served = match Lock::attempt(&directory.join(LOCK)) {
                Ok(lock) => lock.is_none(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => false,
                Err(error) => return Err(Error::state("locking", &directory)(error)),
            };
            let record = MountRecord::read(&directory);
            let mounted = record.as_ref().filter(|record| record.boot == boot);
            let mounted = mounted.and_then(|record| {
                table.iter().position(|entry| {
                    entry.place == record.place && Some(entry.device) == record.device
                })
            });
            match record {
                Some(record) if mounted.is_some() || is_served => found.push(Found {
                    directory,
                    record,
                    mounted,
                    is_served,
                }),
                // It is being made.
                None if is_served => {}
                _ => drop(fs::remove_dir_all(&directory)),
            }
        }
        found.sort_by_key(|found| found.mounted);
        Ok(found)
    }
}

/// Waits for the end of the process of a tree that was unmounted. Returns what it could not do, which it has
/// written into its lock ([`MemoryRecord::leave`]); none if it goes on.
fn wait_for_end(found: &Found, mut lock: File) -> Option<String> {
    let patience = match found.record.kind {
        TreeKind::Memory => PATIENCE_TO_SAVE,
        _ => PATIENCE,
    };
    let deadline = Instant::now() + patience;
    while matches!(lock.try_lock(), Err(TryLockError::WouldBlock)) {
        if Instant::now() >= deadline {
            return None;
        }
        std::thread::sleep(POLL);
    }
    let mut problem = String::new();
    // What can't be read was not said.
    let _ = lock.read_to_string(&mut problem);
    Some(problem)
}

/// Returns a path without links, also if nothing answers at its end.
fn without_links(path: &Path) -> PathBuf {
    if let Ok(found) = path.canonicalize() {
        return found;
    }
    let above = path.parent().filter(|above| !above.as_os_str().is_empty());
    let above = above.unwrap_or(Path::new(".")).canonicalize();
    match (above, path.file_name()) {
        (Ok(above), Some(name)) => above.join(name),
        _ => path.to_owned(),
    }
}

/// Whether the kernel lacks what is needed, rather than refusing this tree.
fn is_lacking(error: Errno) -> bool {
    matches!(
        error,
        Errno::NODEV | Errno::NOSYS | Errno::NOTBLK | Errno::INVAL
    )
}
