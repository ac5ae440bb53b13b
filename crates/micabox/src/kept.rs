//! What a sandbox has changed, and what is made of that: lists, layers, images.

use std::io;

use micabox_disks::{Base, Change, FrozenDisk, Patch, apply, commit_layer};
use micabox_error::Error;
use micabox_image::store::Image;
use micabox_image::{ImageEdit, Limits, Reference};
use micabox_parsers::Notes;
use micabox_state::upper_disk;
use tracing::info_span;

use crate::SandboxRef;

impl SandboxRef {
    /// Makes an image of the sandbox's changes on top of its image's layers, and gives it the names
    /// in `references`. A running sandbox is frozen for a moment ([`SandboxRef::frozen_disk`]).
    ///
    /// # Errors
    /// Those of [`SandboxRef::frozen_disk`]; [`Error::NoImage`] if the sandbox has a root disk;
    /// [`Error::Commit`].
    pub fn commit(
        &self,
        changes: &ImageEdit,
        references: &[Reference],
        limits: &Limits,
    ) -> Result<(Image, Notes), Error> {
        let base = self.base()?;
        let Base::Image(image) = &base else {
            return Err(Error::NoImage(self.record().name.clone()));
        };
        let _span = info_span!("commit", id = self.record().short_id()).entered();
        let store = self.sandboxes().store();
        let layer = self.frozen_disk()?.layer(&base)?;
        commit_layer(store, image, layer, changes, references, limits)
    }

    /// Changes the files of the sandbox, which must have a disk and not run.
    ///
    /// # Errors
    /// [`Error::NotKept`], [`Error::InPlace`], [`Error::Running`], [`Error::Patch`],
    /// [`Error::Disk`]. Patches before the one that fails may have been applied or not.
    pub fn patch(&self, patches: &[Patch]) -> Result<(), Error> {
        let (found, _lock) = self.hold()?;
        found.record.disk_size()?;
        let base = Base::of(self.sandboxes().store(), &found.record)?;
        apply(&upper_disk(&found.path), &base, patches)
    }

    /// Calls `each` with every change of the sandbox, as its disk is now: see
    /// [`SandboxRef::frozen_disk`] and [`FrozenDisk::changes`].
    ///
    /// # Errors
    /// Those of the two, and of [`SandboxRef::base`].
    pub fn diff(&self, each: impl FnMut(Change<'_>) -> io::Result<()>) -> Result<Notes, Error> {
        let disk = self.frozen_disk()?;
        disk.changes(&self.base()?, each)
    }

    /// Returns the changes of the sandbox as they are now. A running sandbox is frozen while its disk is
    /// copied, or until its folder has been read. What the guest had not flushed is in the copy only as far as its
    /// kernel had written it, as after a power cut.
    ///
    /// # Errors
    /// [`Error::NotKept`] if the sandbox has no disk and no folder, [`Error::InPlace`] if it writes to
    /// its root disk; [`Error::Disk`]; [`Error::UpperFolder`], [`Error::UpperInUse`].
    pub fn frozen_disk(&self) -> Result<FrozenDisk, Error> {
        FrozenDisk::of(self.sandboxes().as_ref(), self.id())
    }
}
