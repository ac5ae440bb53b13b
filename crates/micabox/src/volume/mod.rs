//! Volumes: ext4 disks with names, which outlive the sandboxes that use them.
//!
//! ```text
//! volumes/<name>/disk.ext4      the disk; locked (flock) by whatever uses it
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

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tracing::info;

use crate::name::is_valid;
use crate::sandbox::now;
use crate::state::Lock;
use crate::{Error, Sandboxes, jailed};

pub(crate) use attach::Use;

const DISK: &str = "disk.ext4";
const RECORD: &str = "volume.json";
const NEW: &str = ".new";
const OLD: &str = ".old-";

/// The directory of a volume's filesystem that sandboxes see.
pub(crate) const DATA: &str = "_data";

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

/// What uses a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeUser {
    /// A running sandbox that writes to it.
    Writer(String),
    /// A running sandbox that reads it.
    Reader(String),
    /// A sandbox that has it, running or not.
    Sandbox(String),
    /// Another process, as one that changes the volume.
    Process,
}

impl fmt::Display for VolumeUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Writer(name) => write!(f, "sandbox {name} writes to it"),
            Self::Reader(name) => write!(f, "sandbox {name} reads it"),
            Self::Sandbox(name) => write!(f, "sandbox {name} uses it"),
            Self::Process => f.write_str("another process uses it"),
        }
    }
}

/// What a volume in use can't be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeWish {
    /// By a sandbox, for reading and writing.
    Write,
    /// By a sandbox, for reading.
    Read,
    /// To be resized.
    Resize,
    /// To be removed.
    Remove,
}

impl Volume {
    /// Returns the path of the disk, an ext4 filesystem; what sandboxes see is in `/_data`.
    pub fn disk(&self) -> PathBuf {
        self.directory.join(DISK)
    }

    /// Returns the disk's size in bytes, and how many of them the host has allocated.
    ///
    /// # Errors
    /// [`Error::State`].
    pub fn size(&self) -> Result<(u64, u64), Error> {
        let path = self.disk();
        let metadata = path.metadata().map_err(failed("reading", &path))?;
        Ok((metadata.len(), metadata.blocks().saturating_mul(512)))
    }

    /// Writes the record.
    fn publish(&self) -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(&self.directory)?;
        file.write_all(&serde_json::to_vec_pretty(self)?)?;
        file.as_file().sync_all()?;
        file.persist(self.directory.join(RECORD))?;
        File::open(&self.directory)?.sync_all()
    }
}

/// Returns the path of a volume's disk in the store at `root`.
pub(crate) fn disk_path(root: &Path, name: &str) -> PathBuf {
    root.join("volumes").join(name).join(DISK)
}

/// Removes a sandbox's own volume from the store at `root`, unless a machine uses it or there is none. What
/// can't be removed now stays for `mica volume prune`.
pub(crate) fn forget(root: &Path, name: &str) {
    let volume = Volume {
        name: name.to_owned(),
        created: 0,
        labels: BTreeMap::new(),
        is_new: false,
        directory: root.join("volumes").join(name),
    };
    // The lock is released when the file is closed at the end.
    if is_valid(name)
        && let Ok(Some(_lock)) = disk::lock(&volume, false)
    {
        let old = root.join("volumes").join(format!("{OLD}{name}"));
        if fs::rename(&volume.directory, &old).is_ok() {
            let _ = remove(&old);
        }
    }
}

impl Sandboxes {
    /// Makes a volume of `size` bytes, at least [`MIN_VOLUME_SIZE`], rounded up to 4096. The host
    /// allocates space only as it fills.
    ///
    /// # Errors
    /// [`Error::BadVolumeName`], [`Error::VolumeExists`], [`Error::VolumeSize`], [`Error::Disk`],
    /// [`Error::State`].
    pub fn create_volume(
        &self,
        name: &str,
        size: u64,
        labels: BTreeMap<String, String>,
    ) -> Result<Volume, Error> {
        if !is_valid(name) {
            return Err(Error::BadVolumeName(name.to_owned()));
        }
        let size = disk::checked(name, size)?;
        let (root, _names) = self.volume_names()?;
        if self.volume(name).is_ok() {
            return Err(Error::VolumeExists(name.to_owned()));
        }
        let directory = root.join(name);
        let unfinished = root.join(NEW);
        // Of a process that was killed.
        remove(&unfinished)?;
        let mut volume = Volume {
            name: name.to_owned(),
            created: now().0,
            labels,
            is_new: true,
            directory: unfinished.clone(),
        };
        let made = fs::DirBuilder::new()
            .mode(0o700)
            .create(&unfinished)
            .map_err(failed("making", &unfinished))
            .and_then(|()| disk::make(&volume.disk(), size))
            .and_then(|()| volume.publish().map_err(failed("writing", &unfinished)))
            .and_then(|()| {
                fs::rename(&unfinished, &directory).map_err(failed("making", &directory))
            });
        if let Err(error) = made {
            let _ = fs::remove_dir_all(&unfinished);
            return Err(error);
        }
        File::open(&root)
            .and_then(|root| root.sync_all())
            .map_err(failed("writing", &root))?;
        info!(name, size, "made the volume");
        volume.directory = directory;
        Ok(volume)
    }

    /// Returns all volumes, by name.
    ///
    /// # Errors
    /// [`Error::State`].
    pub fn volumes(&self) -> Result<Vec<Volume>, Error> {
        let root = self.volume_root();
        let entries = match fs::read_dir(&root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed("reading", &root))?,
        };
        let mut volumes = Vec::new();
        for entry in entries {
            let name = entry.map_err(failed("reading", &root))?.file_name();
            // Others are being made or removed, or are of another version of mica.
            volumes.extend(name.to_str().and_then(|name| self.volume(name).ok()));
        }
        volumes.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(volumes)
    }

    /// Returns the volume of this name.
    ///
    /// # Errors
    /// [`Error::NoSuchVolume`].
    pub fn volume(&self, name: &str) -> Result<Volume, Error> {
        let none = || Error::NoSuchVolume(name.to_owned());
        if !is_valid(name) {
            return Err(none());
        }
        let directory = self.volume_root().join(name);
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
    pub fn remove_volume(&self, name: &str) -> Result<(), Error> {
        let volume = self.volume(name)?;
        if let Some(user) = self.users_of(name)?.into_iter().next() {
            return Err(Error::VolumeInUse {
                name: name.to_owned(),
                user: VolumeUser::Sandbox(user),
                wish: VolumeWish::Remove,
            });
        }
        let (root, _names) = self.volume_names()?;
        // The lock is released when the file is closed at the end.
        let lock = disk::lock(&volume, false)?;
        let _lock = lock.ok_or_else(|| self.volume_busy(name, VolumeWish::Remove))?;
        let old = root.join(format!("{OLD}{name}"));
        remove(&old)?;
        // From here on there is no such volume, even if removing its files fails.
        fs::rename(&volume.directory, &old).map_err(failed("removing", &volume.directory))?;
        remove(&old)
    }

    /// Grows a volume that no machine uses to `size` bytes, rounded up to 4096. Returns the new
    /// size.
    ///
    /// # Errors
    /// [`Error::NoSuchVolume`], [`Error::VolumeInUse`], [`Error::VolumeSize`] if it is smaller than
    /// the volume is now, [`Error::Disk`].
    pub fn resize_volume(&self, name: &str, size: u64) -> Result<u64, Error> {
        let volume = self.volume(name)?;
        let size = disk::checked(name, size)?;
        let disk = disk::lock(&volume, false)?
            .ok_or_else(|| self.volume_busy(name, VolumeWish::Resize))?;
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
        let uses = |record: &crate::Record| record.volumes().any(|name| name == volume);
        let all = self.list()?.into_iter();
        Ok(all.filter(uses).map(|record| record.name).collect())
    }

    fn volume_root(&self) -> PathBuf {
        self.store().root().join("volumes")
    }

    /// Makes the directory of volumes if necessary, and locks their names.
    fn volume_names(&self) -> Result<(PathBuf, Lock), Error> {
        let root = self.volume_root();
        fs::create_dir_all(&root).map_err(failed("making", &root))?;
        let path = self.store().root().join("locks/volumes");
        let lock = Lock::wait(&path).map_err(failed("locking", &path))?;
        Ok((root, lock))
    }
}

/// Removes a directory, if there is one.
fn remove(directory: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(failed("removing", directory)(error))
        }
        _ => Ok(()),
    }
}

/// Makes an error that names the operation and the path.
fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::State { what, path, source }
}
