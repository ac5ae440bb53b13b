//! Begins layers that are used before all of their blobs are here: fetches each one's chunk index and metadata, and then
//! what an earlier start has read, as far as there is time for it.

use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use micabox_chunk::{ChunkError, FRAME_HEADER, Index, IndexError, MOST_INDEX};
use micabox_image::convert::{self, Place, metadata_chunks};
use micabox_image::manifest::LayerSource;
use micabox_image::progress::{Event, LayerState};
use micabox_image::store::{LazyClaim, LazyLayer};
use micabox_image::{Digest, Limit, Limits, Progress, Reference, Store};
use micabox_lazy::{Ahead, Blob, Image, Inflaters, Order};
use micabox_registry::{Reason, RegistryError, Repository};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::task::JoinSet;

use super::{PullError, blocking, joined};
use crate::lazy::{BlobParts, Stop};

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

/// Layers whose chunk indexes are here, with their numbers. The channel ends when there will be no more.
pub(super) type Indexed = UnboundedSender<(usize, Arc<Image>)>;

/// What an earlier start has read, which is fetched until this is dropped.
pub(super) struct Early {
    ahead: Ahead,
    stop: Stop,
}

impl Early {
    /// Ends it, and waits for what is under way: who reads the image next would ask for it once more.
    pub(super) async fn end(self) {
        let Self { ahead, stop } = self;
        drop(stop);
        blocking(move || ahead.wait()).await;
    }
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
            Reason::NoRanges => Self::whole(format!("{}: {}", error.host, error.reason)),
            _ => Self::Pull(error.into()),
        }
    }
}

impl Lazily {
    /// Begins an image's layers, of which `indexed` gets to know. Returns those that have to be fetched whole.
    pub(super) async fn begin(
        &self,
        layers: Vec<LayerSource>,
        indexed: Indexed,
    ) -> Result<Vec<LayerSource>, PullError> {
        let slots = Arc::new(Semaphore::new(AT_ONCE));
        let mut tasks = JoinSet::new();
        let mut seen = HashSet::new();
        for (number, layer) in layers.into_iter().enumerate() {
            if !seen.insert(layer.diff_id) {
                continue;
            }
            let (this, slots, indexed) = (self.clone(), Arc::clone(&slots), indexed.clone());
            tasks.spawn(async move {
                // The semaphore is never closed.
                let _slot = slots.acquire_owned().await;
                let begun = this.layer(number, &layer, indexed).await;
                (layer, begun)
            });
        }
        drop(indexed);
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

    /// Waits for the order of an earlier start, and for the indexes of all layers, and begins to fetch in that order.
    pub(super) async fn ahead(
        order: impl Future<Output = Option<Order>>,
        mut indexed: UnboundedReceiver<(usize, Arc<Image>)>,
    ) -> Option<(Order, Early)> {
        let order = order.await?;
        let mut layers = HashMap::new();
        while let Some((number, layer)) = indexed.recv().await {
            layers.insert(number, layer);
        }
        let stop = Stop::default();
        let stopped = stop.flag();
        let ahead = Ahead::begin(&order, move |number, chunks| {
            let layer = layers.get(&number);
            !stopped.load(Ordering::Relaxed)
                && layer.is_none_or(|layer| layer.prefetch(chunks).is_ok())
        });
        Some((order, Early { ahead, stop }))
    }

    async fn layer(
        &self,
        number: usize,
        layer: &LayerSource,
        indexed: Indexed,
    ) -> Result<(), Failed> {
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
        if let Some(image) = self.index(layer, &claim).await? {
            let image = Arc::new(image);
            // Without a receiver there is no order.
            let _ = indexed.send((number, Arc::clone(&image)));
            drop(indexed);
            self.metadata(layer, image.blob()).await?;
        }
        let this = self.clone();
        let published =
            blocking(move || claim.publish(&this.reference, &this.limits, this.place)).await;
        published.map_err(|error| self.unusable(None, error))?;
        self.event(&layer.diff_id, LayerState::Done);
        Ok(())
    }

    /// Fetches a layer's chunk index into the blob's file; none of a layer that has none.
    async fn index(&self, layer: &LayerSource, claim: &LazyLayer) -> Result<Option<Image>, Failed> {
        let Some(parts) = &layer.parts else {
            return Ok(None);
        };
        if parts.index.end - parts.index.start > MOST_INDEX {
            return Err(Failed::whole("a chunk index is too long"));
        }
        for (setting, limit, size) in [
            (
                Limit::MetadataSize,
                self.limits.metadata_size,
                parts.length - parts.metadata,
            ),
            (Limit::LayerSize, self.limits.layer_size, parts.length),
        ] {
            if size > limit {
                let entry = None;
                return Err(self
                    .reason(
                        layer,
                        None,
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
        let (frame, from) = self.part(layer, end..parts.index.end).await?;
        let bytes = frame.get(FRAME_HEADER as usize..).unwrap_or_default();
        let digest = Digest::of(bytes);
        if digest != parts.index_digest {
            let problem = format!(
                "its chunk index has the digest {digest}, and its manifest says {}",
                parts.index_digest
            );
            return Err(self.lies(layer, Some(from), problem).into());
        }
        let index = match Index::parse(bytes, end) {
            Ok(index) => index,
            Err(error @ IndexError::Unknown(_)) => return Err(Failed::whole(error.to_string())),
            Err(error) => return Err(self.lies(layer, None, error.to_string()).into()),
        };
        let written = claim.blob().write_all_at(&frame, end);
        written.map_err(|error| self.unwritten(layer, error))?;
        let file = claim.blob().try_clone();
        let file = file.map_err(|error| self.unwritten(layer, error))?;
        let blob = Blob::new(file, index).map_err(|error| Failed::whole(error.to_string()))?;
        let source = BlobParts {
            runtime: Handle::current(),
            threads: None,
            repository: Arc::clone(&self.repository),
            diff_id: layer.diff_id,
            blob: layer.blob.clone(),
        };
        // Nothing is inflated here.
        let inflaters = Arc::<Inflaters>::default();
        Ok(Some(Image::new(
            blob,
            parts.length,
            Box::new(source),
            &inflaters,
        )))
    }

    /// Fetches the chunks of a layer's metadata into the blob's file, and checks them.
    async fn metadata(&self, layer: &LayerSource, blob: &Blob) -> Result<(), Failed> {
        let Some(parts) = &layer.parts else {
            return Ok(());
        };
        let numbers = metadata_chunks(blob.index(), parts.metadata, parts.length);
        let spans = numbers
            .iter()
            .filter_map(|number| blob.index().range(*number));
        let packed: u64 = spans.map(|span| span.end - span.start).sum();
        // What can't be compressed takes a little more than it is.
        let most = (parts.length - parts.metadata).saturating_mul(2);
        if packed > most.saturating_add(PART) {
            let problem = "the chunks of its metadata are longer than it is".to_owned();
            return Err(self.lies(layer, None, problem).into());
        }
        let mut runs = runs(blob, &numbers).into_iter();
        // The first block and the rest are far from each other: neither waits for the other's answer.
        let first = runs.next().map(|run| self.chunks(layer, blob, run));
        let rest = async {
            for run in runs {
                self.chunks(layer, blob, run).await?;
            }
            Ok::<_, Failed>(())
        };
        match first {
            Some(first) => tokio::try_join!(first, rest).map(|_| ()),
            None => Ok(()),
        }
    }

    /// Fetches chunks that follow each other into the blob's file, and checks them.
    async fn chunks(
        &self,
        layer: &LayerSource,
        blob: &Blob,
        run: Range<usize>,
    ) -> Result<(), Failed> {
        let span = blob.span(&run);
        let span = span.map_err(|error| self.lies(layer, None, error.to_string()))?;
        let (bytes, from) = self.part(layer, span).await?;
        let lies =
            |error: &dyn std::fmt::Display| self.lies(layer, Some(from.clone()), error.to_string());
        match blob.verify(&run, &bytes) {
            Ok(count) if count == run.len() => {}
            Ok(count) => return Err(lies(&ChunkError::Checksum(run.start + count)).into()),
            Err(error) => return Err(lies(&error).into()),
        }
        let kept = blob.keep(run, &bytes);
        Ok(kept.map_err(|error| self.unwritten(layer, error))?)
    }

    /// Fetches bytes of a layer's blob. Returns the host as well that has sent them.
    async fn part(
        &self,
        layer: &LayerSource,
        range: Range<u64>,
    ) -> Result<(Vec<u8>, String), RegistryError> {
        let (diff_id, blob) = (&layer.diff_id, &layer.blob);
        let part = self.repository.part(diff_id, blob, range).await;
        part.map(|(bytes, host)| (bytes, host.to_owned()))
    }

    /// Returns the error of a layer that is not what its manifest says, as far as `from` has sent it.
    fn lies(&self, layer: &LayerSource, from: Option<String>, problem: String) -> PullError {
        self.reason(layer, from, convert::Reason::ForeignErofs(problem))
    }

    fn unwritten(&self, layer: &LayerSource, error: io::Error) -> PullError {
        self.reason(layer, None, convert::Reason::Write(error))
    }

    fn reason(
        &self,
        layer: &LayerSource,
        from: Option<String>,
        reason: convert::Reason,
    ) -> PullError {
        let layer = layer.blob.digest;
        self.unusable(from, convert::Error { layer, reason })
    }

    fn unusable(&self, from: Option<String>, source: convert::Error) -> PullError {
        PullError::Layer {
            reference: Box::new(self.reference.clone()),
            from,
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
