//! What a pull keeps as it came, if the settings ask for it (`keep-blobs`): the blobs that the manifest names, and the
//! indexes that led to it.

use std::collections::HashSet;

use micabox_image::manifest::{Document, LayerSource, Manifest, digest_of};
use micabox_image::store;
use micabox_image::{Descriptor, Digest, Limits};

use super::{Pull, PullError, blocking};

/// The indexes that lead from a name to the document that is read, at most as many as may be nested.
#[derive(Default)]
pub(super) struct Trail(Vec<Vec<u8>>);

impl Trail {
    /// Adds an index to which so many others have led.
    pub(super) fn add(&mut self, depth: usize, index: Vec<u8>) {
        self.end(depth);
        self.0.push(index);
    }

    /// Ends with a document to which so many have led.
    pub(super) fn end(&mut self, depth: usize) {
        self.0.truncate(depth);
    }
}

impl Pull<'_> {
    /// Returns whether what comes is kept. Of an image that is used before it is here, nothing is.
    pub(super) fn keeps(&self) -> bool {
        self.options.settings.keep_blobs && !self.options.lazy
    }

    /// Returns whether nothing of an image in the store is to be fetched to be kept.
    pub(super) async fn has_all_to_keep(&self, manifest: &Manifest) -> bool {
        if !self.keeps() {
            return true;
        }
        let (store, manifest) = (self.store.clone(), manifest.clone());
        blocking(move || store.has_blobs_of(&manifest)).await
    }

    /// Keeps the indexes that led to the image, and returns their digests.
    pub(super) async fn keep_indexes(&self, trail: Trail) -> Result<Vec<Digest>, PullError> {
        let store = self.store.clone();
        let keep = move || -> Result<_, store::Error> {
            trail
                .0
                .iter()
                .try_for_each(|index| store.keep_index(index))?;
            Ok(trail.0.iter().map(|index| Digest::of(index)).collect())
        };
        Ok(blocking(keep).await?)
    }
}

/// Returns the blobs of a manifest that none of its layers is made of, each as a layer that is none: the merged metadata of
/// a converted image, for example, or a second blob of one layer. One of no size, or beyond the limit, is left out.
pub(super) fn others(manifest: &[u8], layers: &[LayerSource], limits: &Limits) -> Vec<LayerSource> {
    let Ok(Document::Manifest(manifest)) = Document::parse(manifest, None) else {
        return Vec::new();
    };
    let mut known: HashSet<_> = layers.iter().map(|layer| layer.blob.digest).collect();
    let mut others = Vec::new();
    for entry in &manifest.layers {
        let Ok(digest) = digest_of(entry, "manifest", "layer") else {
            continue;
        };
        let Some(size) = entry.size.filter(|size| *size <= limits.layer_size) else {
            continue;
        };
        if known.insert(digest) {
            others.push(LayerSource {
                blob: Descriptor {
                    media_type: entry.media_type.clone(),
                    digest,
                    size,
                },
                diff_id: digest,
                urls: Vec::new(),
                archive: None,
                verity_root: None,
                parts: None,
            });
        }
    }
    others
}
