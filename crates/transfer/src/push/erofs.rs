//! Pushes an image's other form: layers and merged metadata as EROFS images, with a manifest of their own, and an index
//! of both manifests.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use micabox_image::export::{
    ErofsDocuments, ErofsEntry, INDEX_TYPE, MANIFEST_TYPE, Packed, PackedErofs, device_id,
    erofs_index, fsmeta_id, pack_device, pack_fsmeta, pack_stack,
};
use micabox_image::{Descriptor, Digest};

use super::{Found, Push, PushError, PushedErofs};
use crate::pull::joined;

impl Push {
    /// Brings the EROFS images to the registry, a few at a time. Returns them, fsmeta last.
    pub(super) async fn images(
        self: &Arc<Self>,
        found: &Found,
        parallel: usize,
    ) -> Result<Vec<ErofsEntry>, PushError> {
        let slots = Arc::new(Semaphore::new(parallel));
        let mut tasks = JoinSet::new();
        for (layer, _) in found.unique_layers() {
            let layer = layer.clone();
            let (push, slots) = (Arc::clone(self), Arc::clone(&slots));
            tasks.spawn(async move {
                // The semaphore is never closed.
                let _slot = slots.acquire_owned().await;
                let (store, id) = (push.store.clone(), device_id(&layer));
                let diff_id = layer.diff_id;
                let packing = push.packing(id, move |watch| pack_device(&store, &layer, watch));
                let entry = push.image(packing.await?, &id).await?;
                Ok::<_, PushError>((diff_id, entry))
            });
        }
        let mut devices = HashMap::new();
        // The first error drops the other tasks.
        while let Some(ended) = tasks.join_next().await {
            let (diff_id, entry) = joined(ended)?;
            devices.insert(diff_id, entry);
        }
        let layers = found.image.layers.iter();
        let mut entries: Vec<_> = layers
            .filter_map(|layer| devices.get(&layer.diff_id).cloned())
            .collect();

        let (store, image) = (self.store.clone(), found.image.clone());
        let id = fsmeta_id(&image);
        let packing = self.packing(id, move |watch| pack_fsmeta(&store, &image, watch));
        entries.push(self.image(packing.await?, &id).await?);
        Ok(entries)
    }

    async fn image(&self, image: PackedErofs, id: &Digest) -> Result<ErofsEntry, PushError> {
        self.send(image.packed, id, None).await?;
        Ok(image.entry)
    }

    /// Brings to the registry what a stack of an image's devices has beside them, and returns the stack's documents.
    /// `images` are the devices and, last, fsmeta.
    pub(super) async fn stack(
        &self,
        found: &Found,
        images: &[ErofsEntry],
    ) -> Result<ErofsDocuments, PushError> {
        let (store, image) = (self.store.clone(), found.image.clone());
        // Small, unless the lowest layer has whiteouts, which is rare: without progress.
        let packing = self.packing_with(|_| (), move |watch| pack_stack(&store, &image, watch));
        let mut stack = packing.await?;
        for Packed { file, blob } in stack.blobs.drain(..) {
            if !self.destination.has(&blob).await? {
                let file = Arc::new(file);
                self.destination.upload(&blob, &file, None, None).await?;
            }
        }
        let devices = images.split_last().map_or(images, |(_, devices)| devices);
        stack
            .documents(&found.manifest, &found.config, devices)
            .map_err(|source| found.unusable(source))
    }

    /// Puts a manifest of EROFS images, and an index of it and, if given, of `archives`, which is there, under `tag`.
    pub(super) async fn index(
        &self,
        found: &Found,
        documents: &ErofsDocuments,
        archives: Option<&Descriptor>,
        tag: &str,
    ) -> Result<PushedErofs, PushError> {
        self.config(&documents.config).await?;
        let manifest = Descriptor {
            media_type: MANIFEST_TYPE.to_owned(),
            digest: Digest::of(&documents.manifest),
            size: documents.manifest.len() as u64,
        };
        let digest = manifest.digest.to_string();
        self.destination
            .put_manifest(&digest, MANIFEST_TYPE, &documents.manifest)
            .await?;
        let index = erofs_index(archives, &manifest, &found.config)
            .map_err(|source| found.unusable(source))?;
        self.destination
            .put_manifest(tag, INDEX_TYPE, &index)
            .await?;
        Ok(PushedErofs {
            manifest_digest: manifest.digest,
            index_digest: Digest::of(&index),
        })
    }
}
