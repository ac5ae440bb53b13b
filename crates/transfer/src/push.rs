//! Pushes an image: makes the blobs of layers that the registry lacks, sends them, and the
//! manifest last.

mod erofs;

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use micabox_oci::ImageConfiguration;
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, spawn_blocking};
use url::Url;

use micabox_image::export::{
    PackError, Packed, config_descriptor, erofs_documents, pack_layer, rewrite, transfers,
};
use micabox_image::manifest::{Document, LayerSource, Manifest, ManifestError, layers_of};
use micabox_image::progress::{self, Event, LayerState, Phase};
use micabox_image::store::{self, Image, Layer};
use micabox_image::{Compression, Descriptor, Digest, Limits, Progress, Reference, Store};
use micabox_registry::{Credentials, Destination, Mounted, RegistryError};

use crate::pull::{blocking, joined};
use crate::{Settings, threads};

/// Options of a push.
#[derive(Debug, Clone)]
pub struct PushOptions {
    /// Compression of layers whose original blobs neither the registry nor the store has.
    pub compression: Compression,
    /// Whether the layers are sent as EROFS images as well, as a second manifest of the same tag.
    pub erofs: bool,
    /// The tag, in the same repository, under which these images are also a stack for containerd 2.4.
    pub containerd: Option<String>,
    /// Registries, timeouts, how many layers at the same time.
    pub settings: Arc<Settings>,
    /// Registry credentials.
    pub credentials: Credentials,
}

impl PushOptions {
    /// Returns the defaults, with the credentials of this process's user.
    pub fn new(settings: Arc<Settings>) -> Self {
        Self {
            compression: Compression::default(),
            erofs: false,
            containerd: None,
            settings,
            credentials: Credentials::from_environment(),
        }
    }
}

/// Result of a push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pushed {
    /// The pushed name.
    pub reference: Reference,
    /// Digest of the pushed manifest. It differs from the one in the store if layers were packed
    /// anew.
    pub manifest_digest: Digest,
    /// The image's other form, if it was asked for.
    pub erofs: Option<PushedErofs>,
    /// The stack for containerd, if it was asked for, and its name.
    pub containerd: Option<(Reference, PushedErofs)>,
    /// Number of layers.
    pub layers: usize,
    /// Number of layers that the registry already had, or mounted from another of its repositories.
    pub present: usize,
}

/// An image whose layers were pushed as EROFS images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushedErofs {
    /// Digest of its manifest.
    pub manifest_digest: Digest,
    /// Digest of the index of the archives and of these, which the tag names.
    pub index_digest: Digest,
}

/// Why a push failed. Blobs that arrived stay in the registry, so the next attempt continues from
/// there; the manifest comes last, so no client sees half an image.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PushError {
    /// The registry, or the connection to it, failed.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The store, or an image in it, failed.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// The image's manifest can't be rewritten.
    #[error("cannot push {image}: {source}")]
    Manifest {
        /// Manifest digest.
        image: Digest,
        /// What is wrong with it.
        source: Box<ManifestError>,
    },
    /// The image has no name in the store to push it by.
    #[error("name a destination for `{0}`: it was given by its digest")]
    NoDestination(String),
    /// There is no order to push.
    #[error(
        "no start with --lazy has read {0} here while it was not whole, so there is no order to push: pull it with \
         --lazy, and run its program once"
    )]
    NoOrder(String),
    /// A file of a snapshot can't be read, or its blobs can't be made.
    #[error("cannot push the snapshot {name}: {source}")]
    Snapshot {
        /// The snapshot's name.
        name: String,
        /// Which file, and why.
        source: io::Error,
    },
    /// The destination has a digest, which only the pushed manifest can determine.
    #[error("cannot push to {0}: a destination has a tag and no digest")]
    Digest(Box<Reference>),
    /// The tag of the stack for containerd is none, or the image's own.
    #[error("`{0}` is no tag for containerd's form: name one, other than that of the image")]
    ContainerdTag(String),
    /// The system refuses to start threads.
    #[error("cannot start the threads that a push needs: {0}")]
    Threads(#[source] io::Error),
}

/// Runs [`push`] and blocks until it ends, for callers outside of any asynchronous runtime.
///
/// # Errors
///
/// [`PushError`]. Blobs that arrived stay in the registry.
pub fn push_blocking(
    store: &Store,
    name: &str,
    destination: Option<&Reference>,
    options: &PushOptions,
    progress: Arc<dyn Progress>,
) -> Result<Pushed, PushError> {
    let runtime = threads("mica-push").map_err(PushError::Threads)?;
    runtime.block_on(push(store, name, destination, options, progress))
}

/// Pushes the image that `name` refers to, to `destination` or, by default, to its own reference.
///
/// A layer whose original blob the registry has, or the store has kept, is not packed again; if that is true of all
/// layers, the manifest is the original as well. Dropping the future cancels the push.
///
/// # Errors
///
/// [`PushError`]. Blobs that arrived stay in the registry.
pub async fn push(
    store: &Store,
    name: &str,
    destination: Option<&Reference>,
    options: &PushOptions,
    progress: Arc<dyn Progress>,
) -> Result<Pushed, PushError> {
    progress.event(Event::Phase(Phase::Resolving));
    let (in_store, name) = (store.clone(), name.to_owned());
    let settings = Arc::clone(&options.settings);
    let erofs = options.erofs || options.containerd.is_some();
    let found = blocking(move || Found::new(&in_store, &name, &settings.limits, erofs)).await?;
    let destination = match destination.or(found.image.reference.as_ref()) {
        Some(destination) => destination.clone(),
        None => return Err(PushError::NoDestination(found.name)),
    };
    let Some(tag) = destination.tag().filter(|_| destination.digest().is_none()) else {
        return Err(PushError::Digest(Box::new(destination)));
    };
    let stack = match &options.containerd {
        Some(name) => Some(beside(&destination, name)?),
        None => None,
    };
    let others = found.repositories_beside(&destination);
    let push = Push {
        destination: Destination::new(
            &destination,
            others.iter().map(String::as_str),
            &Arc::new(options.settings.for_registries()),
            &options.credentials,
            &progress,
        )?,
        others,
        store: store.clone(),
        compression: options.compression,
        progress,
        stop: Arc::default(),
    };
    let push = Arc::new(push);
    let stopped = StopOnDrop(Arc::clone(&push.stop));
    let parallel = options.settings.parallel_layers.get();
    push.announce(&found);
    let (blobs, present) = push.layers(&found, parallel).await?;
    let images = if options.erofs || stack.is_some() {
        Some(push.images(&found, parallel).await?)
    } else {
        None
    };
    let stacked = match (&images, stack) {
        (Some(images), Some(name)) => Some((name, push.stack(&found, images).await?)),
        _ => None,
    };

    push.progress.event(Event::Phase(Phase::Publishing));
    push.config(&found.config).await?;
    let (manifest, media_type) =
        rewrite(&found.manifest, &found.config, &blobs).map_err(|source| found.unusable(source))?;
    let pushed = Digest::of(&manifest);
    // An index, which has the tag, comes last.
    let name = images.is_some().then(|| pushed.to_string());
    push.destination
        .put_manifest(name.as_deref().unwrap_or(tag), &media_type, &manifest)
        .await?;
    let archives = Descriptor {
        media_type,
        digest: pushed,
        size: manifest.len() as u64,
    };
    let containerd = match stacked {
        Some((name, documents)) => {
            let tag = name.tag().unwrap_or_default();
            // Alone: containerd 2.4 would fetch and unpack the archives as well, which are for its platform, too.
            let pushed = push.index(&found, &documents, None, tag).await?;
            Some((name, pushed))
        }
        None => None,
    };
    let erofs = match images {
        Some(images) => {
            let documents = erofs_documents(&found.manifest, &found.config, &images)
                .map_err(|source| found.unusable(source))?;
            Some(push.index(&found, &documents, Some(&archives), tag).await?)
        }
        None => None,
    };
    let stored = found.image.manifest_digest;
    if pushed != stored {
        push.progress.event(Event::Notice(&format!(
            "layers were packed anew: the registry's digest is {pushed}, the store's stays {stored}"
        )));
    }
    push.progress.event(Event::Phase(Phase::Done));
    drop(stopped);
    Ok(Pushed {
        manifest_digest: pushed,
        erofs,
        containerd,
        reference: destination,
        layers: blobs.len(),
        present,
    })
}

/// Returns the name of an image beside `destination`, in its repository.
fn beside(destination: &Reference, tag: &str) -> Result<Reference, PushError> {
    let invalid = || PushError::ContainerdTag(tag.to_owned());
    let (registry, repository) = (destination.registry(), destination.repository());
    let name = format!("{registry}/{repository}:{tag}").parse::<Reference>();
    let name = name.map_err(|_| invalid())?;
    let is_other = name.tag() == Some(tag) && destination.tag() != Some(tag);
    is_other.then_some(name).ok_or_else(invalid)
}

/// An image with the store's data about it.
struct Found {
    name: String,
    image: Image,
    /// The layers, as the manifest in the store describes them.
    sources: Vec<LayerSource>,
    manifest: Vec<u8>,
    config: Vec<u8>,
    /// All names of the image.
    references: Vec<Reference>,
    /// Its EROFS images, as progress has them, if they are sent.
    images: Vec<progress::Layer>,
    /// Keeps `prune` from removing the image.
    _shared: store::Lock,
}

impl Found {
    fn new(store: &Store, name: &str, limits: &Limits, erofs: bool) -> Result<Self, PushError> {
        let shared = store.shared()?;
        let image = store.image(name)?;
        let digest = image.manifest_digest;
        let manifest = store.manifest(&digest)?;
        let error = |source| PushError::Manifest {
            image: digest,
            source: Box::new(source),
        };
        // An image of other tools' EROFS layers may be pushed where these are, and has nothing to convert.
        let has_archives = |layer: &Layer| layer.record.recipe.is_some();
        if erofs && !image.layers.iter().all(has_archives) {
            return Err(error(ManifestError::NoArchives));
        }
        let Document::Manifest(parsed) = Document::parse(&manifest, None).map_err(error)? else {
            return Err(error(ManifestError::NoImage));
        };
        let images = if erofs {
            transfers(store, &image)?
        } else {
            Vec::new()
        };
        let summaries = store.images()?.into_iter();
        let mut same = summaries.filter(|image| image.manifest_digest == digest);
        Ok(Self {
            name: name.to_owned(),
            sources: sources_of(&parsed, &image.config, limits).map_err(error)?,
            config: store.config(&digest)?,
            references: same
                .next()
                .map(|image| image.references)
                .unwrap_or_default(),
            images,
            manifest,
            image,
            _shared: shared,
        })
    }

    fn unusable(&self, source: ManifestError) -> PushError {
        PushError::Manifest {
            image: self.image.manifest_digest,
            source: Box::new(source),
        }
    }

    /// Returns the layers, bottom first, each once: empty ones occur many times in one image.
    fn unique_layers(&self) -> Vec<(&Layer, &LayerSource)> {
        let mut seen = HashSet::new();
        let layers = self.image.layers.iter().zip(&self.sources);
        layers
            .filter(|(layer, _)| seen.insert(layer.diff_id))
            .collect()
    }

    /// Returns other repositories of the registry that have, or had, the image.
    fn repositories_beside(&self, destination: &Reference) -> Vec<String> {
        let mut others: Vec<_> = self
            .references
            .iter()
            .filter(|other| other.registry() == destination.registry())
            .map(|other| other.repository().to_owned())
            .filter(|other| other != destination.repository())
            .collect();
        others.sort_unstable();
        others.dedup();
        others
    }
}

/// Returns the layers of an image all of whose layers are in the store.
fn sources_of(
    manifest: &Manifest,
    config: &ImageConfiguration,
    limits: &Limits,
) -> Result<Vec<LayerSource>, ManifestError> {
    let sources = layers_of(manifest, config, limits)?;
    if sources.iter().any(|source| source.archive.is_some()) {
        return Err(ManifestError::NoArchives);
    }
    if sources.len() != manifest.layers.len() {
        return Err(ManifestError::LeftOut);
    }
    Ok(sources)
}

/// Stops the packing of layers when the push ends, also if it is cancelled.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Push {
    destination: Destination,
    /// Repositories to mount blobs from.
    others: Vec<String>,
    store: Store,
    compression: Compression,
    progress: Arc<dyn Progress>,
    stop: Arc<AtomicBool>,
}

impl Push {
    /// Says what will be sent.
    fn announce(&self, found: &Found) {
        self.progress.event(Event::Phase(Phase::Layers));
        let layers = found.unique_layers();
        let archives = layers.iter().map(|(layer, _)| progress::Layer {
            diff_id: layer.diff_id,
            blob: layer.uncompressed(),
        });
        let moved: Vec<_> = archives.chain(found.images.iter().cloned()).collect();
        self.progress.event(Event::Layers(&moved));
    }

    /// Brings every layer to the registry, a few at a time. Returns their blobs there, and how
    /// many of them were there already or mounted.
    async fn layers(
        self: &Arc<Self>,
        found: &Found,
        parallel: usize,
    ) -> Result<(Vec<Descriptor>, usize), PushError> {
        let slots = Arc::new(Semaphore::new(parallel));
        let mut tasks = JoinSet::new();
        for (layer, source) in found.unique_layers() {
            let (layer, source) = (layer.clone(), source.clone());
            let (push, slots) = (Arc::clone(self), Arc::clone(&slots));
            tasks.spawn(async move {
                // The semaphore is never closed.
                let _slot = slots.acquire_owned().await;
                let pushed = push.layer(&layer, &source).await?;
                Ok::<_, PushError>((layer.diff_id, pushed))
            });
        }
        let mut pushed = HashMap::new();
        // The first error drops the other tasks.
        while let Some(ended) = tasks.join_next().await {
            let (diff_id, blob) = joined(ended)?;
            pushed.insert(diff_id, blob);
        }
        let layers = found.image.layers.iter();
        let all: Vec<_> = layers
            .filter_map(|layer| pushed.get(&layer.diff_id).cloned())
            .collect();
        let present = all.iter().filter(|(_, present)| *present).count();
        Ok((all.into_iter().map(|(blob, _)| blob).collect(), present))
    }

    /// Brings one layer to the registry. Returns its blob there, and whether the blob was there
    /// already or mounted.
    async fn layer(
        &self,
        layer: &Layer,
        source: &LayerSource,
    ) -> Result<(Descriptor, bool), PushError> {
        let mut address = None;
        // Only a blob that this store has unpacked is known to be this layer.
        let original = &source.blob;
        let (store, blob) = (self.store.clone(), original.digest);
        let known = blocking(move || store.diff_id_of_blob(&blob)).await?;
        if known == Some(layer.diff_id) {
            if self.destination.has(original).await? {
                self.event(&layer.diff_id, LayerState::Present);
                return Ok((original.clone(), true));
            }
            for other in &self.others {
                match self.destination.mount(&original.digest, other).await {
                    Mounted::Yes => {
                        self.event(&layer.diff_id, LayerState::Present);
                        return Ok((original.clone(), true));
                    }
                    Mounted::No(url) => address = url.or(address),
                }
            }
            if let Some(kept) = self.kept(original).await? {
                return self.send(kept, &layer.diff_id, address).await;
            }
        }
        let packed = self.pack(layer).await?;
        self.send(packed, &layer.diff_id, address).await
    }

    /// Sends a blob, unless the registry has it. `id` names it in events. Returns it, and whether it was there.
    async fn send(
        &self,
        packed: Packed,
        id: &Digest,
        address: Option<Url>,
    ) -> Result<(Descriptor, bool), PushError> {
        let Packed { file, blob } = packed;
        if self.destination.has(&blob).await? {
            self.event(id, LayerState::Present);
            return Ok((blob, true));
        }
        self.destination
            .upload(&blob, &Arc::new(file), Some(id), address)
            .await?;
        self.event(id, LayerState::Done);
        Ok((blob, false))
    }

    /// Returns a blob that the store has kept as it came.
    async fn kept(&self, blob: &Descriptor) -> Result<Option<Packed>, PushError> {
        let (store, blob) = (self.store.clone(), blob.clone());
        let kept = move || -> Result<_, store::Error> {
            let kept = store.kept_blob(&blob.digest)?;
            let Some(kept) = kept.filter(|kept| kept.size() == blob.size) else {
                return Ok(None);
            };
            match kept.check() {
                Ok(file) => Ok(Some(Packed { file, blob })),
                // The layer is packed anew.
                Err(store::Error::Damaged { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        };
        Ok(blocking(kept).await?)
    }

    /// Packs a layer's blob into an unnamed file.
    async fn pack(&self, layer: &Layer) -> Result<Packed, PushError> {
        let (store, layer, compression) = (self.store.clone(), layer.clone(), self.compression);
        let id = layer.diff_id;
        self.packing(id, move |watch| {
            pack_layer(&store, &layer, compression, watch)
        })
        .await
    }

    /// Runs `pack` on a thread, reports its progress as that of `id`, and stops it when the push ends.
    async fn packing<T: Send + 'static>(
        &self,
        id: Digest,
        pack: impl FnOnce(&mut dyn FnMut(u64) -> bool) -> Result<T, PackError> + Send + 'static,
    ) -> Result<T, PushError> {
        let progress = Arc::clone(&self.progress);
        let report = move |bytes| {
            let state = LayerState::Packed { bytes };
            progress.event(Event::Layer {
                diff_id: &id,
                state,
            });
        };
        self.packing_with(report, pack).await
    }

    /// Runs `pack` on a thread, calls `report` with the bytes that are packed, and stops it when the push ends.
    async fn packing_with<T: Send + 'static>(
        &self,
        report: impl Fn(u64) + Send + 'static,
        pack: impl FnOnce(&mut dyn FnMut(u64) -> bool) -> Result<T, PackError> + Send + 'static,
    ) -> Result<T, PushError> {
        let stop = Arc::clone(&self.stop);
        let packing = spawn_blocking(move || {
            pack(&mut |bytes| {
                report(bytes);
                !stop.load(Ordering::Relaxed)
            })
        });
        match joined(packing.await) {
            Ok(packed) => Ok(packed),
            Err(PackError::Store(error)) => Err(error.into()),
            // The push was cancelled: no task reads this result.
            Err(PackError::Stopped) => Err(PushError::Threads(io::ErrorKind::Interrupted.into())),
        }
    }

    async fn config(&self, bytes: &[u8]) -> Result<(), PushError> {
        let blob = config_descriptor(bytes);
        if self.destination.has(&blob).await? {
            return Ok(());
        }
        let (store, bytes) = (self.store.clone(), bytes.to_vec());
        let file = blocking(move || store.unnamed(&bytes)).await?;
        let file = Arc::new(file);
        Ok(self.destination.upload(&blob, &file, None, None).await?)
    }

    fn event(&self, diff_id: &Digest, state: LayerState<'_>) {
        self.progress.event(Event::Layer { diff_id, state });
    }
}
