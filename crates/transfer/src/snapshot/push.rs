//! Pushes a snapshot: the chunks that the registry lacks, the maps, and the manifest last.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use micabox_chunk::Map;
use micabox_image::progress::{self, Event, LayerState, Phase};
use micabox_image::{Descriptor, Digest, Progress, Reference, Store};
use micabox_oci::MAX_DOCUMENT;
use micabox_registry::Destination;
use tokio::task::spawn_blocking;

use super::cut::{Chunks, Cut, cut};
use super::known::{Known, Others};
use super::{ARTIFACT, Artifact, CONFIG, MACHINE, MANIFEST, Pack, Part, SparseFile};
use crate::pull::{blocking, joined};
use crate::{PushError, PushOptions, threads};

/// What is pushed of a snapshot.
#[derive(Debug)]
pub struct Cargo {
    /// The config: what the snapshot is, and what it needs.
    pub config: Vec<u8>,
    /// What is cut into chunks.
    pub parts: Vec<SparseFile>,
    /// The state of its machine.
    pub machine: Option<Vec<u8>>,
}

/// Where a snapshot comes from.
#[derive(Debug)]
pub struct Source<'a> {
    /// The store, which has the blobs meanwhile.
    pub store: &'a Store,
    /// The snapshot's name.
    pub name: &'a str,
    /// The manifests of snapshots that this store has pushed to the same repository: they may have chunks of it.
    pub others: &'a [Digest],
}

/// Result of a push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotPushed {
    /// The pushed name.
    pub reference: Reference,
    /// Digest of the manifest.
    pub manifest_digest: Digest,
    /// Number of packs that the snapshot's chunks are in.
    pub packs: usize,
    /// How many of them the registry had already.
    pub present: usize,
    /// Bytes of chunks that were sent, compressed.
    pub sent: u64,
    /// The chunks, and how many of them need no place of their own.
    pub chunks: Chunks,
    /// The map of each part.
    pub maps: Vec<(Part, Vec<u8>)>,
}

/// Pushes a snapshot, and blocks until it is there.
///
/// # Errors
///
/// [`PushError`]. Blobs that arrived stay in the registry; the manifest comes last, so no client sees half a snapshot.
pub fn push_snapshot_blocking(
    source: &Source<'_>,
    cargo: Cargo,
    destination: &Reference,
    options: &PushOptions,
    progress: Arc<dyn Progress>,
) -> Result<SnapshotPushed, PushError> {
    let runtime = threads("mica-push").map_err(PushError::Threads)?;
    runtime.block_on(push(source, cargo, destination, options, progress))
}

/// Returns the tag of a destination.
pub(super) fn tag_of(destination: &Reference) -> Result<&str, PushError> {
    let tag = destination.tag().filter(|_| destination.digest().is_none());
    tag.ok_or_else(|| PushError::Digest(Box::new(destination.clone())))
}

/// What a push sends to.
pub(super) struct To<'a> {
    pub(super) store: &'a Store,
    pub(super) destination: &'a Destination,
}

impl To<'_> {
    /// Sends a document, unless it is there.
    pub(super) async fn bytes(
        &self,
        media_type: &str,
        bytes: Vec<u8>,
    ) -> Result<Descriptor, PushError> {
        let blob = Descriptor {
            media_type: media_type.to_owned(),
            digest: Digest::of(&bytes),
            size: bytes.len() as u64,
        };
        if !self.destination.has(&blob).await? {
            let store = self.store.clone();
            let file = Arc::new(blocking(move || store.unnamed(&bytes)).await?);
            self.destination.upload(&blob, &file, None, None).await?;
        }
        Ok(blob)
    }

    /// Sends a pack, unless it is there. Returns whether it was.
    async fn pack(&self, pack: &Pack, file: &Arc<File>) -> Result<bool, PushError> {
        if self.destination.has(&pack.blob).await? {
            return Ok(true);
        }
        let id = Some(&pack.blob.digest);
        self.destination.upload(&pack.blob, file, id, None).await?;
        Ok(false)
    }

    /// Sends the packs and maps of files, and adds them to the manifest.
    async fn chunks(
        &self,
        cut: Cut,
        parts: Vec<Part>,
        artifact: &mut Artifact,
        progress: &Arc<dyn Progress>,
    ) -> Result<Sent, PushError> {
        let new = cut.packs.iter().filter(|(_, file)| file.is_some());
        let transfers = new.map(|(pack, _)| progress::Layer {
            diff_id: pack.blob.digest,
            blob: pack.blob.clone(),
        });
        progress.event(Event::Layers(&transfers.collect::<Vec<_>>()));
        let maps = cut.maps.iter().map(Map::to_bytes);
        let mut sent = Sent {
            present: 0,
            bytes: 0,
            maps: parts.into_iter().zip(maps).collect(),
        };
        for (pack, file) in cut.packs {
            let was_there = match &file {
                None => true,
                Some(file) => self.pack(&pack, file).await?,
            };
            if was_there {
                sent.present += 1;
            } else {
                sent.bytes += pack.blob.size;
            }
            let diff_id = &pack.blob.digest;
            let state = LayerState::Done;
            progress.event(Event::Layer { diff_id, state });
            artifact.packs.push(pack);
        }
        for (part, map) in &sent.maps {
            let map = self.bytes(part.media_type(), map.clone()).await?;
            artifact.maps.push((*part, map));
        }
        Ok(sent)
    }
}

/// What was sent of a snapshot's files.
struct Sent {
    /// Packs that were there.
    present: usize,
    /// Bytes of the others.
    bytes: u64,
    maps: Vec<(Part, Vec<u8>)>,
}

/// Stops the cutting when the push ends.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

async fn push(
    source: &Source<'_>,
    cargo: Cargo,
    destination: &Reference,
    options: &PushOptions,
    progress: Arc<dyn Progress>,
) -> Result<SnapshotPushed, PushError> {
    let failed = |source: io::Error, name: &str| PushError::Snapshot {
        name: name.to_owned(),
        source,
    };
    let tag = tag_of(destination)?;
    let machine = cargo.machine.as_ref();
    if machine.is_some_and(|machine| machine.len() as u64 > MAX_DOCUMENT) {
        let error = io::Error::other("its machine's state is too long");
        return Err(failed(error, source.name));
    }
    progress.event(Event::Phase(Phase::Resolving));
    let settings = Arc::new(options.settings.for_registries());
    let client = Destination::new(destination, [], &settings, &options.credentials, &progress)?;
    let others = Others {
        destination: &client,
        reference: destination,
        settings: &settings,
        credentials: &options.credentials,
        progress: &progress,
    };
    let known = others.known(source.others).await;

    progress.event(Event::Phase(Phase::Layers));
    let mut artifact = Artifact {
        config: Descriptor {
            media_type: CONFIG.to_owned(),
            digest: Digest::of(&cargo.config),
            size: cargo.config.len() as u64,
        },
        maps: Vec::new(),
        machine: None,
        packs: Vec::new(),
    };
    let parts: Vec<_> = cargo.parts.iter().map(|file| file.part).collect();
    let cut = chunks(
        source.store,
        cargo.parts,
        known,
        artifact.config.digest,
        &progress,
    )
    .await;
    let cut = cut.map_err(|error| failed(error, source.name))?;
    progress.event(Event::Layer {
        diff_id: &artifact.config.digest,
        state: LayerState::Done,
    });
    let to = To {
        store: source.store,
        destination: &client,
    };
    let chunks = cut.chunks;
    let sent = to.chunks(cut, parts, &mut artifact, &progress).await?;
    if let Some(machine) = cargo.machine {
        artifact.machine = Some(to.bytes(MACHINE, machine).await?);
    }
    progress.event(Event::Phase(Phase::Publishing));
    to.bytes(CONFIG, cargo.config).await?;
    let manifest = artifact.to_json().to_string().into_bytes();
    client.put_manifest(tag, MANIFEST, &manifest).await?;
    if chunks.of_others > 0 {
        progress.event(Event::Notice(&format!(
            "{} of its {} chunks are in other snapshots of the repository, and were not sent",
            chunks.of_others, chunks.all
        )));
    }
    progress.event(Event::Phase(Phase::Done));
    Ok(SnapshotPushed {
        reference: destination.clone(),
        manifest_digest: Digest::of(&manifest),
        packs: artifact.packs.len(),
        present: sent.present,
        sent: sent.bytes,
        chunks,
        maps: sent.maps,
    })
}

/// Cuts files on a thread, with progress as that of `id`.
async fn chunks(
    store: &Store,
    parts: Vec<SparseFile>,
    known: Known,
    id: Digest,
    progress: &Arc<dyn Progress>,
) -> io::Result<Cut> {
    let mut all = 0;
    for SparseFile { file, .. } in &parts {
        // Holes are not read.
        let metadata = file.metadata()?;
        all += metadata
            .len()
            .min(std::os::unix::fs::MetadataExt::blocks(&metadata) * 512);
    }
    let blob = Descriptor {
        media_type: ARTIFACT.to_owned(),
        digest: id,
        size: all,
    };
    progress.event(Event::Layers(&[progress::Layer { diff_id: id, blob }]));
    let (store, progress) = (store.clone(), Arc::clone(progress));
    let stop: Arc<AtomicBool> = Arc::default();
    let stopped = StopOnDrop(Arc::clone(&stop));
    let cutting = spawn_blocking(move || {
        let make = || store.unnamed(b"").map_err(io::Error::other);
        cut(&parts, &known, &make, &mut |bytes| {
            let (diff_id, state) = (&id, LayerState::Packed { bytes });
            progress.event(Event::Layer { diff_id, state });
            !stop.load(Ordering::Relaxed)
        })
    });
    let cut = joined(cutting.await);
    drop(stopped);
    cut
}
