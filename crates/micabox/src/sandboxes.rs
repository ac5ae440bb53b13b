//! A store's sandboxes, by name.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use micabox_disks::Base;
use micabox_error::Error;
use micabox_holders::Holders;
use micabox_image::Store;
use micabox_image::store::{Error as StoreError, Removed};
use micabox_state::{Directory, Found, Lock, LogReader, Record};

use crate::files::Shared;

/// All sandboxes of a store, running or with a record only, and its snapshots. Cheap to clone.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration;
/// use micabox::{Sandboxes, Store};
///
/// let sandboxes = Sandboxes::open(&Store::open(&Store::default_root()?)?)?;
/// for record in sandboxes.list()? {
///     println!("{} {}", record.name, record.status);
/// }
/// let db = sandboxes.get("db")?;
/// db.snapshot("before-the-upgrade")?;
/// db.stop(Duration::from_secs(10))?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Sandboxes(micabox_state::Sandboxes);

/// A sandbox of any process, found by its name or ID.
///
/// It has the record of when it was found. Each operation looks at the sandbox's state of that
/// moment, and fails with [`Error::NoSuchSandbox`] if the sandbox is gone.
#[derive(Clone, Debug)]
pub struct SandboxRef {
    sandboxes: Sandboxes,
    found: Found,
    /// The connection of its files.
    shared: Arc<Shared>,
}

impl Sandboxes {
    /// Opens the sandboxes of a store.
    ///
    /// # Errors
    /// [`Error::State`] if its directories can't be made.
    pub fn open(store: &Store) -> Result<Self, Error> {
        micabox_state::Sandboxes::open(store).map(Self)
    }

    /// Returns the store, which has their images.
    pub fn store(&self) -> &Store {
        self.0.store()
    }

    /// Removes an image as [`Store::remove`] does. Waits some seconds for a process that serves it and has nothing to
    /// serve any more: it ends a moment after the last sandbox.
    ///
    /// # Errors
    /// Those of [`Store::remove`]; [`Error::State`].
    pub fn remove_image(&self, name: &str) -> Result<Removed, Error> {
        loop {
            match self.store().remove(name) {
                Err(StoreError::InUse { sandbox, .. })
                    if Holders::of(self.store())?.wait_for_end(&sandbox) => {}
                removed => return Ok(removed?),
            }
        }
    }

    /// Returns all records, oldest first. Removes ended sandboxes with `auto_remove`.
    ///
    /// # Errors
    /// [`Error::State`].
    pub fn list(&self) -> Result<Vec<Record>, Error> {
        self.0.list()
    }

    /// Returns the directories of sandboxes whose records can't be read, because they are damaged
    /// or of another version, but which have a disk. They are in no list, and are not removed.
    ///
    /// # Errors
    /// [`Error::State`].
    pub fn unreadable(&self) -> Result<Vec<PathBuf>, Error> {
        self.0.unreadable()
    }

    /// Finds the sandbox with this name, ID, or beginning of an ID.
    ///
    /// # Errors
    /// [`Error::NoSuchSandbox`], [`Error::Ambiguous`].
    pub fn get(&self, name_or_id: &str) -> Result<SandboxRef, Error> {
        Ok(SandboxRef {
            found: self.0.find(name_or_id)?,
            sandboxes: self.clone(),
            shared: Arc::default(),
        })
    }

    pub(crate) fn directory(&self) -> &Directory {
        self.0.directory()
    }
}

impl AsRef<micabox_state::Sandboxes> for Sandboxes {
    fn as_ref(&self) -> &micabox_state::Sandboxes {
        &self.0
    }
}

impl SandboxRef {
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Returns the record as of when the sandbox was found.
    pub fn record(&self) -> &Record {
        &self.found.record
    }

    /// Returns the ID: 32 hexadecimal digits.
    pub fn id(&self) -> &str {
        &self.found.record.id
    }

    /// Finds the sandbox again, with its record as of now.
    ///
    /// # Errors
    /// [`Error::NoSuchSandbox`].
    pub fn reload(&self) -> Result<Self, Error> {
        self.sandboxes.get(self.id())
    }

    /// Finds the base of the sandbox.
    ///
    /// # Errors
    /// [`Error::Store`] if the image is no longer in the store; [`Error::RootDisk`] if the root
    /// disk has changed or can't be used.
    pub fn base(&self) -> Result<Base, Error> {
        Base::of(self.sandboxes.store(), self.record())
    }

    /// Removes the sandbox, which must have ended. Returns its last record.
    ///
    /// # Errors
    /// [`Error::Running`].
    pub fn remove(&self) -> Result<Record, Error> {
        self.directory().remove(self.id())
    }

    /// Waits until the sandbox has ended, and everything of it that runs. Returns false if
    /// `timeout` passes first.
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        self.directory().wait_for_end(&self.found, timeout)
    }

    /// Returns the directory of the sandbox's state, with its owner's socket while it runs.
    pub fn path(&self) -> &Path {
        &self.found.path
    }

    /// Opens the log of the sandbox; None if it has none, because a client read its output all along.
    ///
    /// # Errors
    /// [`Error::NoSuchSandbox`]; [`Error::State`].
    pub fn log(&self) -> Result<Option<LogReader>, Error> {
        LogReader::open(self.directory(), self.id())
    }

    pub(crate) fn sandboxes(&self) -> &Sandboxes {
        &self.sandboxes
    }

    pub(crate) fn directory(&self) -> &Directory {
        self.sandboxes.directory()
    }

    /// Locks the sandbox, which must have a disk and not run; see [`Directory::hold`].
    pub(crate) fn hold(&self) -> Result<(Found, Lock), Error> {
        self.directory().hold(self.id())
    }
}
