//! Begins layers that are used before all of their blobs are here: fetches each one's chunk index and metadata.

use std::collections::HashSet;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use micabox_chunk::{ChunkError, FRAME_HEADER, Index, IndexError, MOST_INDEX};
use micabox_image::convert::{self, Place, metadata_chunks};
use micabox_image::manifest::LayerSource;
use micabox_image::progress::{Event, LayerState};
use micabox_image::store::{LazyClaim, LazyLayer};
use micabox_image::{Digest, Limit, Limits, Progress, Reference, Store};
use micabox_lazy::Blob;
use micabox_registry::{Reason, RegistryError, Repository};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::{PullError, blocking, joined};

/// Layers that are begun at the same time: most of it is waiting for answers.
pub(super) const AT_ONCE: usize = 4;

/// Bytes that are asked for at once. All of them are in memory before they are checked.
const PART: u64 = 4 << 20;

/// What the layers of an image have in common.
#[derive(Clone)]
pub(super) struct Lazily {
    pub store: Store,
    pub repository: Arc<Repository>,
    pub reference: Reference,
    pub limits: Arc<Limits>,
    pub place: Place,
    pub progress: Arc<dyn Progress>,
}

/// Why a layer is not begun.
enum Failed {
    /// It is fetched whole, for this reason. None if that is nothing to tell, as the store has it.
    Whole(Option<String>),
    Pull(PullError),
}

impl Failed {
    fn whole(reason: impl Into<String>) -> Self {
        Self::Whole(Some(reason.into()))
    }
}

impl From<PullError> for Failed {
    fn from(error: PullError) -> Self {
        Self::Pull(error)
    }
}

impl From<RegistryError> for Failed {
    fn from(error: RegistryError) -> Self {
        match *error.reason {
            Reason::NoRanges => Self::whole(format!("of {}, {}", error.host, error.reason)),
            _ => Self::Pull(error.into()),
        }
    }
}

impl Lazily {
    /// Begins an image's layers. Returns those that have to be fetched whole.
    pub(super) async fn begin(
        &self,
        layers: Vec<LayerSource>,
    ) -> Result<Vec<LayerSource>, PullError> {
        let slots = Arc::new(Semaphore::new(AT_ONCE));
        let mut tasks = JoinSet::new();
        let mut seen = HashSet::new();
        for layer in layers {
            if !seen.insert(layer.diff_id) {
                continue;
            }
            let (this, slots) = (self.clone(), Arc::clone(&slots));
            tasks.spawn(async move {
                // The semaphore is never closed.
                let _slot = slots.acquire_owned().await;
                let begun = this.layer(&layer).await;
                (layer, begun)
            });
        }
        let mut whole = Vec::new();
        let mut reasons = Vec::new();
        let mut outcome = Ok(());
        // The others end soon, and clean up in the store.
        while let Some(ended) = tasks.join_next().await {
            match joined(ended) {
                (_, Ok(())) => {}
                (layer, Err(Failed::Whole(reason))) => {
                    whole.push(layer);
                    reasons.extend(reason);
                }
                (_, Err(Failed::Pull(error))) => outcome = outcome.and(Err(error)),
            }
        }
        outcome?;
        if let Some(reason) = reasons.first() {
            let text = format!(
                "layers of {} are fetched whole before it starts: {reason}",
                self.reference
            );
            self.progress.event(Event::Notice(&text));
        }
        Ok(whole)
    }

    async fn layer(&self, layer: &LayerSource) -> Result<(), Failed> {
        let (store, source) = (self.store.clone(), layer.clone());
        let from = self.reference.clone();
        let claim = blocking(move || store.claim_lazy(&source, &from)).await;
        let claim = match claim.map_err(PullError::from)? {
            LazyClaim::Missing(claim) => claim,
            LazyClaim::Present => {
                self.event(&layer.diff_id, LayerState::Present);
                return Ok(());
            }
            LazyClaim::Whole => {
                let (store, diff_id) = (self.store.clone(), layer.diff_id);
                let known = blocking(move || store.layer(&diff_id)).await;
                let known = known.map_err(PullError::from)?;
                let reason = match known {
                    Some(known) if self.store.is_lazy(&known) => {
                        Some("the store has a part of one of them, from elsewhere".to_owned())
                    }
                    Some(_) => None,
                    None => Some(
                        "its registry has it not as `mica push --erofs` of this version sends it"
                            .to_owned(),
                    ),
                };
                return Err(Failed::Whole(reason));
            }
        };
        self.fetch(layer, &claim).await?;
        let this = self.clone();
        let published =
            blocking(move || claim.publish(&this.reference, &this.limits, this.place)).await;
        published.map_err(|error| self.unusable(error))?;
        self.event(&layer.diff_id, LayerState::Done);
        Ok(())
    }

    /// Fetches what is needed of a layer into the blob's file, which is checked.
    async fn fetch(&self, layer: &LayerSource, claim: &LazyLayer) -> Result<(), Failed> {
        let Some(parts) = &layer.parts else {
            return Ok(());
        };
        if parts.index.end - parts.index.start > MOST_INDEX {
            return Err(Failed::whole("a chunk index is too long"));
        }
        let metadata = parts.length - parts.metadata;
        for (setting, limit, size) in [
            (Limit::MetadataSize, self.limits.metadata_size, metadata),
            (Limit::LayerSize, self.limits.layer_size, parts.length),
        ] {
            if size > limit {
                let entry = None;
                return Err(self
                    .reason(
                        layer,
                        convert::Reason::Limit {
                            setting,
                            limit,
                            entry,
                        },
                    )
                    .into());
            }
        }
        let end = parts.index.start - FRAME_HEADER;
        // With the header of its frame: the blob is to become whole.
        let frame = self.part(layer, end..parts.index.end).await?;
        let bytes = frame.get(FRAME_HEADER as usize..).unwrap_or_default();
        let digest = Digest::of(bytes);
        if digest != parts.index_digest {
            let problem = format!(
                "its chunk index has the digest {digest}, and its manifest says {}",
                parts.index_digest
            );
            return Err(self.lies(layer, problem).into());
        }
        let index = match Index::parse(bytes, end) {
            Ok(index) => index,
            Err(error @ IndexError::Unknown(_)) => return Err(Failed::whole(error.to_string())),
            Err(error) => return Err(self.lies(layer, error.to_string()).into()),
        };
        let written = claim.blob().write_all_at(&frame, end);
        written.map_err(|error| self.unwritten(layer, error))?;
        let numbers = metadata_chunks(&index, parts.metadata, parts.length);
        let file = claim.blob().try_clone();
        let file = file.map_err(|error| self.unwritten(layer, error))?;
        let blob = Blob::new(file, index).map_err(|error| Failed::whole(error.to_string()))?;
        let spans = numbers
            .iter()
            .filter_map(|number| blob.index().range(*number));
        let packed: u64 = spans.map(|span| span.end - span.start).sum();
        // What can't be compressed takes a little more than it is.
        if packed > metadata.saturating_mul(2).saturating_add(PART) {
            let problem = "the chunks of its metadata are longer than it is".to_owned();
            return Err(self.lies(layer, problem).into());
        }
        for run in runs(&blob, &numbers) {
            let span = blob.span(&run);
            let span = span.map_err(|error| self.lies(layer, error.to_string()))?;
            let bytes = self.part(layer, span).await?;
            match blob.verify(&run, &bytes) {
                Ok(count) if count == run.len() => {}
                Ok(count) => {
                    let error = ChunkError::Checksum(run.start + count);
                    return Err(self.lies(layer, error.to_string()).into());
                }
                Err(error) => return Err(self.lies(layer, error.to_string()).into()),
            }
            let kept = blob.keep(run, &bytes);
            kept.map_err(|error| self.unwritten(layer, error))?;
        }
        Ok(())
    }

    async fn part(&self, layer: &LayerSource, range: Range<u64>) -> Result<Vec<u8>, RegistryError> {
        let (diff_id, blob) = (&layer.diff_id, &layer.blob);
        self.repository.part(diff_id, blob, range).await
    }

    fn lies(&self, layer: &LayerSource, problem: String) -> PullError {
        self.reason(layer, convert::Reason::ForeignErofs(problem))
    }

    fn unwritten(&self, layer: &LayerSource, error: io::Error) -> PullError {
        self.reason(layer, convert::Reason::Write(error))
    }

    fn reason(&self, layer: &LayerSource, reason: convert::Reason) -> PullError {
        self.unusable(convert::Error {
            layer: layer.blob.digest,
            reason,
        })
    }

    fn unusable(&self, source: convert::Error) -> PullError {
        PullError::Layer {
            reference: Box::new(self.reference.clone()),
            from: None,
            source: Box::new(source),
        }
    }

    fn event(&self, diff_id: &Digest, state: LayerState<'_>) {
        self.progress.event(Event::Layer { diff_id, state });
    }
}

/// Returns these chunks, in ascending order, as runs of at most so many bytes as are asked for at once.
fn runs(blob: &Blob, numbers: &[usize]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for &number in numbers {
        let fits = |run: &Range<usize>| {
            let span = blob.span(&(run.start..number + 1));
            run.end == number && span.is_ok_and(|span| span.end - span.start <= PART)
        };
        match runs.last_mut() {
            Some(run) if fits(run) => run.end = number + 1,
            _ => runs.push(number..number + 1),
        }
    }
    runs
}
