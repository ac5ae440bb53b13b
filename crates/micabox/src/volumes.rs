//! A store's volumes.

use std::collections::BTreeMap;

use micabox_disks::{Volume, Volumes};
use micabox_error::Error;

use crate::Sandboxes;

impl Sandboxes {
    /// Makes a volume of `size` bytes, at least [`MIN_VOLUME_SIZE`](crate::MIN_VOLUME_SIZE), rounded up to 4096. The
    /// host allocates space only as it fills.
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
        Volumes(self.as_ref()).create(name, size, labels)
    }

    /// Returns all volumes, by name.
    ///
    /// # Errors
    /// [`Error::State`].
    pub fn volumes(&self) -> Result<Vec<Volume>, Error> {
        Volumes(self.as_ref()).list()
    }

    /// Returns the volume of this name.
    ///
    /// # Errors
    /// [`Error::NoSuchVolume`].
    pub fn volume(&self, name: &str) -> Result<Volume, Error> {
        Volumes(self.as_ref()).get(name)
    }

    /// Removes a volume that no sandbox uses, running or kept.
    ///
    /// # Errors
    /// [`Error::NoSuchVolume`], [`Error::VolumeInUse`], [`Error::State`].
    pub fn remove_volume(&self, name: &str) -> Result<(), Error> {
        Volumes(self.as_ref()).remove(name)
    }

    /// Grows a volume that no machine uses to `size` bytes, rounded up to 4096. Returns the new
    /// size.
    ///
    /// # Errors
    /// [`Error::NoSuchVolume`], [`Error::VolumeInUse`], [`Error::VolumeSize`] if it is smaller than
    /// the volume is now, [`Error::Disk`].
    pub fn resize_volume(&self, name: &str, size: u64) -> Result<u64, Error> {
        Volumes(self.as_ref()).resize(name, size)
    }

    /// Returns the names of the sandboxes that use a volume: those that run, and those that would
    /// when they are started again.
    ///
    /// # Errors
    /// [`Error::State`].
    pub fn users_of(&self, volume: &str) -> Result<Vec<String>, Error> {
        Volumes(self.as_ref()).users_of(volume)
    }
}
