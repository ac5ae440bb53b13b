//! Chunks that a repository has already, in packs of snapshots that this store has pushed.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use micabox_chunk::{Index, Map};
use micabox_image::manifest::Document;
use micabox_image::{Digest, Progress, Reference};
use micabox_registry::{Credentials, Destination, Repository, Settings};

use super::packs::{index, whole};
use super::{Artifact, MOST_PACKS, Pack};
use crate::pull::blocking;

/// Snapshots that are looked at.
const MOST_OTHERS: usize = 8;

/// Packs of other snapshots that a snapshot may use; the others are left for its own.
const MOST_KNOWN: usize = MOST_PACKS / 2;

/// Where a chunk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Which of the known packs.
    pub(super) pack: usize,
    /// Offset in what the pack contains.
    pub(super) offset: u64,
}

/// Chunks, and the packs that they are in.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) packs: Vec<Pack>,
    chunks: HashMap<[u8; 32], Place>,
    indexes: Vec<Index>,
}

impl Known {
    /// Finds a chunk of `length` bytes, which is whole within one frame.
    pub(super) fn find(&self, sha256: &[u8; 32], length: u64) -> Option<Place> {
        let place = *self.chunks.get(sha256)?;
        let index = self.indexes.get(place.pack)?;
        let contents = index.contents(index.find(place.offset)?)?;
        let end = place.offset.checked_add(length)?;
        (end <= contents.end).then_some(place)
    }
}

/// What is asked for chunks.
pub(super) struct Others<'a> {
    pub(super) destination: &'a Destination,
    /// The name that is pushed to.
    pub(super) reference: &'a Reference,
    pub(super) settings: &'a Arc<Settings>,
    pub(super) credentials: &'a Credentials,
    pub(super) progress: &'a Arc<dyn Progress>,
}

impl Others<'_> {
    /// Looks for chunks in snapshots of the repository, which this store has pushed. What can't be read is passed over: its
    /// chunks are sent again. A snapshot that another store has pushed may have a map that lies, and a pack of another
    /// repository would be shown with all else that is in it.
    pub(super) async fn known(&self, pushed: &[Digest]) -> Known {
        let mut known = Known::default();
        let repository = Repository::new(
            self.reference,
            self.settings,
            self.credentials,
            self.progress,
        );
        let Ok(repository) = repository else {
            return known;
        };
        let mut found = Vec::new();
        for digest in pushed.iter().take(MOST_OTHERS) {
            let Ok(fetched) = repository.manifest(digest, None).await else {
                continue;
            };
            let document = Document::parse(&fetched.bytes, fetched.media_type.as_deref());
            let Ok(Document::Manifest(manifest)) = document else {
                continue;
            };
            if let Ok(artifact) = Artifact::read(&manifest) {
                let maps = maps(&repository, &artifact).await;
                found.push((artifact, maps));
            }
        }
        let mut wanted = most_used(&found);
        for (artifact, maps) in found {
            let mut numbers: BTreeMap<u32, usize> = BTreeMap::new();
            for (number, pack) in artifact.packs.iter().enumerate() {
                let place = known.packs.iter().position(|known| known == pack);
                let is_wanted = wanted.remove(&pack.blob.digest).is_some();
                let place = match place {
                    Some(place) => Some(place),
                    None if is_wanted && self.has(pack).await => {
                        let index = index(&repository, pack).await.ok();
                        index.map(|index| {
                            known.packs.push(pack.clone());
                            known.indexes.push(index);
                            known.packs.len() - 1
                        })
                    }
                    None => None,
                };
                numbers.extend(place.map(|place| (number as u32, place)));
            }
            for entry in maps.iter().flat_map(Map::entries) {
                if let Some(&pack) = numbers.get(&entry.pack) {
                    let place = Place {
                        pack,
                        offset: entry.offset,
                    };
                    known.chunks.entry(entry.sha256).or_insert(place);
                }
            }
        }
        known
    }

    /// Returns whether the repository has a pack.
    async fn has(&self, pack: &Pack) -> bool {
        matches!(self.destination.has(&pack.blob).await, Ok(true))
    }
}

/// Fetches the maps of a snapshot; none that can't be read.
async fn maps(repository: &Repository, artifact: &Artifact) -> Vec<Map> {
    let mut maps = Vec::new();
    for (_, map) in &artifact.maps {
        let packs = artifact.packs.len();
        if let Ok(bytes) = whole(repository, map).await {
            maps.extend(blocking(move || Map::parse(&bytes, packs)).await);
        }
    }
    maps
}

/// Returns the packs with most chunks, and how many.
fn most_used(found: &[(Artifact, Vec<Map>)]) -> HashMap<Digest, usize> {
    let mut counts: HashMap<Digest, usize> = HashMap::new();
    for (artifact, maps) in found {
        for entry in maps.iter().flat_map(Map::entries) {
            if let Some(pack) = artifact.packs.get(entry.pack as usize) {
                *counts.entry(pack.blob.digest).or_default() += 1;
            }
        }
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts.truncate(MOST_KNOWN);
    counts.into_iter().collect()
}
