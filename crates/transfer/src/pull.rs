//! Pulls an image: finds its manifest, streams the layers that the store lacks through the
//! conversion, and publishes the image.

mod error;
mod keep;
mod layer;
mod layers;
mod lazy;

pub use error::PullError;

use std::sync::Arc;

use micabox_oci::ImageConfiguration;
use tokio::sync::mpsc;

use micabox_image::manifest::{self, Document, LayerSource, ManifestError, Search};
use micabox_image::progress::{Event, Phase};
use micabox_image::store::{self, Image, Layer, Origin};
use micabox_image::{Digest, Platform, Progress, Reference, Store};
use micabox_registry::{Credentials, Fetched, RegistryError, Repository};

use self::keep::Trail;
use self::lazy::Lazily;
pub(crate) use crate::blocking::{blocking, joined};
use crate::lazy::complete;
use crate::lookaside::Beside;
use crate::order;
use crate::traced::Traced;
use crate::trust::Judged;
use crate::{Cancellation, PullPolicy, Settings, threads};

/// Options of a pull.
#[derive(Debug, Clone)]
pub struct PullOptions {
    /// When to contact the registry if the store already has the image.
    pub policy: PullPolicy,
    /// Which variant of a multi-platform image to pull; `None` means this machine's.
    pub platform: Option<Platform>,
    /// Registries, timeouts, limits.
    pub settings: Arc<Settings>,
    /// Registry credentials.
    pub credentials: Credentials,
    /// Whether an image whose manifest is named by its digest may be for any platform.
    pub any_platform: bool,
    /// Cancels the pull from elsewhere.
    pub cancellation: Cancellation,
    /// Whether a layer that its registry lacks may come from where the image's manifest says. Without it, the
    /// image's author chooses no host that this one connects to.
    pub layers_from_elsewhere: bool,
    /// Whether an image may be used before its layers are here: where its registry has it as EROFS images, only their
    /// metadata is fetched, and the rest when it is read. Without it, a pull also fetches the rest of such an image.
    pub lazy: bool,
}

impl PullOptions {
    /// Takes the options from the settings, with the credentials of this process's user.
    pub fn new(settings: Arc<Settings>) -> Self {
        Self {
            policy: settings.pull_policy,
            lazy: settings.lazy,
            platform: None,
            any_platform: false,
            settings,
            credentials: Credentials::from_environment(),
            cancellation: Cancellation::default(),
            layers_from_elsewhere: true,
        }
    }
}

/// Runs [`pull`] and blocks until it ends, for callers outside of any asynchronous runtime.
///
/// # Errors
///
/// [`PullError`]. Complete layers stay in the store.
pub fn pull_blocking(
    store: &Store,
    reference: &Reference,
    options: &PullOptions,
    progress: Arc<dyn Progress>,
) -> Result<Image, PullError> {
    let runtime = threads("mica-pull").map_err(PullError::Threads)?;
    let image = runtime.block_on(pull(store, reference, options, progress));
    // Without waiting for threads: one may be waiting for another process.
    runtime.shutdown_background();
    image
}

/// Makes sure that the store has the image, and returns it.
///
/// Layers that the store already has are not fetched. Dropping the future cancels the pull;
/// running conversions notice when they read the next byte.
///
/// # Errors
///
/// [`PullError`]. Complete layers stay in the store.
pub async fn pull(
    store: &Store,
    reference: &Reference,
    options: &PullOptions,
    progress: Arc<dyn Progress>,
) -> Result<Image, PullError> {
    let judged = Judged {
        name: reference.clone(),
        above: None,
    };
    pull_as(store, reference, judged, options, progress).await
}

/// Pulls as [`pull`] does, if the policy lets `judged` be used.
pub(crate) async fn pull_as(
    store: &Store,
    reference: &Reference,
    judged: Judged,
    options: &PullOptions,
    progress: Arc<dyn Progress>,
) -> Result<Image, PullError> {
    let platform = options.platform.clone().unwrap_or_else(Platform::host);
    let pull = Pull {
        store: store.clone(),
        reference: reference.clone(),
        judged,
        platform,
        options,
        progress: Arc::new(Traced {
            image: reference.to_string(),
            next: progress,
        }),
    };
    if options.policy != PullPolicy::Always
        && let Some(image) = pull.present().await?
    {
        // What its name means now is not asked for.
        if options.policy == PullPolicy::Never || !pull.is_incomplete(&image) {
            return Ok(image);
        }
        return pull.completed(image).await;
    }
    if options.policy == PullPolicy::Never {
        return Err(PullError::Never {
            reference: Box::new(pull.reference),
            platform: Box::new(pull.platform),
        });
    }
    let image = pull.unless_cancelled(pull.run()).await?;
    pull.completed(image).await
}

struct Pull<'a> {
    store: Store,
    reference: Reference,
    judged: Judged,
    platform: Platform,
    options: &'a PullOptions,
    progress: Arc<dyn Progress>,
}

/// Why a document is not the image that is pulled.
enum Unusable {
    /// The registry failed.
    Registry(RegistryError),
    /// It is no image that can be used.
    Manifest(ManifestError),
}

impl From<RegistryError> for Unusable {
    fn from(error: RegistryError) -> Self {
        Self::Registry(error)
    }
}

impl From<ManifestError> for Unusable {
    fn from(error: ManifestError) -> Self {
        Self::Manifest(error)
    }
}

/// Result of resolving a name.
enum Found {
    /// The manifest's digest of an image that the store already has.
    Stored(Digest),
    New(Box<NewImage>),
}

/// An image that the store lacks, with the registry's documents.
struct NewImage {
    manifest: Vec<u8>,
    config: Vec<u8>,
    layers: Vec<LayerSource>,
}

impl Pull<'_> {
    async fn unless_cancelled<T>(
        &self,
        work: impl Future<Output = Result<T, PullError>>,
    ) -> Result<T, PullError> {
        tokio::select! {
            biased;
            () = self.options.cancellation.cancelled() => Err(PullError::Cancelled {
                reference: Box::new(self.reference.clone()),
            }),
            done = work => done,
        }
    }

    /// Fetches the rest of an image's layers, unless it may be used before they are here.
    async fn completed(&self, image: Image) -> Result<Image, PullError> {
        if self.is_incomplete(&image) {
            let complete = complete(&image, self.options, &self.progress);
            self.unless_cancelled(complete).await?;
        }
        self.phase(Phase::Done);
        Ok(image)
    }

    /// Returns whether more of an image has to be here.
    fn is_incomplete(&self, image: &Image) -> bool {
        !self.options.lazy && image.is_lazy()
    }

    /// Returns the image, if the store has it under this name and for this platform.
    async fn present(&self) -> Result<Option<Image>, PullError> {
        let (store, name) = (self.store.clone(), self.reference.to_string());
        let found = blocking(move || store.image(&name)).await;
        Ok(match found {
            Ok(image) => self.suits(&image.config).then_some(image),
            // An image that lost a layer counts as missing: pulling it again repairs it.
            Err(store::Error::NoImage { .. } | store::Error::Unusable { .. }) => None,
            Err(error) => return Err(error.into()),
        })
    }

    fn suits(&self, config: &ImageConfiguration) -> bool {
        let offered = manifest::platform_of(config);
        self.platform.suits(&offered).is_some()
    }

    async fn run(&self) -> Result<Image, PullError> {
        self.phase(Phase::Resolving);
        // From here on `prune` removes nothing that this pull finds in the store.
        let store = self.store.clone();
        let _shared = blocking(move || {
            let shared = store.shared()?;
            store.drop_old_partials()?;
            Ok::<_, store::Error>(shared)
        })
        .await?;
        let repository = Arc::new(Repository::new(
            &self.reference,
            &Arc::new(self.options.settings.for_registries()),
            &self.options.credentials,
            &self.progress,
        )?);
        let policy = self.options.settings.policy()?;
        let mut trail = Trail::default();
        let (found, document) = self.find(&repository, &mut trail).await?;
        let mut origin = Origin::from(&document);
        if let Some(policy) = policy {
            let manifest = match &found {
                Found::New(image) => Digest::of(&image.manifest),
                Found::Stored(digest) => *digest,
            };
            let beside = Beside {
                settings: &self.options.settings,
                progress: &self.progress,
            };
            let signers = self
                .judged
                .signers(&policy, &repository, beside, [manifest, document]);
            origin.signers = signers.await?;
        }
        if self.keeps() {
            origin.indexes = self.keep_indexes(trail).await?;
        }
        let found = match found {
            Found::New(image) => image,
            Found::Stored(digest) => return self.tagged(digest, origin).await,
        };

        self.phase(Phase::Layers);
        let (mut layers, mut order, mut early) = (found.layers, None, None);
        if self.options.lazy {
            let manifest = Digest::of(&found.manifest);
            let lazily = self.lazily(&repository);
            let fetched = order::fetch(&repository, &self.reference, &manifest);
            let (indexed, images) = mpsc::unbounded_channel();
            let ahead = Lazily::ahead(fetched, images);
            let (begun, ahead) = tokio::join!(lazily.begin(layers, indexed), ahead);
            layers = begun?;
            (order, early) = ahead.unzip();
        }
        self.fetch(repository, &found.manifest, layers).await?;

        self.phase(Phase::Publishing);
        let (store, names) = (self.store.clone(), [self.reference.clone()]);
        let (manifest, config) = (found.manifest, found.config);
        let publish = move || -> Result<_, store::Error> {
            let image = store.publish_resolved(&manifest, &config, &names, &origin)?;
            if let Some(order) = order {
                // Without it, a start is slower.
                let _ = store.keep_start_order(&image.manifest_digest, &order);
            }
            Ok(image)
        };
        let image = blocking(publish).await?;
        if let Some(early) = early {
            early.end().await;
        }
        Ok(image)
    }

    fn lazily(&self, repository: &Arc<Repository>) -> Lazily {
        let settings = &self.options.settings;
        Lazily {
            store: self.store.clone(),
            repository: Arc::clone(repository),
            reference: self.reference.clone(),
            limits: Arc::new(settings.limits.shared_by(lazy::AT_ONCE)),
            place: settings.conversion,
            progress: Arc::clone(&self.progress),
        }
    }

    /// Returns the platform, and whether images of EROFS layers go before those of archives: where they can be used
    /// before they are here, and, unless a platform was asked for, where the settings prefer them or the name's image is
    /// one already.
    async fn wanted(&self) -> Platform {
        let (store, name) = (self.store.clone(), self.reference.to_string());
        let is_converted = |layer: &Layer| layer.record.archive.is_some();
        let has_it = move || {
            let image = store.image(&name);
            image.is_ok_and(|image| image.layers.iter().any(is_converted))
        };
        let wanted = self.platform.clone();
        let is_preferred = match &self.options.platform {
            _ if self.options.lazy => true,
            Some(_) => false,
            None => self.options.settings.prefer_erofs || blocking(has_it).await,
        };
        if is_preferred {
            return wanted.and_feature(manifest::erofs::FEATURE);
        }
        wanted
    }

    /// Gives an image in the store the requested name.
    async fn tagged(&self, digest: Digest, origin: Origin) -> Result<Image, PullError> {
        let (store, reference) = (self.store.clone(), self.reference.clone());
        let image = blocking(move || {
            store.tag_resolved(&reference, &digest, &origin)?;
            store.image(&reference.to_string())
        })
        .await?;
        Ok(image)
    }

    /// Returns the config of an image that the store has.
    async fn stored(&self, digest: Digest) -> Option<ImageConfiguration> {
        let store = self.store.clone();
        let image = blocking(move || store.image_by_digest(&digest));
        // Any failure here is repaired by fetching the image anew.
        image.await.ok().map(|image| image.config)
    }

    /// Follows indexes to an image for the platform. Also returns the digest of the document that
    /// has the name. `trail` gets the indexes that led to it.
    async fn find(
        &self,
        repository: &Repository,
        trail: &mut Trail,
    ) -> Result<(Found, Digest), PullError> {
        let unusable = |source| self.unusable(source);
        let mut search = Search::new(self.wanted().await);
        let mut fetched = repository.named(&self.reference).await?;
        let resolved = fetched.digest;
        if let Some(digest) = self.whole(&fetched).await? {
            return Ok((Found::Stored(digest), resolved));
        }
        loop {
            match self.read(repository, &mut search, trail, fetched).await {
                Ok(Some(found)) => return Ok((found, resolved)),
                Ok(None) => {}
                Err(Unusable::Registry(error)) => return Err(error.into()),
                Err(Unusable::Manifest(error @ ManifestError::TooDeep)) => {
                    return Err(unusable(error));
                }
                // Another one of the index may do.
                Err(Unusable::Manifest(error)) => search.pass_over(error),
            }
            let next = loop {
                let next = search.next_document().map_err(unusable)?;
                match manifest::digest_of(&next, "index", "manifest") {
                    Ok(digest) => break (digest, next.size),
                    Err(error) => search.pass_over(error),
                }
            };
            fetched = repository.manifest(&next.0, next.1).await?;
        }
    }

    /// Returns the image that has the name already, if all of it is here and a document still means it: where it would be
    /// pulled to be used before it is here, its other form is of no use.
    async fn whole(&self, fetched: &Fetched) -> Result<Option<Digest>, PullError> {
        if !self.options.lazy {
            return Ok(None);
        }
        let Some(image) = self.present().await?.filter(|image| !image.is_lazy()) else {
            return Ok(None);
        };
        let digest = image.manifest_digest;
        let listed = match Document::parse(&fetched.bytes, fetched.media_type.as_deref()) {
            Ok(Document::Index(index)) => {
                let mut entries = index.entries.iter();
                entries.any(|entry| {
                    let listed = manifest::digest_of(entry, "index", "manifest");
                    listed.is_ok_and(|listed| listed == digest)
                })
            }
            _ => fetched.digest == digest,
        };
        Ok(listed.then_some(digest))
    }

    /// Reads one document of the search; `None` if it isn't the image.
    async fn read(
        &self,
        repository: &Repository,
        search: &mut Search,
        trail: &mut Trail,
        fetched: Fetched,
    ) -> Result<Option<Found>, Unusable> {
        let manifest = match Document::parse(&fetched.bytes, fetched.media_type.as_deref())? {
            Document::Index(index) => {
                trail.add(search.depth(), fetched.bytes);
                return Ok(search.index(&index).map(|()| None)?);
            }
            Document::Manifest(manifest) => manifest,
        };
        trail.end(search.depth());
        let is_any = self.options.any_platform && self.reference.digest() == Some(&fetched.digest);
        if let Some(config) = self.stored(fetched.digest).await
            && (search.image(&config) || is_any)
            && self.has_all_to_keep(&manifest).await
        {
            return Ok(Some(Found::Stored(fetched.digest)));
        }
        let descriptor = manifest::config_of(&manifest)?;
        let digest = manifest::digest_of(descriptor, "manifest", "config")?;
        let bytes = repository
            .blob("the config", &digest, descriptor.size)
            .await?;
        let config = manifest::parse_config(&bytes)?;
        if !search.image(&config) && !is_any {
            return Ok(None);
        }
        let limits = &self.options.settings.limits;
        Ok(Some(Found::New(Box::new(NewImage {
            layers: manifest::layers_of(&manifest, &config, limits)?,
            manifest: fetched.bytes,
            config: bytes,
        }))))
    }

    fn unusable(&self, source: ManifestError) -> PullError {
        PullError::Manifest {
            reference: Box::new(self.reference.clone()),
            source: Box::new(source),
        }
    }

    fn phase(&self, phase: Phase) {
        self.progress.event(Event::Phase(phase));
    }
}
