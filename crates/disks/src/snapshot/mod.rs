//! Snapshots: copies of sandboxes' disks, to start other sandboxes from, or of whole sandboxes with
//! their memory, to restore.
//!
//! ```text
//! sandboxes/snapshot-<name>/disk.ext4       the copy; its journal is empty without memory
//! sandboxes/snapshot-<name>/machine         processors and devices
//! sandboxes/snapshot-<name>/memory          the machine's memory
//! sandboxes/snapshot-<name>/memory.part     the memory, until all of it is here (`part`)
//! sandboxes/snapshot-<name>/memory.manifest where the rest is, until then
//! sandboxes/snapshot-<name>/machine.json    the machine's settings, for a restore
//! sandboxes/snapshot-<name>/*.chunks        in place of the disk or the memory that is packed (`micabox_image::store`)
//! sandboxes/snapshot-<name>/*.map           which chunks the disk and the memory are, if a registry has them
//! sandboxes/snapshot-<name>/snapshot.json   the snapshot's record; written last, unless ephemeral
//! sandboxes/snapshot-<name>/lock            locked (flock) while it is made
//! sandboxes/snapshot-<name>/lease.json      keeps the image in the store
//! sandboxes/snapshot-.<digits>/             one that is to replace another, until it is complete; then the other
//! ```

mod base;
mod file;
mod landing;
mod left;
mod memory;
mod names;
mod new;
mod packed;
mod part;
mod registry;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use micabox_error::{Error, Source};
use micabox_ground::{clock, publish};
use micabox_image::{Digest, Store};
use micabox_parsers::{Notes, Settle};
use micabox_spec::Upper;
use micabox_state::{BaseName, Lock, Record, Sandboxes, SavedMachine, is_valid_name as is_valid};
use serde::{Deserialize, Serialize};
use tracing::info;

use crate::base::{digest_of, mounted_images};
use crate::upper::copy;
use crate::upper::copy_frozen;
use new::Replaces;

pub use file::head_alone;
pub use landing::{Beside, Landing, Landings};
pub use memory::{Ephemeral, description, disk, learn, open, save};
pub use new::NewSnapshot;
pub use packed::{open_disk, open_unpacked};
pub use part::{KIND, MemoryPart};
pub use registry::{Arriving, Departing, Place};

const PREFIX: &str = "snapshot-";
const DISK: &str = "disk.ext4";
const RECORD: &str = "snapshot.json";
const LOCK: &str = "lock";

/// Most bytes of a disk.
const SIZE_MAX: u64 = 16 << 40;

/// A copy of a sandbox's disk, or of a whole sandbox with its memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Snapshot {
    /// Unique among snapshots.
    pub name: String,
    /// What the disk's changes apply to.
    #[serde(flatten)]
    pub base: BaseName,
    /// The sandbox's name.
    pub sandbox: String,
    /// When it was made, seconds since 1970-01-01 UTC.
    pub created: i64,
    /// Bytes of the disk, holes included; 0 if there is none.
    pub size: u64,
    /// The machine, if its memory is in the snapshot too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<SavedMachine>,
    /// What the program that made it has noted ([`NewSnapshot::labels`]). A file has none of it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Registries that have it. A file has none of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<Place>,
    /// Whether the snapshot is ephemeral: it exists for as long as its lock is held.
    #[serde(
        default,
        rename = "passing",
        skip_serializing_if = "std::ops::Not::not"
    )]
    pub(crate) ephemeral: bool,
    /// Its directory.
    #[serde(skip)]
    pub(crate) directory: PathBuf,
    /// The images that are mounted in the sandbox, for the lease.
    #[serde(skip)]
    pub(crate) mounted: Vec<Digest>,
}

impl Snapshot {
    /// Returns its directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

/// The snapshots of a store's sandboxes.
#[derive(Clone, Copy, Debug)]
pub struct Snapshots<'a>(pub &'a Sandboxes);

impl Snapshots<'_> {
    /// Copies the disk of the sandbox with this record at one moment; see [`FrozenDisk::of`](crate::FrozenDisk::of).
    ///
    /// # Errors
    /// [`Error::SnapshotExists`], [`Error::BadSnapshotName`], and those of [`FrozenDisk::of`](crate::FrozenDisk::of).
    pub fn copy_disk(&self, record: &Record, new: NewSnapshot) -> Result<(Snapshot, Notes), Error> {
        // Fails unless the sandbox has a disk.
        record.disk_size()?;
        let snapshot = of(record, new.name, new.labels)?;
        let mut notes = Notes::default();
        let (snapshot, _lock) = self.add(snapshot, new.replaces, claim, |snapshot| {
            let path = snapshot.directory.join(DISK);
            let disk = copy::create(&path).map_err(Error::state("making", &path))?;
            copy_frozen(self.0.directory(), &record.id, &disk)?;
            disk.sync_all().map_err(Error::state("writing", &path))?;
            notes = settle(&path)?;
            Ok::<_, Error>(())
        })?;
        Ok((snapshot, notes))
    }

    /// Makes a snapshot of what `fill` puts into its directory, which `claim` makes this process's. Returns it with its
    /// lock, which a complete snapshot needs only if it is ephemeral.
    fn add<E: From<Error>>(
        &self,
        mut snapshot: Snapshot,
        replaces: Option<Replaces>,
        claim: fn(&Path, &str) -> Result<Lock, Error>,
        fill: impl FnOnce(&mut Snapshot) -> Result<(), E>,
    ) -> Result<(Snapshot, Lock), E> {
        if !is_valid(&snapshot.name) {
            return Err(Error::BadSnapshotName(snapshot.name).into());
        }
        if replaces.is_some() {
            self.check_replaced(&snapshot.name, replaces)?;
        }
        let directory = self.directory_of(&match replaces {
            None => snapshot.name.clone(),
            Some(_) => new::hidden()?,
        });
        snapshot.directory.clone_from(&directory);
        let lock = {
            let _names = self.0.directory().lock()?;
            claim(&directory, &snapshot.name)?
        };
        let made = lease(self.0.store(), &snapshot)
            .map_err(E::from)
            .and_then(|()| fill(&mut snapshot))
            .and_then(|()| {
                if snapshot.ephemeral {
                    // It has no other user; unlocked and without a record it is removed.
                    return Ok(());
                }
                let written = write_record(&snapshot);
                Ok(written.map_err(Error::state("writing", &directory))?)
            })
            .and_then(|()| match replaces {
                None => Ok(()),
                Some(_) => Ok(self.put_in_place(&mut snapshot, replaces)?),
            });
        match made {
            Ok(()) => {
                let has_memory = snapshot.memory.is_some();
                info!(name = snapshot.name, has_memory, "made the snapshot");
                Ok((snapshot, lock))
            }
            Err(error) => {
                let _ = fs::remove_dir_all(&directory);
                Err(error)
            }
        }
    }

    /// Returns all snapshots, by name. Removes unfinished ones that killed processes left, but for pulls of the last days.
    ///
    /// # Errors
    /// [`Error::State`].
    pub fn list(&self) -> Result<Vec<Snapshot>, Error> {
        let directory = self.0.directory().path();
        let _names = self.0.directory().lock()?;
        let entries = fs::read_dir(directory).map_err(Error::state("reading", directory))?;
        let mut snapshots = Vec::new();
        for entry in entries {
            let entry = entry.map_err(Error::state("reading", directory))?;
            let name = entry.file_name();
            let Some(name) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else {
                continue;
            };
            if new::is_hidden(name) {
                remove_abandoned(&entry.path());
                continue;
            }
            match self.get(name) {
                Ok(snapshot) if !snapshot.ephemeral => snapshots.push(snapshot),
                // Perhaps of another version of mica.
                Err(_) if entry.path().join(RECORD).exists() => {}
                Err(_) if left::is_of_pull(&entry.path()) => left::release(&entry.path()),
                _ => remove_abandoned(&entry.path()),
            }
        }
        snapshots.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(snapshots)
    }

    /// Returns the snapshot of this name.
    ///
    /// # Errors
    /// [`Error::NoSuchSnapshot`].
    pub fn get(&self, name: &str) -> Result<Snapshot, Error> {
        let none = || Error::NoSuchSnapshot(name.to_owned());
        if !is_valid(name) {
            return Err(none());
        }
        let directory = self.directory_of(name);
        let record = fs::read(directory.join(RECORD)).map_err(|_| none())?;
        let snapshot: Snapshot = serde_json::from_slice(&record).map_err(|_| none())?;
        Ok(Snapshot {
            directory,
            ..snapshot
        })
    }

    /// Waits until no process makes a snapshot of this name.
    pub fn wait_until_made(&self, name: &str) {
        // Without its directory, nothing makes one.
        let _ = Lock::wait(&self.directory_of(name).join(LOCK));
    }

    /// Removes a snapshot. Sandboxes that were started from it have their own copies.
    ///
    /// # Errors
    /// [`Error::NoSuchSnapshot`], [`Error::State`].
    pub fn remove(&self, name: &str) -> Result<(), Error> {
        let _names = self.0.directory().lock()?;
        let directory = self.get(name)?.directory;
        // Without its record it does not count as a snapshot, even if removing the rest fails.
        let record = directory.join(RECORD);
        fs::remove_file(&record).map_err(Error::state("removing", &record))?;
        fs::remove_dir_all(&directory).map_err(Error::state("removing", &directory))
    }

    fn directory_of(&self, name: &str) -> PathBuf {
        self.0.directory().path().join(format!("{PREFIX}{name}"))
    }
}

/// Makes the record of a snapshot of a sandbox.
fn of(record: &Record, name: String, labels: BTreeMap<String, String>) -> Result<Snapshot, Error> {
    Ok(Snapshot {
        name,
        labels,
        base: record.base.clone(),
        sandbox: record.name.clone(),
        created: clock::now_as_parts().0,
        size: match record.spec.upper {
            Upper::Disk { size } => size,
            Upper::Tmpfs | Upper::Folder { .. } | Upper::InPlace => 0,
        },
        memory: None,
        places: Vec::new(),
        ephemeral: false,
        directory: PathBuf::new(),
        mounted: mounted_images(&record.spec.setup)?,
    })
}

/// Leases the image, so that it stays in the store.
fn lease(store: &Store, snapshot: &Snapshot) -> Result<(), Error> {
    let BaseName::Image(image) = &snapshot.base else {
        return Ok(());
    };
    let name = snapshot.directory.file_name().unwrap_or_default();
    let name = name.to_string_lossy();
    let manifests = [&[digest_of(image)?], &*snapshot.mounted].concat();
    Ok(store.lease(&name, &manifests)?)
}

/// Removes a directory that a killed process left. The caller holds the lock on names.
fn remove_abandoned(directory: &Path) {
    if let Ok(None) = Lock::attempt(&directory.join(LOCK)) {
        return;
    }
    let _ = fs::remove_dir_all(directory);
}

/// Makes and locks the directory, in place of one that a killed process left unfinished. The caller
/// keeps other processes from doing the same.
pub fn claim(directory: &Path, name: &str) -> Result<Lock, Error> {
    let lock = lock_unfinished(directory, name)?;
    left::remove(directory, &memory::FILES)?;
    Ok(lock)
}

/// Makes and locks the directory, unless a snapshot is in it.
fn lock_unfinished(directory: &Path, name: &str) -> Result<Lock, Error> {
    let exists = || Error::SnapshotExists(name.to_owned());
    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(Error::state("making", directory)(error));
        }
        _ => {}
    }
    let path = directory.join(LOCK);
    File::options()
        .create(true)
        .append(true)
        .open(&path)
        .map_err(Error::state("making", &path))?;
    let lock = Lock::attempt(&path).map_err(Error::state("locking", &path))?;
    let lock = lock.ok_or_else(exists)?;
    if directory.join(RECORD).exists() {
        return Err(exists());
    }
    Ok(lock)
}

/// Replays the copy's journal, so that restores need not, and checks whether the filesystem can be
/// used.
fn settle(path: &Path) -> Result<Notes, Error> {
    let unusable = |source: Source| Error::Disk {
        what: "replaying the journal of",
        path: path.to_owned(),
        source,
    };
    let file = File::options().read(true).write(true).open(path);
    let file = file.map_err(|error| unusable(error.into()))?;
    let size = file.metadata().map_err(|error| unusable(error.into()))?;
    micabox_parsers::call(&Settle, file, Vec::new(), size.len())
        .map_err(|error| unusable(error.into()))
}

fn write_record(snapshot: &Snapshot) -> io::Result<()> {
    publish(
        &snapshot.directory.join(RECORD),
        &serde_json::to_vec_pretty(snapshot)?,
    )
}
