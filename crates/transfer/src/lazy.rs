//! Fetches the rest of layers of which only a part is here.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use micabox_ground::lock;
use micabox_image::progress::{self, Event, LayerState, Phase, Silent};
use micabox_image::store::{CompleteError, Image, Layer, LazyRecord};
use micabox_image::{Descriptor, Digest, Progress, Store};
use micabox_lazy::{Fetch, Fetched, Inflaters};
use micabox_registry::{RegistryError, Repository};
use tokio::runtime::{Handle, Runtime};
use tokio::task::JoinSet;

use crate::pull::{blocking, joined};
use crate::{PullError, PullOptions, threads};

/// Parts of a layer that are fetched at the same time while it becomes whole.
const AT_ONCE: usize = 4;

/// Reads layers of which only a part is here, and fetches what is missing when it is read.
pub struct LazyLayers {
    runtime: Handle,
    /// The runtime's threads, unless they are the caller's.
    threads: Option<Arc<Runtime>>,
    options: PullOptions,
    inflaters: Arc<Inflaters>,
    /// By registry and repository: layers of one share what it said of access.
    repositories: Mutex<HashMap<String, Arc<Repository>>>,
}

impl LazyLayers {
    /// Asks registries as `options` say, on threads of its own, for callers outside of any asynchronous runtime.
    ///
    /// # Errors
    ///
    /// [`PullError::Threads`].
    pub fn new(options: PullOptions) -> Result<Self, PullError> {
        let threads = threads("mica-pull").map_err(PullError::Threads)?;
        let runtime = threads.handle().clone();
        Ok(Self {
            threads: Some(Arc::new(threads)),
            ..Self::on(runtime, options)
        })
    }

    fn on(runtime: Handle, options: PullOptions) -> Self {
        Self {
            runtime,
            threads: None,
            options,
            inflaters: Arc::default(),
            repositories: Mutex::default(),
        }
    }

    /// Opens a layer for reading. Reads wait for the registry, as long as a pull would.
    ///
    /// # Errors
    ///
    /// The store's; [`PullError::Registry`] if the settings for its registry can't be applied.
    pub fn open(&self, store: &Store, layer: &Layer) -> Result<micabox_lazy::Image, PullError> {
        Ok(self.open_blob(store, layer)?.1)
    }

    /// Opens an image's layers of which only a part is here, each once, with their blobs.
    fn open_lazy(
        &self,
        image: &Image,
    ) -> Result<Vec<(Layer, Descriptor, micabox_lazy::Image)>, PullError> {
        let store = &image.store;
        let mut seen = HashSet::new();
        let mut all = Vec::new();
        for layer in &image.layers {
            if !store.is_lazy(layer) || !seen.insert(layer.diff_id) {
                continue;
            }
            match self.open_blob(store, layer) {
                Ok((blob, opened)) => all.push((layer.clone(), blob, opened)),
                // It has become whole meanwhile.
                Err(_) if store.is_whole(layer) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    fn open_blob(
        &self,
        store: &Store,
        layer: &Layer,
    ) -> Result<(Descriptor, micabox_lazy::Image), PullError> {
        let (record, blob) = store.lazy_blob(layer)?;
        let parts = BlobParts {
            runtime: self.runtime.clone(),
            threads: self.threads.clone(),
            repository: self.repository(&record)?,
            diff_id: layer.diff_id,
            blob: record.blob.clone(),
        };
        let length = layer.image_size();
        let image = micabox_lazy::Image::new(blob, length, Box::new(parts), &self.inflaters);
        Ok((record.blob, image))
    }

    fn repository(&self, record: &LazyRecord) -> Result<Arc<Repository>, RegistryError> {
        let name = format!("{}/{}", record.from.registry(), record.from.repository());
        let mut repositories = lock(&self.repositories);
        if let Some(repository) = repositories.get(&name) {
            return Ok(Arc::clone(repository));
        }
        let settings = Arc::new(self.options.settings.for_registries());
        let silent: Arc<dyn Progress> = Arc::new(Silent);
        let credentials = &self.options.credentials;
        let made = Repository::new(&record.from, &settings, credentials, &silent)?;
        let made = Arc::new(made);
        repositories.insert(name, Arc::clone(&made));
        Ok(made)
    }
}

impl fmt::Debug for LazyLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LazyLayers").finish_non_exhaustive()
    }
}

/// The missing bytes of a blob.
pub(crate) struct BlobParts {
    pub(crate) runtime: Handle,
    /// They end with the last image.
    #[expect(dead_code, reason = "held for its end")]
    pub(crate) threads: Option<Arc<Runtime>>,
    pub(crate) repository: Arc<Repository>,
    pub(crate) diff_id: Digest,
    pub(crate) blob: Descriptor,
}

impl Fetch for BlobParts {
    fn fetch(&self, range: Range<u64>) -> mpsc::Receiver<io::Result<Fetched>> {
        let (repository, diff_id) = (Arc::clone(&self.repository), self.diff_id);
        let blob = self.blob.clone();
        let (sender, receiver) = mpsc::channel();
        // `block_on` panics if the runtime ends meanwhile, as it does where a fetch beside this one has failed.
        self.runtime.spawn(async move {
            let take = |bytes: &[u8], from: &str| {
                let (bytes, from) = (bytes.to_vec(), from.to_owned());
                // Without a receiver there is no reader.
                sender.send(Ok(Fetched { bytes, from })).is_ok()
            };
            let fetched = repository.pieces(&diff_id, &blob, range, take).await;
            if let Err(error) = fetched {
                let _ = sender.send(Err(io::Error::other(error)));
            }
        });
        receiver
    }
}

/// Fetches the rest of an image's layers, so that they become as those of any other image, and blocks until that is done.
///
/// # Errors
///
/// [`PullError`]. What was fetched stays.
pub fn complete_blocking(
    image: &Image,
    options: &PullOptions,
    progress: Arc<dyn Progress>,
) -> Result<(), PullError> {
    let runtime = threads("mica-pull").map_err(PullError::Threads)?;
    let completed = runtime.block_on(complete(image, options, &progress));
    // Without waiting for threads: one may be waiting for another process.
    runtime.shutdown_background();
    completed?;
    progress.event(Event::Phase(Phase::Done));
    Ok(())
}

/// Fetches the rest of an image's layers. Another process may do so as well.
///
/// # Errors
///
/// [`PullError`]. What was fetched stays.
pub(crate) async fn complete(
    image: &Image,
    options: &PullOptions,
    progress: &Arc<dyn Progress>,
) -> Result<(), PullError> {
    let fetcher = LazyLayers::on(Handle::current(), options.clone());
    progress.event(Event::Phase(Phase::Layers));
    let found = image.clone();
    let opened = blocking(move || fetcher.open_lazy(&found)).await?;
    let transfers = opened.iter().map(|(layer, blob, _)| progress::Layer {
        diff_id: layer.diff_id,
        blob: blob.clone(),
    });
    progress.event(Event::Layers(&transfers.collect::<Vec<_>>()));
    for (layer, blob, opened) in opened {
        let diff_id = layer.diff_id;
        fill(opened, diff_id, blob.size, progress).await?;
        let settings = Arc::clone(&options.settings);
        let store = image.store.clone();
        let completed =
            blocking(move || store.complete_lazy(&layer, &settings.limits, settings.conversion));
        completed.await.map_err(|error| match error {
            CompleteError::Store(error) => PullError::from(error),
            error => PullError::Parts {
                layer: diff_id,
                source: io::Error::other(error),
            },
        })?;
        progress.event(Event::Layer {
            diff_id: &diff_id,
            state: LayerState::Done,
        });
    }
    Ok(())
}

/// Stops the threads that fetch when what waits for them ends.
#[derive(Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Returns what is true once they stop.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Fetches all chunks of a layer that are missing, from a blob of `size` bytes.
async fn fill(
    image: micabox_lazy::Image,
    diff_id: Digest,
    size: u64,
    progress: &Arc<dyn Progress>,
) -> Result<(), PullError> {
    let image = Arc::new(image);
    let next = Arc::new(AtomicUsize::new(0));
    let stop = Stop(Arc::default());
    let mut tasks = JoinSet::new();
    for _ in 0..AT_ONCE {
        let (image, next, stopped) = (Arc::clone(&image), Arc::clone(&next), Arc::clone(&stop.0));
        let progress = Arc::clone(progress);
        tasks.spawn_blocking(move || -> io::Result<()> {
            while !stopped.load(Ordering::Relaxed) {
                let from = next.load(Ordering::Relaxed);
                let Some(after) = image.fill(from)? else {
                    break;
                };
                let before = next.fetch_max(after, Ordering::Relaxed);
                if before < after {
                    let range = image.blob().index().range(after);
                    let bytes = range.map_or(size, |range| range.start);
                    let state = LayerState::Received { bytes };
                    let diff_id = &diff_id;
                    progress.event(Event::Layer { diff_id, state });
                }
            }
            Ok(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        joined(ended).map_err(|source| PullError::Parts {
            layer: diff_id,
            source,
        })?;
    }
    Ok(())
}
