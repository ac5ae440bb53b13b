//! Commits a sandbox's changes as a new image.

use micabox_image::convert::Place;
use micabox_image::store::Image;
use micabox_image::{AppendLayerError, ImageEdit, Limits, Reference, append_layer};
use tracing::{info, info_span};

use crate::jailed::Unread;
use crate::{Base, Error, Notes, SandboxRef, Store};

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
}

/// Makes an image of a layer on top of another image's.
pub(crate) fn commit_layer(
    store: &Store,
    image: &Image,
    mut layer: Unread,
    changes: &ImageEdit,
    references: &[Reference],
    limits: &Limits,
) -> Result<(Image, Notes), Error> {
    // Reading it fails at the end if the layer is incomplete.
    let place = Place::Jail;
    let extended = append_layer(store, image, &mut layer, changes, references, limits, place);
    match extended {
        Ok(image) => {
            info!(digest = %image.manifest_digest, "made the image");
            Ok((image, layer.finish()?))
        }
        // The worker's error about the disk explains more.
        Err(error @ AppendLayerError::Read(_)) => {
            let verdict = layer.verdict();
            Err(verdict.unwrap_or_else(|| Box::new(error).into()))
        }
        Err(error) => Err(Box::new(error).into()),
    }
}
