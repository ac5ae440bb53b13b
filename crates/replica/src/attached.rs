//! What is attached to images, passed on from their registries: signatures, orders of starts. What was passed on before,
//! and that there was nothing, is kept for when its registry is gone, as long as there is room in memory.

use std::collections::HashMap;
use std::sync::Mutex;

use bytes::Bytes;
use micabox_ground::lock;
use micabox_image::manifest::Document;
use micabox_oci::{Digest, Reference};
use micabox_transfer::Attached;
use tokio::time::Instant;

use crate::catalog::Published;

/// Most names of which it is known what they have, and most bytes of all artifacts.
const MOST: usize = 4096;
const BYTES: usize = 16 << 20;

/// Media type of a manifest whose registry says none.
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// The artifacts that were passed on.
#[derive(Debug, Default)]
pub struct Attachments(Mutex<HashMap<Reference, Kept>>);

#[derive(Debug)]
struct Kept {
    /// None if its registry had none.
    attached: Option<Attached>,
    since: Instant,
}

impl Attachments {
    /// Keeps what a registry has under a name: an artifact, or none.
    pub fn keep(&self, name: Reference, attached: Option<Attached>) {
        let mut all = lock(&self.0);
        let since = Instant::now();
        all.insert(name, Kept { attached, since });
        while all.len() > MOST || all.values().map(Kept::size).sum::<usize>() > BYTES {
            let oldest = all.iter().min_by_key(|(_, kept)| kept.since);
            let Some(oldest) = oldest.map(|(name, _)| name.clone()) else {
                return;
            };
            all.remove(&oldest);
        }
    }

    /// Returns the manifest of the artifact that a registry had under a name, or that it had none; `None` if neither is
    /// known.
    pub fn named(&self, name: &Reference) -> Option<Option<Published>> {
        let all = lock(&self.0);
        Some(all.get(name)?.attached.as_ref().map(published))
    }

    /// Returns a manifest, or a blob, by its digest.
    pub fn manifest(&self, digest: &Digest) -> Option<Published> {
        let all = lock(&self.0);
        let mut manifests = all
            .values()
            .filter_map(|kept| kept.attached.as_ref().map(published));
        manifests.find(|published| published.digest == *digest)
    }

    /// Returns a blob by its digest.
    pub fn blob(&self, digest: &Digest) -> Option<Bytes> {
        let all = lock(&self.0);
        let mut found = all
            .values()
            .filter_map(|kept| kept.attached.as_ref()?.blobs.get(digest));
        found.next().map(|bytes| bytes.clone().into())
    }
}

impl Kept {
    fn size(&self) -> usize {
        self.attached.as_ref().map_or(0, |attached| {
            let blobs = attached.blobs.values().map(Vec::len);
            attached.manifest.len() + blobs.sum::<usize>()
        })
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

fn published(attached: &Attached) -> Published {
    let bytes = attached.manifest.clone();
    let media_type = attached.media_type.as_deref().unwrap_or(MANIFEST);
    Published {
        digest: Digest::of(&bytes),
        media_type: media_type.to_owned(),
        bytes: bytes.into(),
    }
}
