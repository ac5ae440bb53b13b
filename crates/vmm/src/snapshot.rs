//! A snapshot of a machine: its state and its memory, in two files.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, OFlags, fcntl_getfl, memfd_create};

use crate::Error;
use crate::file::reopen;

/// Bytes before the pages in a memory that has a base: the list of the pages that differ. A multiple
/// of a page.
pub(crate) const DELTA_HEAD: u64 = 8192;

/// A machine at one moment, from which any number of others can be restored
/// ([`Begin::Restore`](crate::Begin::Restore)). They share the memory until they
/// write to it; the files must not change.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Processors, interrupt controllers, clocks and devices. Only this version of the program can
    /// read it.
    pub state: Arc<File>,
    /// RAM, in the order of its addresses and without the hole below 4 GiB; pages of
    /// zeros are holes. Behind a list, and without the pages that are the base's, if there is one.
    pub memory: Arc<File>,
    /// The whole memory of another machine, which most pages are the same as: the machine's own
    /// ([`Machine::base`]).
    ///
    /// [`Machine::base`]: crate::Machine::base
    pub base: Option<Arc<File>>,
    /// The pages that a machine restored from it writes to first ([`Machine::touched`]), if known.
    /// Others then have them from the start.
    ///
    /// [`Machine::touched`]: crate::Machine::touched
    pub touched: Option<Arc<File>>,
}

impl Snapshot {
    /// Returns the snapshot in these files, which must be open for reading and writing.
    pub fn new(state: File, memory: File) -> Self {
        Self {
            state: Arc::new(state),
            memory: Arc::new(memory),
            base: None,
            touched: None,
        }
    }

    /// Creates an empty snapshot in memory, which ends with the last process that uses it.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn in_memory() -> Result<Self, Error> {
        let make = |name| {
            let file = memfd_create(name, MemfdFlags::CLOEXEC);
            file.map(File::from).map_err(|error| Error::System {
                what: "making a file in memory",
                source: error.into(),
            })
        };
        Ok(Self {
            state: Arc::new(make("machine-state")?),
            memory: Arc::new(make("machine-memory")?),
            base: None,
            touched: None,
        })
    }

    /// Creates an empty snapshot in new files that only their owner can read.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn create(state: &Path, memory: &Path) -> Result<Self, Error> {
        let make = |path: &Path| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true).mode(0o600);
            options.open(path).map(Arc::new).map_err(file(path))
        };
        Ok(Self {
            state: make(state)?,
            memory: make(memory)?,
            base: None,
            touched: None,
        })
    }

    /// Opens the snapshot in these files.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn open(state: &Path, memory: &Path) -> Result<Self, Error> {
        let open = |path: &Path| File::open(path).map(Arc::new).map_err(file(path));
        Ok(Self {
            state: open(state)?,
            memory: open(memory)?,
            base: None,
            touched: None,
        })
    }

    /// Returns the memory, or its base, open for reading only.
    pub(crate) fn whole_memory(&self) -> Result<Arc<File>, Error> {
        for_reading(self.base.as_ref().unwrap_or(&self.memory)).map_err(|source| Error::System {
            what: "sharing the snapshot's memory",
            source,
        })
    }

    /// Returns the same files, open for reading only: a machine must not change what others are
    /// restored from.
    pub(crate) fn for_reading(&self) -> io::Result<Self> {
        Ok(Self {
            state: for_reading(&self.state)?,
            memory: for_reading(&self.memory)?,
            base: self.base.as_ref().map(for_reading).transpose()?,
            touched: self.touched.as_ref().map(for_reading).transpose()?,
        })
    }
}

fn for_reading(file: &Arc<File>) -> io::Result<Arc<File>> {
    if fcntl_getfl(file)? & OFlags::RWMODE == OFlags::RDONLY {
        return Ok(Arc::clone(file));
    }
    Ok(Arc::new(reopen(file, OFlags::RDONLY)?))
}

fn file(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |error| Error::File {
        path,
        why: error.to_string(),
    }
}
