//! Images whose blobs the store has kept as they came: they are served under their registry's digests.

use micabox_image::Store;
use micabox_image::export::INDEX_TYPE;
use micabox_image::manifest::{Document, Entry, Manifest, digest_of};
use micabox_image::store;
use micabox_oci::json::{self, Json};
use micabox_oci::{Digest, Reference};

use crate::catalog::Published;
use crate::problem::Problem;

/// Returns whether the store can pass on all that the manifest of this digest names, as it came.
pub fn has_all(store: &Store, manifest: &Digest) -> bool {
    parsed(store, manifest).is_some_and(|manifest| store.has_blobs_of(&manifest))
}

/// Returns whether a blob was kept for that. An image that was never compressed needs none.
pub fn is_kept(store: &Store, manifest: &Digest) -> bool {
    let is_kept = |entry: &Entry| {
        let digest = digest_of(entry, "manifest", "layer");
        digest.is_ok_and(|digest| matches!(store.kept_blob(&digest), Ok(Some(_))))
    };
    parsed(store, manifest).is_some_and(|manifest| {
        store.has_blobs_of(&manifest) && manifest.layers.iter().any(is_kept)
    })
}

fn parsed(store: &Store, manifest: &Digest) -> Option<Manifest> {
    let bytes = store.manifest(manifest).ok()?;
    match Document::parse(&bytes, None) {
        Ok(Document::Manifest(manifest)) => Some(*manifest),
        _ => None,
    }
}

/// Returns the index that a name has in its registry, if it was kept.
pub fn kept_index_of(store: &Store, name: &Reference) -> Option<Published> {
    let indexes = store.indexes(name).ok()?;
    kept_index(store, indexes.first()?).ok()?
}

/// Returns the index of this digest, if it was kept. A damaged one counts as none, so that it is asked for again.
///
/// # Errors
///
/// A [`Problem`]: it can't be read.
pub fn kept_index(store: &Store, digest: &Digest) -> Result<Option<Published>, Problem> {
    let index = match store.kept_index(digest) {
        Err(store::Error::Damaged { .. }) => None,
        index => index.map_err(|e| Problem::ours("the index can't be read", e.to_string()))?,
    };
    Ok(index.map(|bytes| as_it_came(bytes, *digest, INDEX_TYPE)))
}

/// Returns a document as it came, with its own media type, or else with this one: Docker's always have their own.
pub fn as_it_came(bytes: Vec<u8>, digest: Digest, media_type: &str) -> Published {
    let own = json::from_slice::<Json>(&bytes).map(|document| document.field("mediaType"));
    let media_type = match own {
        Ok(Json::Text(own)) if !own.is_empty() => own,
        _ => media_type.to_owned(),
    };
    Published {
        bytes: bytes.into(),
        media_type,
        digest,
    }
}
