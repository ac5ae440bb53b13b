//! A memory of which only a part is here, as a lazy pull leaves it.
//!
//! ```text
//! snapshot-<name>/memory.part      the memory, with holes; called `memory` once it is whole
//! snapshot-<name>/memory.map       which chunks it has: the map, as it was in the registry
//! snapshot-<name>/memory.manifest  the snapshot's manifest, which has the map's digest and says where the chunks are
//! snapshot-<name>/memory.order     in which order a start has read it, which may come from the registry: a hint
//! ```
//!
//! The snapshot's record has the manifest's digest. What is here of the memory is not noted: a chunk is here if it has the
//! digest that the map says. So a memory that a crash has left is read as any other.
//!
//! A process of its own ([`server`]) serves it by FUSE to all machines that are started from it, and fetches the rest.
//! Then the snapshot is one like any other.

mod open;
mod order;
mod server;
mod whole;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use micabox_chunk::{CHUNK, Map};
use micabox_error::Error;
use micabox_holders::own_process::Environment;
use micabox_holders::{Holders, Wanted, name, served};
use micabox_image::{Digest, Store};
use micabox_state::Lock;
use rustix::process::{getegid, geteuid};
use tracing::info;

use super::names::{MEMORY, PART, map_of};
use super::{Snapshot, Snapshots};

pub use server::KIND;
pub(super) use whole::complete;

/// How much is here of a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPart {
    /// Bytes that are here.
    pub here: u64,
    /// Bytes of its chunks, those of zeros not counted.
    pub all: u64,
}

impl Snapshot {
    /// Returns how much is here of its memory; none if that is all, or if it has none.
    pub fn memory_part(&self) -> Option<MemoryPart> {
        let part = fs::metadata(self.directory.join(PART)).ok()?;
        let map = fs::metadata(map_of(&self.directory.join(MEMORY))).ok()?;
        let all = Map::count(map.len()).saturating_mul(CHUNK);
        let here = part.blocks().saturating_mul(512).min(all);
        Some(MemoryPart { here, all })
    }
}

impl Snapshots<'_> {
    /// Fetches the rest of a snapshot's memory, and does nothing if all of it is here. `watch` is called with the bytes
    /// that are here and those of all, and returns whether to continue. Returns whether the memory is whole now: it is not
    /// if `watch` has ended it, or if the snapshot was removed meanwhile.
    ///
    /// # Errors
    /// [`Error::NoSuchSnapshot`]; [`Error::SnapshotIncomplete`]; [`Error::SnapshotRefused`] if the whole is not what the
    /// snapshot's config says; [`Error::State`].
    pub fn complete(
        &self,
        name: &str,
        watch: &(dyn Fn(u64, u64) -> bool + Sync),
    ) -> Result<bool, Error> {
        complete(self.0.store(), name, watch)
    }

    /// Starts the server of a snapshot's memory, if only a part of that is here and it has none yet.
    ///
    /// # Errors
    /// [`Error::NoSuchSnapshot`]; [`Error::HolderStuck`]; [`Error::NotServed`] where there can be no server, as without
    /// FUSE; [`Error::State`].
    pub fn serve(&self, name: &str) -> Result<(), Error> {
        let snapshot = self.get(name)?;
        serve(self.0.store(), name, &snapshot.directory).map(drop)
    }
}

/// Opens the memory of the snapshot in a directory for reading, if only a part of it is here: it is served. Where it can't
/// be, as without FUSE, the rest is fetched first. None if it is whole.
///
/// # Errors
/// [`Error::HolderStuck`]; [`Error::SnapshotIncomplete`], [`Error::SnapshotRefused`], [`Error::State`].
pub(super) fn open(store: &Store, name: &str, directory: &Path) -> Result<Option<File>, Error> {
    match serve(store, name, directory) {
        Ok(served) => Ok(served),
        Err(error @ Error::HolderStuck(_)) => Err(error),
        Err(error) => {
            info!(name, %error, "the memory can't be served: fetching the rest");
            complete(store, name, &|_, _| true)?;
            Ok(None)
        }
    }
}

/// Has the memory of a snapshot served, if only a part of it is here. None if it is whole.
///
/// # Errors
/// [`Error::HolderStuck`]; [`Error::NotServed`] where there can be no server, as without FUSE; [`Error::State`].
pub(super) fn serve(store: &Store, name: &str, directory: &Path) -> Result<Option<File>, Error> {
    let path = directory.join(PART);
    let failed = Error::state("reading", &path);
    let part = match fs::metadata(&path) {
        Ok(part) => part,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let wanted = Memory {
        store,
        name,
        device: part.dev(),
        inode: part.ino(),
    };
    let not_served = |problem: String| Error::NotServed {
        tree: wanted.shown(),
        problem,
    };
    let files = match Holders::of(store)?.hold(&wanted) {
        Ok(files) => files.map_err(not_served)?,
        // It has become whole, or another one has its name.
        Err(_) if !path.exists() && directory.join(MEMORY).exists() => return Ok(None),
        Err(error) => return Err(error),
    };
    let [file] = <[File; 1]>::try_from(files)
        .map_err(|_| not_served("its server has another one".to_owned()))?;
    // Another group may be as another user to FUSE.
    let seen = file
        .metadata()
        .map_err(|error| not_served(error.to_string()))?;
    if seen.len() != part.len() {
        return Err(not_served("its server has another one".to_owned()));
    }
    Ok(Some(file))
}

/// What a server is made for.
struct Memory<'a> {
    store: &'a Store,
    name: &'a str,
    /// The file: another snapshot may get the name.
    device: u64,
    inode: u64,
}

impl Wanted for Memory<'_> {
    /// A file, or why there is none.
    type Held = Result<Vec<File>, String>;

    /// This user and group, to whom alone FUSE shows the file, and the file.
    fn id(&self) -> io::Result<String> {
        let user = geteuid().as_raw().to_le_bytes();
        let group = getegid().as_raw().to_le_bytes();
        let (device, inode) = (self.device.to_le_bytes(), self.inode.to_le_bytes());
        Ok(name(&[b"memory", &user, &group, &device, &inode]))
    }

    fn shown(&self) -> String {
        format!("the memory of snapshot {}", self.name)
    }

    /// The snapshot's lease keeps its image.
    fn images(&self) -> Vec<Digest> {
        Vec::new()
    }

    fn start(&self, directory: &Path, listener: UnixListener, lock: &Lock) -> Result<(), Error> {
        let job = served::Job {
            store: self.store.root().to_owned(),
            directory: directory.to_owned(),
            of: server::Job {
                name: self.name.to_owned(),
                device: self.device,
                inode: self.inode,
                completes_in_background: micabox_holders::completes_in_background(),
            },
        };
        match server::start(&job, Environment::All, lock.file(), listener) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(problem)) => Err(Error::NotServed {
                tree: self.shown(),
                problem,
            }),
            Err(source) => Err(Error::System {
                what: "starting the server of a snapshot's memory",
                source,
            }),
        }
    }

    fn greeted(&self, connection: UnixStream) -> io::Result<Self::Held> {
        Ok(served::greeting(connection)?.files)
    }
}
