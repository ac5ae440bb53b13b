//! What becomes of an image when it is converted to EROFS images for registries.

use std::collections::{HashMap, HashSet};

use micabox_oci::progress::{self, Event, LayerState, Phase, Progress};

use super::erofs::{ErofsEntry, device_entry, fsmeta_entry};
use super::erofs_documents::{ErofsDocuments, erofs_documents};
use super::pack::PackError;
use crate::manifest::ManifestError;
use crate::manifest::erofs as names;
use crate::store::{self, Image, Layer, Store};
use crate::{Descriptor, Digest};

/// An image's other form, without its blobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conversion {
    /// The layers, bottom first, and the merged metadata.
    pub images: Vec<ErofsEntry>,
    /// The documents.
    pub documents: ErofsDocuments,
}

/// Why an image can't be converted.
#[derive(Debug, thiserror::Error)]
pub enum ConversionError {
    /// A layer, or the merged metadata, can't be packed.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// The image's manifest or config can't be read, or there are no archives.
    #[error(transparent)]
    Manifest(#[from] Box<ManifestError>),
}

impl From<store::Error> for ConversionError {
    fn from(error: store::Error) -> Self {
        Self::Pack(error.into())
    }
}

/// Converts an image, and keeps no blob: to see what becomes of it, or to check what was made of it elsewhere.
///
/// # Errors
///
/// [`ConversionError`]; [`ManifestError::NoArchives`] if a layer was not converted here from its archive.
pub fn convert_image(
    store: &Store,
    image: &Image,
    progress: &dyn Progress,
) -> Result<Conversion, ConversionError> {
    if image
        .layers
        .iter()
        .any(|layer| layer.record.recipe.is_none())
    {
        return Err(Box::new(ManifestError::NoArchives).into());
    }
    let _shared = store.shared()?;
    progress.event(Event::Phase(Phase::Layers));
    progress.event(Event::Layers(&transfers(store, image)?));
    let event = |id, state| {
        progress.event(Event::Layer {
            diff_id: &id,
            state,
        })
    };
    let packed = |id, bytes| {
        event(id, LayerState::Packed { bytes });
        true
    };
    let mut devices: HashMap<Digest, ErofsEntry> = HashMap::new();
    let mut images = Vec::with_capacity(image.layers.len() + 1);
    for layer in &image.layers {
        let id = device_id(layer);
        let entry = match devices.get(&layer.diff_id) {
            Some(entry) => entry.clone(),
            None => device_entry(store, layer, &mut |bytes| packed(id, bytes))?,
        };
        if devices.insert(layer.diff_id, entry.clone()).is_none() {
            event(id, LayerState::Done);
        }
        images.push(entry);
    }
    let id = fsmeta_id(image);
    images.push(fsmeta_entry(store, image, &mut |bytes| packed(id, bytes))?);
    event(id, LayerState::Done);
    let digest = &image.manifest_digest;
    let (manifest, config) = (store.manifest(digest)?, store.config(digest)?);
    let documents = erofs_documents(&manifest, &config, &images).map_err(Box::new)?;
    progress.event(Event::Phase(Phase::Done));
    Ok(Conversion { images, documents })
}

/// Returns an image's EROFS images as progress has them, each once: under names that the layers' archives don't have,
/// since a push may send both.
///
/// # Errors
///
/// Errors of the store.
pub fn transfers(store: &Store, image: &Image) -> Result<Vec<progress::Layer>, store::Error> {
    let fsmeta = store.fsmeta_size(&image.manifest_digest)?;
    let devices = image
        .layers
        .iter()
        .map(|layer| (device_id(layer), layer.image_size()));
    let mut seen = HashSet::new();
    let all = devices.chain([(fsmeta_id(image), fsmeta)]);
    let once = all.filter(|(id, _)| seen.insert(*id));
    let transfers = once.map(|(id, size)| progress::Layer {
        diff_id: id,
        blob: Descriptor {
            media_type: names::MEDIA_TYPE.to_owned(),
            digest: id,
            size,
        },
    });
    Ok(transfers.collect())
}

/// Returns the name of a layer's EROFS image in [`transfers`].
#[must_use]
pub fn device_id(layer: &Layer) -> Digest {
    Digest::of(format!("device {}", layer.diff_id).as_bytes())
}

/// Returns the name of an image's merged metadata in [`transfers`].
#[must_use]
pub fn fsmeta_id(image: &Image) -> Digest {
    Digest::of(format!("fsmeta {}", image.manifest_digest).as_bytes())
}
