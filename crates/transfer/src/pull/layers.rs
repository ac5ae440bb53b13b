//! Fetches the layers of an image, a few at a time.

use std::collections::HashSet;
use std::sync::Arc;

use micabox_image::manifest::LayerSource;
use micabox_image::progress::{self, Event};
use micabox_registry::Repository;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::layer::LayerTask;
use super::{Pull, PullError, joined, keep};

impl Pull<'_> {
    /// Fetches and converts every missing layer, a few at a time, and what else of the manifest's blobs is to be kept.
    pub(super) async fn fetch(
        &self,
        repository: Arc<Repository>,
        manifest: &[u8],
        layers: Vec<LayerSource>,
    ) -> Result<(), PullError> {
        let mut diff_ids = HashSet::new();
        // Empty layers occur many times in one image.
        let mut layers: Vec<_> = layers
            .into_iter()
            .filter(|layer| diff_ids.insert(layer.diff_id))
            .collect();
        if !self.options.layers_from_elsewhere {
            layers.iter_mut().for_each(|layer| layer.urls.clear());
        }
        let count = layers.len();
        if self.keeps() {
            let others = keep::others(manifest, &layers, &self.options.settings.limits);
            layers.extend(others);
        }
        let moved: Vec<_> = layers
            .iter()
            .map(|layer| progress::Layer {
                diff_id: layer.diff_id,
                blob: layer.blob.clone(),
            })
            .collect();
        self.progress.event(Event::Layers(&moved));

        let settings = &self.options.settings;
        let parallel = settings.parallel_layers.get().min(layers.len());
        let slots = Arc::new(Semaphore::new(parallel));
        let limits = Arc::new(settings.limits.shared_by(parallel));
        let (cancel, cancelled) = watch::channel(false);
        let mut tasks = JoinSet::new();
        for (number, layer) in layers.into_iter().enumerate() {
            let task = LayerTask {
                store: self.store.clone(),
                repository: Arc::clone(&repository),
                reference: self.reference.clone(),
                limits: Arc::clone(&limits),
                place: settings.conversion,
                progress: Arc::clone(&self.progress),
                cancelled: cancelled.clone(),
                keep: self.keeps(),
                is_layer: number < count,
                layer,
            };
            let slots = Arc::clone(&slots);
            tasks.spawn(async move {
                // The semaphore is never closed.
                let _slot = slots.acquire_owned().await;
                task.run().await
            });
        }
        let mut outcome = Ok(());
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = joined(ended)
                && outcome.is_ok()
            {
                outcome = Err(error);
                // The other tasks end soon, and clean up in the store.
                cancel.send_replace(true);
            }
        }
        outcome
    }
}
