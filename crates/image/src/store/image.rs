//! An image in the store, as others use it.

use std::path::PathBuf;

use micabox_oci::ImageConfiguration;

use super::Store;
use super::layers::Layer;
use crate::{Trim, identity};
use micabox_oci::Digest;
use micabox_oci::reference::Reference;

/// An image in the store, ready to boot.
#[derive(Debug, Clone)]
pub struct Image {
    /// The store that has it.
    pub store: Store,
    /// The requested name, if it was a reference.
    pub reference: Option<Reference>,
    /// Digest of the manifest, which names the image.
    pub manifest_digest: Digest,
    /// Digest of the config: what Docker calls the image's ID.
    pub config_digest: Digest,
    /// The config.
    pub config: ImageConfiguration,
    /// The layers, bottom first.
    pub layers: Vec<Layer>,
    /// All layers' metadata merged into one image, whose files point into the layers.
    pub fsmeta: PathBuf,
    /// Length of `fsmeta` in blocks of 4 KiB, with its padding.
    pub fsmeta_blocks: u64,
    /// Index of the lowest visible layer of a stack: this layer's root directory is opaque, so it
    /// hides the layers below, which overlayfs itself would not notice. Almost always 0.
    pub first_layer: usize,
    /// The fixup that belongs on top of the layers if they are stacked instead of merged.
    pub fixup: Option<Fixup>,
    /// VMDK descriptor of the disk `[fsmeta | layer | layer | …]`, which must be opened read-only.
    pub vmdk: PathBuf,
    /// What `fsmeta` lacks: empty, except in a [trimmed](Store::trimmed) image, which can't be stacked.
    pub trim: Trim,
}

impl Image {
    /// Returns the UUID of its merged metadata.
    #[must_use]
    pub fn fsmeta_uuid(&self) -> [u8; 16] {
        let layers = self.layers.iter().map(Layer::identity);
        if self.trim.is_empty() {
            identity::fsmeta_uuid(layers)
        } else {
            identity::trimmed_uuid(layers, &self.trim)
        }
    }
}

/// A small image for the top of a stack: it has the entries that depend on several layers, which
/// no single layer can contain. Its device table is that of fsmeta: the files in it point into the
/// layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fixup {
    /// The file.
    pub path: PathBuf,
    /// Its length in blocks of 4 KiB, with its padding.
    pub blocks: u64,
}
