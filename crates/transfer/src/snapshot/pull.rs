//! Pulls a snapshot: its manifest and config first, from which the caller decides whether it can be used here, and then
//! its files.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use micabox_image::manifest::{Document, ManifestError};
use micabox_image::progress::{Event, Phase};
use micabox_image::{Digest, Progress, Reference, Store};
use micabox_lazy::Order;
use micabox_oci::MAX_DOCUMENT;
use micabox_registry::Repository;
use tokio::runtime::Runtime;

use super::fetch::Fetch;
use super::local::CutFile;
use super::packs::Packs;
use super::{ARTIFACT, Artifact, Part, SparseFile, Wrong};
use crate::lookaside::Beside;
use crate::order;
use crate::trust::Judged;
use crate::{PullError, PullOptions, threads};

/// A snapshot in a registry, of which nothing is here but what it is.
pub struct Offer {
    runtime: Runtime,
    reference: Reference,
    digest: Digest,
    signers: Vec<String>,
    manifest: Vec<u8>,
    config: Vec<u8>,
    artifact: Artifact,
    repository: Arc<Repository>,
    options: PullOptions,
    progress: Arc<dyn Progress>,
}

/// A file that a part of a snapshot is written to.
#[derive(Debug)]
pub struct Target {
    /// The file, open for reading and writing, which is empty or has what a fetch left that was killed: that is used if the
    /// map beside it is the same.
    pub file: SparseFile,
    /// How many bytes it is to have, holes included.
    pub size: u64,
    /// The path at which its map is kept.
    pub map: PathBuf,
    /// Whether nothing but its map is fetched: [`open_part`](super::open_part) fetches the rest.
    pub is_lazy: bool,
}

impl fmt::Debug for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Offer")
            .field("reference", &self.reference)
            .field("digest", &self.digest)
            .finish_non_exhaustive()
    }
}

/// Fetches a snapshot's manifest and config, and blocks until they are here.
///
/// # Errors
///
/// [`PullError::Manifest`] if it is no snapshot; [`PullError::Snapshot`] if a field of it lies; [`PullError::Refused`] if
/// the policy does not let it be used.
pub fn offer_blocking(
    reference: &Reference,
    options: &PullOptions,
    progress: Arc<dyn Progress>,
) -> Result<Offer, PullError> {
    let runtime = threads("mica-pull").map_err(PullError::Threads)?;
    let found = runtime.block_on(async {
        let cancelled = options.cancellation.cancelled();
        tokio::select! {
            biased;
            () = cancelled => Err(is_cancelled(reference)),
            found = find(reference, options, &progress) => found,
        }
    });
    let Found {
        repository,
        digest,
        signers,
        manifest,
        artifact,
        config,
    } = found?;
    Ok(Offer {
        runtime,
        reference: reference.clone(),
        digest,
        signers,
        manifest,
        config,
        artifact,
        repository,
        options: options.clone(),
        progress,
    })
}

fn is_cancelled(reference: &Reference) -> PullError {
    PullError::Cancelled {
        reference: Box::new(reference.clone()),
    }
}

/// What a registry says of a snapshot.
struct Found {
    repository: Arc<Repository>,
    /// Digest of its manifest.
    digest: Digest,
    /// Who signed that, as far as the policy asks.
    signers: Vec<String>,
    manifest: Vec<u8>,
    artifact: Artifact,
    config: Vec<u8>,
}

async fn find(
    reference: &Reference,
    options: &PullOptions,
    progress: &Arc<dyn Progress>,
) -> Result<Found, PullError> {
    progress.event(Event::Phase(Phase::Resolving));
    let unusable = |source| PullError::Manifest {
        reference: Box::new(reference.clone()),
        source: Box::new(source),
    };
    let policy = options.settings.policy()?;
    let settings = Arc::new(options.settings.for_registries());
    let repository = Repository::new(reference, &settings, &options.credentials, progress)?;
    let fetched = repository.named(reference).await?;
    let document = Document::parse(&fetched.bytes, fetched.media_type.as_deref());
    let manifest = match document.map_err(unusable)? {
        Document::Manifest(manifest) if manifest.artifact_type == ARTIFACT => manifest,
        _ => return Err(unusable(ManifestError::NoSnapshot)),
    };
    let mut signers = Vec::new();
    if let Some(policy) = policy {
        let judged = Judged {
            name: reference.clone(),
            above: None,
        };
        let manifests = [fetched.digest; 2];
        let beside = Beside {
            settings: &options.settings,
            progress,
        };
        let found = judged.signers(&policy, &repository, beside, manifests);
        signers = found.await?;
    }
    let wrong = |problem| wrong(reference, problem);
    let artifact = Artifact::read(&manifest).map_err(|Wrong(problem)| wrong(problem))?;
    if artifact.config.size > MAX_DOCUMENT {
        return Err(wrong("its config is too long".to_owned()));
    }
    let (digest, size) = (&artifact.config.digest, Some(artifact.config.size));
    let config = repository.blob("the config", digest, size).await?;
    Ok(Found {
        repository: Arc::new(repository),
        digest: fetched.digest,
        signers,
        manifest: fetched.bytes,
        artifact,
        config,
    })
}

pub(super) fn wrong(reference: &Reference, problem: String) -> PullError {
    PullError::Snapshot {
        reference: Box::new(reference.clone()),
        problem,
    }
}

impl Offer {
    /// Returns its name.
    pub fn reference(&self) -> &Reference {
        &self.reference
    }

    /// Returns the digest of its manifest.
    pub fn digest(&self) -> &Digest {
        &self.digest
    }

    /// Returns who signed it, as far as the policy asks.
    pub fn signers(&self) -> &[String] {
        &self.signers
    }

    /// Returns its manifest.
    pub fn manifest(&self) -> &[u8] {
        &self.manifest
    }

    /// Returns its config, which has the digest that the manifest says, and otherwise anything.
    pub fn config(&self) -> &[u8] {
        &self.config
    }

    /// Fetches the order in which a start has read its memory; none if its registry has none that can be used.
    pub fn order(&self) -> Option<Order> {
        let found = order::fetch(&self.repository, &self.reference, &self.digest);
        self.run(async { Ok(found.await) }).ok().flatten()
    }

    /// Returns the parts that it has.
    pub fn parts(&self) -> Vec<Part> {
        self.artifact.maps.iter().map(|(part, _)| *part).collect()
    }

    /// Fetches the state of its machine; none if it has none. Its digest is the manifest's.
    ///
    /// # Errors
    ///
    /// [`PullError`].
    pub fn machine(&self) -> Result<Option<Vec<u8>>, PullError> {
        let Some(machine) = &self.artifact.machine else {
            return Ok(None);
        };
        let size = Some(machine.size);
        let what = "the machine's state";
        let fetched = self.repository.blob(what, &machine.digest, size);
        Ok(Some(self.run(async { Ok(fetched.await?) })?))
    }

    /// Fetches parts, each byte of which is checked: a chunk's frame has the checksum of its pack's index, the index the
    /// digest of the manifest, and the chunk that of its map. A chunk that one of `here` has is copied. Of a lazy target
    /// only the map comes, and its file becomes one hole.
    ///
    /// # Errors
    ///
    /// [`PullError`]. What was written is of no use.
    pub fn fetch(
        &self,
        store: &Store,
        targets: Vec<Target>,
        here: Vec<CutFile>,
    ) -> Result<(), PullError> {
        self.progress.event(Event::Phase(Phase::Layers));
        let fetch = Fetch {
            reference: &self.reference,
            packs: Arc::new(Packs::new(
                Arc::clone(&self.repository),
                store,
                self.artifact.packs.clone(),
            )),
            maps: &self.artifact.maps,
            most: self.options.settings.limits.layer_size,
            progress: &self.progress,
        };
        self.run(fetch.run(targets, here))?;
        self.progress.event(Event::Phase(Phase::Done));
        Ok(())
    }

    fn run<T>(&self, work: impl Future<Output = Result<T, PullError>>) -> Result<T, PullError> {
        self.runtime.block_on(async {
            tokio::select! {
                biased;
                () = self.options.cancellation.cancelled() => Err(is_cancelled(&self.reference)),
                done = work => done,
            }
        })
    }
}

/// Returns the error of a file that can't be written.
pub(super) fn unwritten(path: &Path, source: std::io::Error) -> PullError {
    PullError::Written {
        path: path.to_owned(),
        source,
    }
}
