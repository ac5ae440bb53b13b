//! A file of a snapshot of which only a part is here: what is missing is fetched when it is read.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::{Arc, mpsc};

use micabox_chunk::{Index, Map};
use micabox_image::manifest::{Document, ManifestError};
use micabox_image::progress::Silent;
use micabox_image::{Digest, Progress, Reference, Store};
use micabox_lazy::{Fetched, Inflaters, PartFile};
use micabox_registry::Repository;
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

use super::local::{CutFile, Local};
use super::packs::{BlobError, Packs};
use super::pull::wrong;
use super::{Artifact, Part, Wrong};
use crate::{PullError, PullOptions, threads};

/// What is here of a file.
#[derive(Debug)]
pub struct Kept<'a> {
    /// The snapshot's name in its registry.
    pub reference: &'a Reference,
    /// Digest of its manifest.
    pub digest: &'a Digest,
    /// Its manifest.
    pub manifest: &'a [u8],
    /// Which file.
    pub part: Part,
    /// The map of the file.
    pub map: &'a [u8],
    /// The file, open for reading and writing, which is as long as the map says.
    pub file: File,
}

/// Opens a file of a snapshot of which only a part is here. Reads wait for the registry, as long as a pull would. A chunk
/// that one of `others` has is copied.
///
/// # Errors
///
/// [`PullError::Snapshot`] if the manifest or the map has another digest than it was fetched by; [`PullError::Registry`]
/// if the settings for its registry can't be applied.
pub fn open_part(
    store: &Store,
    kept: Kept<'_>,
    others: &[CutFile],
    options: &PullOptions,
) -> Result<PartFile, PullError> {
    let Kept {
        reference, part, ..
    } = kept;
    let lies = |problem: String| wrong(reference, problem);
    if Digest::of(kept.manifest) != *kept.digest {
        return Err(lies("its manifest was altered here".to_owned()));
    }
    let manifest = match Document::parse(kept.manifest, None) {
        Ok(Document::Manifest(manifest)) => manifest,
        _ => {
            return Err(PullError::Manifest {
                reference: Box::new(reference.clone()),
                source: Box::new(ManifestError::NoSnapshot),
            });
        }
    };
    let artifact = Artifact::read(&manifest).map_err(|Wrong(problem)| lies(problem))?;
    let descriptor = artifact.maps.iter().find(|(other, _)| *other == part);
    if descriptor.is_none_or(|(_, map)| map.digest != Digest::of(kept.map)) {
        return Err(lies(format!("its map of the {part} was altered here")));
    }
    let map = Map::parse(kept.map, artifact.packs.len());
    let map = map.map_err(|error| lies(format!("its map of the {part}: {error}")))?;
    let length = kept.file.metadata().map(|metadata| metadata.len());
    if length.is_ok_and(|length| length != map.size()) {
        return Err(lies(format!("its {part} was altered here")));
    }
    let settings = Arc::new(options.settings.for_registries());
    let silent: Arc<dyn Progress> = Arc::new(Silent);
    let repository = Repository::new(reference, &settings, &options.credentials, &silent)?;
    let missing = Missing {
        runtime: threads("mica-pull").map_err(PullError::Threads)?,
        indexes: artifact.packs.iter().map(|_| OnceCell::new()).collect(),
        packs: Arc::new(Packs::new(Arc::new(repository), store, artifact.packs)),
        local: Local::of(others),
    };
    let inflaters = Arc::new(Inflaters::default());
    Ok(PartFile::new(kept.file, map, Box::new(missing), &inflaters))
}

/// Chunks that a registry has, or other snapshots here.
struct Missing {
    runtime: Runtime,
    packs: Arc<Packs>,
    /// By number of the pack.
    indexes: Vec<OnceCell<Arc<Index>>>,
    local: Local,
}

/// Returns the error of a pack, by its digest.
fn of_pack(packs: &Packs, pack: u32, error: &BlobError) -> io::Error {
    let digest = packs.get(pack as usize).map(|pack| pack.blob.digest);
    let digest = digest.map_or_else(String::new, |digest| digest.to_string());
    io::Error::other(format!("pack {digest}: {error}"))
}

impl micabox_lazy::Packs for Missing {
    fn index(&self, pack: u32) -> io::Result<Arc<Index>> {
        let cell = self.indexes.get(pack as usize);
        let cell = cell.ok_or(io::ErrorKind::InvalidInput)?;
        if let Some(index) = cell.get() {
            return Ok(Arc::clone(index));
        }
        let index = cell.get_or_try_init(|| async {
            let index = self.packs.index(pack as usize).await;
            index.map(Arc::new)
        });
        let index = self.runtime.block_on(index);
        let index = index.map_err(|error| of_pack(&self.packs, pack, &error))?;
        Ok(Arc::clone(index))
    }

    fn fetch(&self, pack: u32, range: Range<u64>) -> mpsc::Receiver<io::Result<Fetched>> {
        let packs = Arc::clone(&self.packs);
        let (sender, receiver) = mpsc::channel();
        self.runtime.spawn(async move {
            let take = |bytes: &[u8], from: &str| {
                let (bytes, from) = (bytes.to_vec(), from.to_owned());
                // Without a receiver there is no reader.
                sender.send(Ok(Fetched { bytes, from })).is_ok()
            };
            let fetched = packs.pieces(pack as usize, range, take).await;
            if let Err(error) = fetched {
                let _ = sender.send(Err(of_pack(&packs, pack, &error)));
            }
        });
        receiver
    }

    fn local(&self, sha256: &[u8; 32], length: u64) -> Option<Vec<u8>> {
        self.local.read(sha256, length)
    }
}
