//! Packing of a store's snapshots and volumes.

use micabox_disks::{Kept, KeptChoice, KeptReport, pack_kept, unpack_kept};
use micabox_error::Error;
use micabox_image::progress::Progress;
use micabox_image::store::Patience;

use crate::Sandboxes;

impl Sandboxes {
    /// Packs snapshots and volumes that nothing uses: their files become lists of chunks, which they share with each other
    /// and with packed layers ([`Store::pack`](crate::Store::pack)), and which are compressed. What uses one later unpacks
    /// it before.
    ///
    /// If it is killed at any point, each file is whole or packed.
    ///
    /// # Errors
    /// [`Error::NoSuchSnapshot`], [`Error::NoSuchVolume`] for what is named; [`Error::Store`], [`Error::State`].
    pub fn pack(
        &self,
        choice: &KeptChoice,
        patience: Patience,
        progress: &dyn Progress,
    ) -> Result<KeptReport, Error> {
        pack_kept(self.as_ref(), choice, patience, progress)
    }

    /// Makes a snapshot or a volume whole now, in place of at its next use.
    ///
    /// # Errors
    /// [`Error::NoSuchSnapshot`], [`Error::NoSuchVolume`]; [`Error::Store`], [`Error::State`].
    pub fn unpack(&self, kept: &Kept, progress: &dyn Progress) -> Result<(), Error> {
        unpack_kept(self.as_ref(), kept, progress)
    }
}
