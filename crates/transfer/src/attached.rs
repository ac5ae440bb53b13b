//! What is attached to an image in a registry, under a tag that its manifest's digest makes: signatures (cosign's
//! `.sig`), the order of a start (`.order`).

use std::collections::HashMap;
use std::sync::Arc;

use micabox_image::manifest::{Document, Entry};
use micabox_image::progress::Silent;
use micabox_image::{Digest, Progress, Reference};
use micabox_registry::{RegistryError, Repository};
use micabox_trust::attached_tag;

use crate::PullOptions;

/// Most blobs of an artifact, and most bytes of all of them.
const BLOBS: usize = 64;
const BYTES: usize = 4 << 20;

/// An artifact that is attached to an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// Its manifest.
    pub manifest: Vec<u8>,
    /// Media type of the manifest, as its registry says.
    pub media_type: Option<String>,
    /// Its blobs, those with contents and the config.
    pub blobs: HashMap<Digest, Vec<u8>>,
}

/// Returns the digest of the manifest that such a tag's artifact is attached to; none if it is another tag.
#[must_use]
pub fn attached_to(tag: &str) -> Option<Digest> {
    let (digest, kind) = tag.rsplit_once('.')?;
    let hex = digest.strip_prefix("sha256-")?;
    let digest = format!("sha256:{hex}").parse().ok()?;
    ["sig", "order"].contains(&kind).then_some(digest)
}

/// Returns the name of the signatures that are attached to a manifest of an image's repository; none if the repository
/// can't have it.
#[must_use]
pub fn signatures_name(image: &Reference, manifest: &Digest) -> Option<Reference> {
    let (registry, repository) = (image.registry(), image.repository());
    let tag = attached_tag(manifest);
    format!("{registry}/{repository}:{tag}").parse().ok()
}

/// Fetches an artifact with its blobs. One of more than 64, or of more than 4 MiB, comes without those beyond that.
///
/// # Errors
///
/// [`RegistryError`]: its registry has none, or can't be asked.
pub async fn fetch_attached(
    name: &Reference,
    options: &PullOptions,
) -> Result<Attached, RegistryError> {
    let silent: Arc<dyn Progress> = Arc::new(Silent);
    let settings = Arc::new(options.settings.for_registries());
    let repository = Repository::new(name, &settings, &options.credentials, &silent)?;
    let fetched = repository.named(name).await?;
    let entries = match Document::parse(&fetched.bytes, fetched.media_type.as_deref()) {
        Ok(Document::Manifest(manifest)) => {
            let mut entries = manifest.layers.clone();
            entries.push(manifest.config.clone());
            entries
        }
        _ => Vec::new(),
    };
    let mut blobs = HashMap::new();
    let mut left = BYTES;
    for Entry { digest, size, .. } in entries.into_iter().take(BLOBS) {
        let Ok(digest) = digest.parse::<Digest>() else {
            continue;
        };
        if blobs.contains_key(&digest) || size.is_none_or(|size| size > left as u64) {
            continue;
        }
        let bytes = repository.blob("an attached blob", &digest, size).await?;
        left = left.saturating_sub(bytes.len());
        blobs.insert(digest, bytes);
    }
    Ok(Attached {
        manifest: fetched.bytes,
        media_type: fetched.media_type,
        blobs,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_of_digests_are_attached_to_them() {
        let digest = Digest::of(b"");
        let hex = digest.hex();
        for kind in ["sig", "order"] {
            assert_eq!(attached_to(&format!("sha256-{hex}.{kind}")), Some(digest));
        }
        for tag in [
            "latest".to_owned(),
            format!("sha256-{hex}"),
            format!("sha256-{hex}.sbom"),
            format!("sha256-{}.sig", &hex[1..]),
            format!("sha512-{hex}.sig"),
            format!("x-sha256-{hex}.sig"),
        ] {
            assert_eq!(attached_to(&tag), None, "{tag}");
        }
    }
}
