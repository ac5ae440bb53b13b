//! An image as a stack of filesystems, which overlayfs puts on each other: the form that containerd 2.4 mounts.
//!
//! It has no devices: each of its layers is mounted alone. A layer's image is the device's, bit for bit, so a registry has
//! it once for both forms. What a layer alone can't say (a link to a file of a lower layer, the attributes of a directory
//! that its archive only implies) is in one more layer on top, with the files' contents.

use micabox_oci::json::{self, Json};

use super::erofs::{ErofsEntry, pack_whole};
use super::erofs_documents::{ErofsDocuments, documents};
use super::pack::{PackError, Packed};
use crate::manifest::ManifestError;
use crate::manifest::erofs as names;
use crate::printable;
use crate::store::{Image, Store, stacked};

/// What a stack has beside the devices of an image.
#[derive(Debug)]
pub struct PackedStack {
    /// Its blobs.
    pub blobs: Vec<Packed>,
    /// Index of the device at which the stack begins: those below it are hidden.
    first_layer: usize,
    /// In place of that device, if it has whiteouts: there is nothing below it.
    bottom: Option<ErofsEntry>,
    /// For the top, if the layers alone show something else than the image.
    fixup: Option<ErofsEntry>,
}

/// Packs what a stack of an image's layers has beside its devices. `watch` is called with the number of bytes of an
/// image that are packed, and returns whether to continue.
///
/// # Errors
///
/// [`PackError::Stopped`] if `watch` returned false; [`crate::store::Error`].
pub fn pack_stack(
    store: &Store,
    image: &Image,
    watch: &mut dyn FnMut(u64) -> bool,
) -> Result<PackedStack, PackError> {
    let scratch = store.scratch()?;
    let stacked = stacked(store, &scratch, image)?;
    let mut blobs = Vec::new();
    let mut pack = |whole| {
        let packed = pack_whole(store, scratch.directory(), whole, watch)?;
        blobs.push(packed.packed);
        Ok::<_, PackError>(packed.entry)
    };
    Ok(PackedStack {
        first_layer: stacked.first_layer,
        bottom: stacked.bottom.map(&mut pack).transpose()?,
        fixup: stacked.fixup.map(&mut pack).transpose()?,
        blobs,
    })
}

impl PackedStack {
    /// Returns the documents of the image with `config` and these devices, as a stack.
    ///
    /// # Errors
    ///
    /// [`ManifestError`]: `manifest` or `config` can't be read.
    pub fn documents(
        &self,
        manifest: &[u8],
        config: &[u8],
        devices: &[ErofsEntry],
    ) -> Result<ErofsDocuments, ManifestError> {
        let added = self.fixup.as_ref().map(|_| "corrections of the layers");
        let layers = self.layers(devices);
        if self.first_layer == 0 {
            return documents(manifest, config, &layers, added);
        }
        let malformed = |error: json::Error| ManifestError::Malformed {
            document: "config",
            message: printable(&error.to_string()),
        };
        let mut config: Json = json::from_slice(config).map_err(malformed)?;
        // It is about layers that are hidden, too.
        config.remove_field("history");
        let config = serde_json::to_vec(&config).map_err(malformed)?;
        documents(manifest, &config, &layers, added)
    }

    /// Returns the layers of the stack, bottom first, of an image with these devices.
    fn layers(&self, devices: &[ErofsEntry]) -> Vec<ErofsEntry> {
        let visible = devices.get(self.first_layer..).unwrap_or_default();
        let bottom = self.bottom.as_ref().or(visible.first());
        let above = visible.get(1..).unwrap_or_default();
        let layers = bottom.into_iter().chain(above).chain(&self.fixup);
        layers.map(ErofsEntry::stacked).collect()
    }
}

impl ErofsEntry {
    /// Returns the same image as a layer for containerd, which has types of its own and no roles.
    fn stacked(&self) -> Self {
        let mut entry = self.clone();
        names::STACK_TYPE.clone_into(&mut entry.blob.media_type);
        let is_of_device = |name: &str| name == names::ROLE || name.starts_with(names::OWN);
        entry.annotations.retain(|(name, _)| !is_of_device(name));
        entry
    }
}
