//! What is passed on from registries and is no image: signatures and orders of starts by their tags, artifacts by their
//! digests. What was passed on before, and that there was nothing, is kept for when its registry is gone, as long as there
//! is room in memory.

use std::collections::HashMap;
use std::sync::Mutex;

use bytes::Bytes;
use micabox_ground::lock;
use micabox_image::manifest::Document;
use micabox_oci::{Digest, Reference};
use micabox_transfer::Attached;

use crate::catalog::Published;

/// Most names of a pool, and most bytes of its artifacts.
const MOST: usize = 4096;
const BYTES: usize = 16 << 20;

/// Media type of a manifest whose registry says none.
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// The artifacts that were passed on. Those that clients name by digest take no room from signatures.
#[derive(Debug, Default)]
pub struct Attachments {
    signatures: Mutex<Pool>,
    others: Mutex<Pool>,
}

/// Artifacts by their names. What was used longest ago makes room.
#[derive(Debug, Default)]
struct Pool {
    kept: HashMap<Reference, Kept>,
    /// Of all artifacts.
    bytes: usize,
    /// How often something was kept or used.
    uses: u64,
}

#[derive(Debug)]
struct Kept {
    /// None if its registry had none.
    artifact: Option<Artifact>,
    /// The number of the last use.
    used: u64,
}

#[derive(Debug)]
struct Artifact {
    manifest: Bytes,
    media_type: String,
    /// The manifest's.
    digest: Digest,
    blobs: HashMap<Digest, Bytes>,
}

impl Attachments {
    /// Keeps what a registry has attached to an image under a tag: an artifact, or none.
    pub fn keep(&self, name: Reference, attached: Option<Attached>) {
        lock(&self.signatures).keep(name, attached.map(Artifact::new));
    }

    /// Keeps an artifact that was asked for by its digest.
    pub fn keep_other(&self, name: Reference, artifact: Attached) {
        lock(&self.others).keep(name, Some(Artifact::new(artifact)));
    }

    /// Returns the manifest of what a registry had attached under a tag, or that it had none; `None` if neither is known.
    pub fn named(&self, name: &Reference) -> Option<Option<Published>> {
        lock(&self.signatures).named(name)
    }

    /// Returns the manifest of an artifact that was asked for by its digest, under this name.
    pub fn other(&self, name: &Reference) -> Option<Published> {
        lock(&self.others).named(name)?
    }

    /// Returns the manifest of a signature or an order by its digest.
    pub fn signature(&self, digest: &Digest) -> Option<Published> {
        let mut signatures = lock(&self.signatures);
        signatures.find(|artifact| (artifact.digest == *digest).then(|| artifact.published()))
    }

    /// Returns a blob by its digest.
    pub fn blob(&self, digest: &Digest) -> Option<Bytes> {
        let pools = [&self.signatures, &self.others];
        let blob = |artifact: &Artifact| artifact.blobs.get(digest).cloned();
        pools.into_iter().find_map(|pool| lock(pool).find(blob))
    }
}

impl Pool {
    fn keep(&mut self, name: Reference, artifact: Option<Artifact>) {
        let used = self.next_use();
        self.bytes += artifact.as_ref().map_or(0, Artifact::size);
        let before = self.kept.insert(name, Kept { artifact, used });
        self.bytes -= before.map_or(0, |before| before.size());
        while self.kept.len() > MOST || self.bytes > BYTES {
            let is_full = self.bytes > BYTES;
            let large = self
                .kept
                .iter()
                .filter(|(_, kept)| !is_full || kept.size() > 0);
            // A client makes names that have nothing at will.
            let least = large.min_by_key(|(_, kept)| (kept.artifact.is_some(), kept.used));
            let Some(least) = least.map(|(name, _)| name.clone()) else {
                return;
            };
            let removed = self.kept.remove(&least);
            self.bytes -= removed.map_or(0, |removed| removed.size());
        }
    }

    fn named(&mut self, name: &Reference) -> Option<Option<Published>> {
        let used = self.next_use();
        let kept = self.kept.get_mut(name)?;
        kept.used = used;
        Some(kept.artifact.as_ref().map(Artifact::published))
    }

    fn find<T>(&mut self, part: impl Fn(&Artifact) -> Option<T>) -> Option<T> {
        let used = self.next_use();
        self.kept.values_mut().find_map(|kept| {
            let found = part(kept.artifact.as_ref()?)?;
            kept.used = used;
            Some(found)
        })
    }

    fn next_use(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }
}

impl Kept {
    fn size(&self) -> usize {
        self.artifact.as_ref().map_or(0, Artifact::size)
    }
}

impl Artifact {
    fn new(attached: Attached) -> Self {
        let blobs = attached.blobs.into_iter();
        Self {
            digest: Digest::of(&attached.manifest),
            manifest: attached.manifest.into(),
            media_type: attached.media_type.unwrap_or_else(|| MANIFEST.to_owned()),
            blobs: blobs
                .map(|(digest, bytes)| (digest, bytes.into()))
                .collect(),
        }
    }

    fn size(&self) -> usize {
        self.manifest.len() + self.blobs.values().map(Bytes::len).sum::<usize>()
    }

    fn published(&self) -> Published {
        Published {
            bytes: self.manifest.clone(),
            media_type: self.media_type.clone(),
            digest: self.digest,
        }
    }
}

/// Returns whether all blobs of an artifact are here.
pub fn is_whole(attached: &Attached) -> bool {
    match Document::parse(&attached.manifest, attached.media_type.as_deref()) {
        Ok(Document::Index(_)) => true,
        Ok(Document::Manifest(manifest)) => {
            let mut entries = manifest.layers.iter().chain([&manifest.config]);
            entries.all(|entry| {
                let digest = entry.digest.parse::<Digest>();
                digest.is_ok_and(|digest| attached.blobs.contains_key(&digest))
            })
        }
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An artifact of this many MiB.
    fn artifact(number: u8, size: usize) -> Attached {
        let blob = vec![number; size << 20];
        Attached {
            manifest: vec![number],
            media_type: None,
            blobs: HashMap::from([(Digest::of(&blob), blob)]),
        }
    }

    fn name(number: u8) -> Reference {
        format!("reg.example/x:{number}").parse().unwrap()
    }

    fn known(attachments: &Attachments) -> Vec<u8> {
        let is_known = |number: &u8| {
            lock(&attachments.signatures)
                .kept
                .contains_key(&name(*number))
        };
        (0..9).filter(is_known).collect()
    }

    #[test]
    fn artifacts_by_digest_take_no_room_from_signatures() {
        let attachments = Attachments::default();
        attachments.keep(name(0), Some(artifact(0, 1)));
        for number in 1..9 {
            attachments.keep_other(name(number), artifact(number, 4));
        }
        assert!(matches!(attachments.named(&name(0)), Some(Some(_))));
        assert!(attachments.signature(&Digest::of(&[0])).is_some());
        assert!(attachments.signature(&Digest::of(&[8])).is_none());
        assert!(attachments.other(&name(8)).is_some());
        assert!(attachments.other(&name(5)).is_none());
        assert!(lock(&attachments.others).bytes <= BYTES);
    }

    #[test]
    fn what_was_used_longest_ago_makes_room() {
        let attachments = Attachments::default();
        for number in 0..3 {
            attachments.keep(name(number), Some(artifact(number, 4)));
        }
        attachments.keep(name(8), None);
        assert!(attachments.named(&name(0)).is_some());
        let blob = Digest::of(&vec![1; 4 << 20]);
        assert!(attachments.blob(&blob).is_some());
        attachments.keep(name(3), Some(artifact(3, 4)));
        assert_eq!(known(&attachments), [0, 1, 3, 8]);
        // What takes the place of another one counts once.
        for _ in 0..9 {
            attachments.keep(name(3), Some(artifact(3, 4)));
        }
        assert_eq!(known(&attachments), [0, 1, 3, 8]);
        for number in [0, 1, 3] {
            attachments.keep(name(number), None);
        }
        assert_eq!(lock(&attachments.signatures).bytes, 0);
    }

    #[test]
    fn names_that_have_nothing_push_no_signature_out() {
        let attachments = Attachments::default();
        attachments.keep(name(0), Some(artifact(0, 1)));
        for number in 0..MOST + 9 {
            let name = format!("reg.example/none:{number}").parse().unwrap();
            attachments.keep(name, None);
        }
        assert!(matches!(attachments.named(&name(0)), Some(Some(_))));
        assert_eq!(lock(&attachments.signatures).kept.len(), MOST);
    }
}
