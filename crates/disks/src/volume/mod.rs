//! Volumes: ext4 disks with names, which outlive the sandboxes that use them.
//!
//! ```text
//! volumes/<name>/disk.ext4      the disk; locked (flock) by whatever uses it
//! volumes/<name>/*.chunks       in its place while it is packed (`micabox_image::store`)
//! volumes/<name>/volume.json    the volume's record
//! volumes/.new/                 one under construction
//! volumes/.old-<name>/          one being removed
//! locks/volumes                 held while names are given and directories made or removed
//! ```
//!
//! A disk has one writer or many readers. Whatever has the disk open holds its lock: a sandbox's
//! machine, for as long as it runs; `resize`, and `rm`. What a sandbox sees is the directory `_data`
//! of the filesystem, so `lost+found` isn't in the way of programs that want an empty directory.

mod attach;
mod disk;
mod packed;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use micabox_error::{Error, VolumeUser, VolumeWish};
use micabox_ground::{clock, publish};
use micabox_image::store::packed_size;
use micabox_state::{Lock, Sandboxes, VOLUME_DISK, is_valid_name as is_valid, old_volume};
use serde::{Deserialize, Serialize};
use tracing::info;

pub use attach::Use;

const RECORD: &str = "volume.json";
const NEW: &str = ".new";

/// The directory of a volume's filesystem that sandboxes see.
pub const DATA: &str = "_data";

/// Fewest bytes of a volume: an ext4 filesystem with a journal, and some room.
pub const MIN_VOLUME_SIZE: u64 = 16 << 20;

/// A named disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Volume {
    /// Unique among volumes.
    pub name: String,
    /// When it was made, seconds since 1970-01-01 UTC.
    pub created: i64,
    /// What its user has noted about it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Whether no sandbox has used it: the first one fills it with what its image has at the mount's
    /// target.
    #[serde(default)]
    pub is_new: bool,
    /// Its directory.
    #[serde(skip)]
    directory: PathBuf,
}

impl Volume {
    /// Returns the path of the disk, an ext4 filesystem; what sandboxes see is in `/_data`.
    pub fn disk(&self) -> PathBuf {
        self.directory.join(VOLUME_DISK)
    }

    /// Returns the disk's size in bytes, and how many of them the host has allocated: of one that is packed none, as its
    /// chunks may be others' as well.
    ///
    /// # Errors
    /// [`Error::State`]; [`Error::Store`].
    pub fn size(&self) -> Result<(u64, u64), Error> {
        let path = self.disk();
        if let Some(packed) = packed_size(&path)? {
            return Ok((packed.length, 0));
        }
        let metadata = path.metadata().map_err(Error::state("reading", &path))?;
        Ok((metadata.len(), metadata.blocks().saturating_mul(512)))
    }

    /// Writes the record.
    fn publish(&self) -> io::Result<()> {
        publish(
            &self.directory.join(RECORD),
            &serde_json::to_vec_pretty(self)?,
        )
    }
}

/// The volumes of a store.
#[derive(Clone, Copy, Debug)]
pub struct Volumes<'a>(pub &'a Sandboxes);

impl Volumes<'_> {
    /// Makes a volume of `size` bytes, at least [`MIN_VOLUME_SIZE`], rounded up to 4096. The host
    /// allocates space only as it fills.
    ///
    /// # Errors
    /// [`Error::BadVolumeName`], [`Error::VolumeExists`], [`Error::VolumeSize`], [`Error::Disk`],
    /// [`Error::State`].
    pub fn create(
        &self,
        name: &str,
        size: u64,
        labels: BTreeMap<String, String>,
    ) -> Result<Volume, Error> {
        if !is_valid(name) {
            return Err(Error::BadVolumeName(name.to_owned()));
        }
        let size = disk::checked(name, size)?;
        let (root, _names) = self.lock()?;
        if self.get(name).is_ok() {
            return Err(Error::VolumeExists(name.to_owned()));
        }
        let directory = root.join(name);
        let unfinished = root.join(NEW);
        // Of a process that was killed.
        remove(&unfinished)?;
        let mut volume = Volume {
            name: name.to_owned(),
            created: clock::now_as_parts().0,
            labels,
            is_new: true,
            directory: unfinished.clone(),
        };
        let made = fs::DirBuilder::new()
            .mode(0o700)
            .create(&unfinished)
            .map_err(Error::state("making", &unfinished))
            .and_then(|()| disk::make(&volume.disk(), size))
            .and_then(|()| {
                volume
                    .publish()
                    .map_err(Error::state("writing", &unfinished))
            })
            .and_then(|()| {
                fs::rename(&unfinished, &directory).map_err(Error::state("making", &directory))
            });
        if let Err(error) = made {
            let _ = fs::remove_dir_all(&unfinished);
            return Err(error);
        }
        File::open(&root)
            .and_then(|root| root.sync_all())
            .map_err(Error::state("writing", &root))?;
        info!(name, size, "made the volume");
        volume.directory = directory;
        Ok(volume)
    }

    /// Returns all volumes, by name.
    ///
    /// # Errors
    /// [`Error::State`].
    pub fn list(&self) -> Result<Vec<Volume>, Error> {
        let root = self.root();
        let entries = match fs::read_dir(&root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(Error::state("reading", &root))?,
        };
        let mut volumes = Vec::new();
        for entry in entries {
            let name = entry.map_err(Error::state("reading", &root))?.file_name();
            // Others are being made or removed, or are of another version of mica.
            volumes.extend(name.to_str().and_then(|name| self.get(name).ok()));
        }
        volumes.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(volumes)
    }

    /// Returns the volume of this name.
    ///
    /// # Errors
    /// [`Error::NoSuchVolume`].
    pub fn get(&self, name: &str) -> Result<Volume, Error> {
        let none = || Error::NoSuchVolume(name.to_owned());
        if !is_valid(name) {
            return Err(none());
        }
        let directory = self.root().join(name);
        let record = fs::read(directory.join(RECORD)).map_err(|_| none())?;
        let volume: Volume = serde_json::from_slice(&record).map_err(|_| none())?;
        Ok(Volume {
            directory,
            name: name.to_owned(),
            ..volume
        })
    }

    /// Removes a volume that no sandbox uses, running or kept.
    ///
    /// # Errors
    /// [`Error::NoSuchVolume`], [`Error::VolumeInUse`], [`Error::State`].
    pub fn remove(&self, name: &str) -> Result<(), Error> {
        let volume = self.get(name)?;
        if let Some(user) = self.users_of(name)?.into_iter().next() {
            return Err(Error::VolumeInUse {
                name: name.to_owned(),
                user: VolumeUser::Sandbox(user),
                wish: VolumeWish::Remove,
            });
        }
        let (_, _names) = self.lock()?;
        let _packed = self.0.store().hold_packed(&volume.disk())?;
        // The lock is released when the file is closed at the end.
        let _lock = if volume.is_packed() {
            None
        } else {
            let lock = disk::lock(&volume, false)?;
            Some(lock.ok_or_else(|| self.busy(name, VolumeWish::Remove))?)
        };
        let old = old_volume(self.0.store().root(), name);
        remove(&old)?;
        // From here on there is no such volume, even if removing its files fails.
        fs::rename(&volume.directory, &old).map_err(Error::state("removing", &volume.directory))?;
        remove(&old)
    }

    /// Grows a volume that no machine uses to `size` bytes, rounded up to 4096. Returns the new
    /// size.
    ///
    /// # Errors
    /// [`Error::NoSuchVolume`], [`Error::VolumeInUse`], [`Error::VolumeSize`] if it is smaller than
    /// the volume is now, [`Error::Disk`].
    pub fn resize(&self, name: &str, size: u64) -> Result<u64, Error> {
        let volume = self.get(name)?;
        let size = disk::checked(name, size)?;
        volume.note_use();
        let disk = self.lock_disk(&volume, false)?;
        let disk = disk.ok_or_else(|| self.busy(name, VolumeWish::Resize))?;
        let grown = disk::grow(&volume, &disk, size);
        // To close it is not enough: the worker may have it open for a moment longer.
        let _ = disk.file().unlock();
        grown.map(|()| size)
    }

    /// Returns the names of the sandboxes that use a volume: those that run, and those that would
    /// when they are started again.
    ///
    /// # Errors
    /// [`Error::State`].
    pub fn users_of(&self, volume: &str) -> Result<Vec<String>, Error> {
        let uses = |record: &micabox_state::Record| record.volumes().any(|name| name == volume);
        let all = self.0.list()?.into_iter();
        Ok(all.filter(uses).map(|record| record.name).collect())
    }

    fn root(&self) -> PathBuf {
        self.0.store().root().join("volumes")
    }

    /// Makes the directory of volumes if necessary, and locks their names.
    fn lock(&self) -> Result<(PathBuf, Lock), Error> {
        let root = self.root();
        fs::create_dir_all(&root).map_err(Error::state("making", &root))?;
        let path = self.0.store().root().join("locks/volumes");
        let lock = Lock::wait(&path).map_err(Error::state("locking", &path))?;
        Ok((root, lock))
    }
}

/// Removes a directory, if there is one.
fn remove(directory: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::state("removing", directory)(error))
        }
        _ => Ok(()),
    }
}
