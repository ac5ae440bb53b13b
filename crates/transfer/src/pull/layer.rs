//! Fetches one layer: streams its blob through the conversion.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use micabox_image::convert::{self, Expect, Place};
use micabox_image::manifest::LayerSource;
use micabox_image::progress::{Event, LayerState};
use micabox_image::store::{self, Claim, Keeping, Layer, Partial};
use micabox_image::{Limits, Progress, Reference, Store};
use micabox_registry::{self as registry, RegistryError, Repository};
use tokio::sync::{oneshot, watch};
use tokio::task::spawn_blocking;

use super::{PullError, joined};

/// A layer that is being fetched.
pub(super) struct LayerTask {
    pub store: Store,
    pub repository: Arc<Repository>,
    pub reference: Reference,
    pub limits: Arc<Limits>,
    pub place: Place,
    pub progress: Arc<dyn Progress>,
    pub cancelled: watch::Receiver<bool>,
    /// Whether its blob is kept as it came.
    pub keep: bool,
    /// Whether it is converted; otherwise it is only kept.
    pub is_layer: bool,
    pub layer: LayerSource,
}

/// Result of one attempt at a layer.
enum Attempt {
    Ended(Result<(), PullError>),
    /// The part of the blob that an earlier pull kept may be damaged. It is removed now.
    KeptWasBad,
    /// The blob was fetched in ranges, and is another one.
    RangesWereBad,
}

impl LayerTask {
    pub(super) async fn run(self) -> Result<(), PullError> {
        let mut one_connection = false;
        loop {
            match self.attempt(one_connection).await {
                Attempt::Ended(outcome) => return outcome,
                // Can't happen again: now there is no kept part.
                Attempt::KeptWasBad => {}
                Attempt::RangesWereBad => {
                    one_connection = true;
                    let state = LayerState::Retrying {
                        reason: "its ranges are not the whole blob's; fetching it on one connection",
                        pause: Duration::ZERO,
                    };
                    let diff_id = &self.layer.diff_id;
                    self.progress.event(Event::Layer { diff_id, state });
                }
            }
        }
    }

    async fn attempt(&self, one_connection: bool) -> Attempt {
        let mut cancelled = self.cancelled.clone();
        if *cancelled.borrow() {
            return Attempt::Ended(Ok(()));
        }
        let (mut sender, reader) = registry::channel();
        if one_connection {
            sender.use_one_connection();
        }
        let ranges = sender.ranges_used();
        let converted = |from, kept, converted| {
            let in_ranges = ranges.load(Ordering::Relaxed);
            self.converted(from, kept, in_ranges, joined(converted))
        };
        let (claimed, claim) = oneshot::channel();
        let mut conversion = self.convert(reader, claimed);
        // The registry is asked for the layer only once this process has the right to make it.
        let kept = tokio::select! {
            biased;
            claimed = claim => claimed.ok(),
            // A cancelled pull doesn't wait for another process that is making the layer.
            _ = cancelled.wait_for(|cancelled| *cancelled) => return Attempt::Ended(Ok(())),
        };
        let Some(kept) = kept else {
            return converted(None, 0, conversion.await);
        };
        sender.skip(kept);
        let mut from = None;
        let early = tokio::select! {
            // The transfer's result is checked before the conversion's, which may be its
            // consequence.
            biased;
            sent = self.stream(sender) => match sent {
                Ok(host) => {
                    from = host.map(str::to_owned);
                    None
                }
                Err(error) => Some(Err(error.into())),
            },
            ended = &mut conversion => return converted(None, kept, ended),
            _ = cancelled.wait_for(|cancelled| *cancelled) => Some(Ok(())),
        };
        let ended = conversion.await;
        match early {
            Some(outcome) => {
                joined(ended).ok();
                Attempt::Ended(outcome)
            }
            None => converted(from, kept, ended),
        }
    }

    /// Streams the blob from the first source that has it.
    async fn stream(&self, sender: registry::BlobSender) -> Result<Option<&str>, RegistryError> {
        let LayerSource {
            blob,
            diff_id,
            urls,
            archive: _,
            verity_root: _,
            parts: _,
        } = &self.layer;
        self.repository.stream(diff_id, blob, urls, sender).await
    }

    /// Starts the conversion on a thread of its own. `claimed` receives the first byte of the blob
    /// that the conversion needs, once the layer is claimed.
    fn convert(
        &self,
        reader: registry::BlobReader,
        claimed: oneshot::Sender<u64>,
    ) -> tokio::task::JoinHandle<Result<LayerState<'static>, ConvertError>> {
        let (store, limits, place) = (self.store.clone(), Arc::clone(&self.limits), self.place);
        let progress = Arc::clone(&self.progress);
        let (blob, size) = (self.layer.blob.digest, self.layer.blob.size);
        let expect = Expect {
            blob: Some(self.layer.blob.clone()),
            diff_id: self.layer.diff_id,
            archive: self.layer.archive,
            checksum: self.layer.parts.as_ref().map(|parts| parts.checksum),
        };
        let (keep, is_layer) = (self.keep, self.is_layer);
        spawn_blocking(move || {
            let claim = if is_layer {
                Some(store.claim_layer(&expect.diff_id, Some(&blob))?)
            } else {
                None
            };
            if let Some(Claim::Present(layer)) = &claim {
                convert::check_kind(layer, &expect)?;
            }
            let is_present = !matches!(claim, Some(Claim::Missing(_)));
            if is_present && (!keep || store.has_blob(&blob, size)) {
                return Ok(LayerState::Present);
            }
            let partial = if keep {
                Some(store.partial_to_keep(&blob, size)?)
            } else {
                store.partial(&blob, size)
            };
            let _ = claimed.send(partial.as_ref().map_or(0, Partial::length));
            let mut source = Keeping::new(partial, reader);
            let Some(Claim::Missing(claim)) = claim else {
                let checked = convert::check_blob(&mut source, &expect);
                ended(source, checked, true)?;
                return Ok(LayerState::Done);
            };
            let converted = convert::convert_claimed(claim, &mut source, &expect, &limits, place);
            // An archive that was not compressed is rebuilt from the layer.
            let is_rebuilt = |layer: &Layer| layer.record.recipe.is_some() && layer.diff_id == blob;
            let keep = keep && !converted.as_ref().is_ok_and(is_rebuilt);
            if let Some(notice) = ended(source, converted, keep)?.record.notice() {
                progress.event(Event::Notice(&notice));
            }
            Ok(LayerState::Done)
        })
    }

    /// Turns a conversion's result into an attempt's. The first `kept` bytes of the blob are an
    /// earlier pull's, and others came in ranges if `in_ranges`.
    fn converted(
        &self,
        from: Option<String>,
        kept: u64,
        in_ranges: bool,
        converted: Result<LayerState<'static>, ConvertError>,
    ) -> Attempt {
        Attempt::Ended(match converted {
            Ok(state) => {
                let diff_id = &self.layer.diff_id;
                self.progress.event(Event::Layer { diff_id, state });
                Ok(())
            }
            Err(ConvertError::Store(error)) => Err(error.into()),
            // The kept bytes may have been damaged on disk.
            Err(ConvertError::Layer {
                source,
                stays: false,
            }) if kept > 0 && source.is_about_bytes() => {
                return Attempt::KeptWasBad;
            }
            // A registry, or a cache before it, whose ranges are of something else.
            Err(ConvertError::Layer { source, .. }) if in_ranges && source.is_other_blob() => {
                return Attempt::RangesWereBad;
            }
            Err(ConvertError::Layer { source, .. }) => Err(PullError::Layer {
                reference: Box::new(self.reference.clone()),
                // Who has sent it is of no use where the disk is full.
                from: from.filter(|_| source.is_about_bytes()),
                source: Box::new(source),
            }),
        })
    }
}

/// Ends the blob of a conversion, or of a check. Its start stays if the transfer was interrupted.
fn ended<R, T>(
    mut source: Keeping<R>,
    read: Result<T, convert::Error>,
    keep: bool,
) -> Result<T, ConvertError> {
    match read {
        Ok(read) if keep => {
            source.complete()?;
            Ok(read)
        }
        Ok(read) => {
            source.end(false);
            Ok(read)
        }
        // The conversion only knows that its source has failed.
        Err(error) => match source.failure() {
            Some(failed) => Err(failed.into()),
            None => {
                let stays = source.end(error.is_interrupted());
                Err(ConvertError::Layer {
                    source: error,
                    stays,
                })
            }
        },
    }
}

#[derive(Debug, thiserror::Error)]
enum ConvertError {
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error("{source}")]
    Layer {
        source: convert::Error,
        /// Whether what is kept of the blob stays.
        stays: bool,
    },
}

impl From<convert::Error> for ConvertError {
    /// Of a layer that is here: nothing of its blob was read.
    fn from(source: convert::Error) -> Self {
        Self::Layer {
            source,
            stays: true,
        }
    }
}
