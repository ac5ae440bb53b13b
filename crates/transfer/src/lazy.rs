//! Fetches the rest of layers of which only a part is here.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use micabox_image::manifest::{self, Document, LayerSource};
use micabox_image::progress::{Event, LayerState, Phase, Silent};
use micabox_image::store::{self, Image, Layer};
use micabox_image::{Descriptor, Digest, Limits, Progress, Reference, Store};
use micabox_lazy::{Fetch, Inflaters};
use micabox_registry::{RegistryError, Repository};
use tokio::runtime::{Handle, Runtime};
use tokio::task::JoinSet;

use crate::pull::{Pull, blocking, joined};
use crate::{PullError, PullOptions};

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
        let threads = threads()?;
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
        let (record, blob) = store.lazy_blob(layer)?;
        let parts = BlobParts {
            runtime: self.runtime.clone(),
            _threads: self.threads.clone(),
            repository: self.repository(&record)?,
            diff_id: layer.diff_id,
            blob: record.blob,
        };
        let length = layer.image_size();
        let parts = Box::new(parts);
        Ok(micabox_lazy::Image::new(
            blob,
            length,
            parts,
            &self.inflaters,
        ))
    }

    fn repository(&self, record: &store::LazyRecord) -> Result<Arc<Repository>, RegistryError> {
        let name = format!("{}/{}", record.from.registry(), record.from.repository());
        let repositories = self.repositories.lock();
        let mut repositories = repositories.unwrap_or_else(PoisonError::into_inner);
        if let Some(repository) = repositories.get(&name) {
            return Ok(Arc::clone(repository));
        }
        let made = Arc::new(repository(&self.options, record)?);
        repositories.insert(name, Arc::clone(&made));
        Ok(made)
    }
}

fn repository(
    options: &PullOptions,
    record: &store::LazyRecord,
) -> Result<Repository, RegistryError> {
    let settings = Arc::new(options.settings.for_registries());
    let silent: Arc<dyn Progress> = Arc::new(Silent);
    Repository::new(&record.from, &settings, &options.credentials, &silent)
}

impl fmt::Debug for LazyLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LazyLayers").finish_non_exhaustive()
    }
}

/// The missing bytes of a blob.
struct BlobParts {
    runtime: Handle,
    /// They end with the last image.
    _threads: Option<Arc<Runtime>>,
    repository: Arc<Repository>,
    diff_id: Digest,
    blob: Descriptor,
}

impl Fetch for BlobParts {
    fn fetch(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        let part = self.repository.part(&self.diff_id, &self.blob, range);
        self.runtime.block_on(part).map_err(io::Error::other)
    }
}

fn threads() -> Result<Runtime, PullError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("mica-pull")
        .enable_all()
        .build()
        .map_err(PullError::Threads)
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
    let runtime = threads()?;
    let completed = runtime.block_on(complete(image, options, &progress));
    // Without waiting for threads: one may be waiting for another process.
    runtime.shutdown_background();
    completed
}

/// Fetches the rest of an image's layers.
///
/// # Errors
///
/// [`PullError`]. What was fetched stays.
pub(crate) async fn complete(
    image: &Image,
    options: &PullOptions,
    progress: &Arc<dyn Progress>,
) -> Result<(), PullError> {
    let (store, lazy) = (image.store.clone(), image.clone());
    let lazy = blocking(move || -> Result<_, PullError> {
        // From here on `prune` removes nothing of it.
        let shared = store.shared()?;
        let layers = lazy.layers.iter().filter(|layer| store.is_lazy(layer));
        let layers: Vec<Layer> = layers.cloned().collect();
        Ok((shared, layers))
    });
    let (_shared, lazy) = lazy.await?;
    let mut lazy = lazy.iter();
    let Some(first) = lazy.next() else {
        return Ok(());
    };
    let store = &image.store;
    let record = store.lazy_record(&first.diff_id)?;
    let record = record.ok_or(store::Error::NoLayer {
        diff_id: first.diff_id,
    })?;
    progress.event(Event::Phase(Phase::Layers));
    let fetcher = LazyLayers::on(Handle::current(), options.clone());
    for layer in std::iter::once(first).chain(lazy) {
        let opened = fetcher.open(store, layer)?;
        fill(opened, layer.diff_id, progress).await?;
        let record = store.lazy_record(&layer.diff_id)?;
        if let Some(record) = record {
            store.keep_lazy_blob(&layer.diff_id, &record.blob.digest)?;
        }
    }
    let sources = sources(image, &record.from, &options.settings.limits)?;
    let pull = Pull::again(store, &record.from, options, progress);
    let repository = Arc::new(repository(options, &record)?);
    pull.fetch(repository, sources).await?;
    progress.event(Event::Phase(Phase::Done));
    Ok(())
}

/// Returns an image's layers that are not whole, as its manifest describes them.
fn sources(
    image: &Image,
    reference: &Reference,
    limits: &Limits,
) -> Result<Vec<LayerSource>, PullError> {
    let store = &image.store;
    let unusable = |source| PullError::Manifest {
        reference: Box::new(reference.clone()),
        source: Box::new(source),
    };
    let manifest = store.manifest(&image.manifest_digest)?;
    let Document::Manifest(manifest) = Document::parse(&manifest, None).map_err(unusable)? else {
        return Ok(Vec::new());
    };
    let sources = manifest::layers_of(&manifest, &image.config, limits).map_err(unusable)?;
    let mut lazy = Vec::new();
    for source in sources {
        let layer = store.layer(&source.diff_id)?;
        if layer.is_none_or(|layer| store.is_lazy(&layer)) {
            lazy.push(source);
        }
    }
    Ok(lazy)
}

/// Fetches all chunks of a layer that are missing.
async fn fill(
    image: micabox_lazy::Image,
    diff_id: Digest,
    progress: &Arc<dyn Progress>,
) -> Result<(), PullError> {
    let image = Arc::new(image);
    let next = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..AT_ONCE {
        let (image, next) = (Arc::clone(&image), Arc::clone(&next));
        let progress = Arc::clone(progress);
        tasks.spawn_blocking(move || -> io::Result<()> {
            let end = image.blob().index().len();
            while let Some(after) = image.fill(next.load(Ordering::Relaxed)).inspect_err(|_| {
                // The others end as well.
                next.store(end, Ordering::Relaxed);
            })? {
                next.fetch_max(after, Ordering::Relaxed);
                let range = image.blob().index().range(after);
                if let Some(Range { start: bytes, .. }) = range {
                    let state = LayerState::Received { bytes };
                    let diff_id = &diff_id;
                    progress.event(Event::Layer { diff_id, state });
                }
            }
            Ok(())
        });
    }
    let mut filled = Ok(());
    while let Some(ended) = tasks.join_next().await {
        filled = filled.and(joined(ended));
    }
    filled.map_err(|source| PullError::Parts {
        layer: diff_id,
        source,
    })
}
