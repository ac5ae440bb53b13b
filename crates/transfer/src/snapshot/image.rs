//! The image of a snapshot, in the snapshot's repository: as any image there, under a tag that its digest in the store
//! makes, so that a registry keeps it.

use std::sync::Arc;

use micabox_image::manifest::{Document, digest_of};
use micabox_image::store::{self, Image};
use micabox_image::{Digest, Progress, Reference, Store};
use micabox_registry::{Destination, Fetched, RegistryError, Repository};

use super::push::tag_of;
use crate::pull::blocking;
use crate::{PushError, PushOptions, push, threads};

/// Brings an image to the repository of `destination`, and blocks until it is there: nothing is sent if it is. Returns its
/// name there, which has a digest.
///
/// # Errors
///
/// [`PushError`].
pub fn push_image_blocking(
    store: &Store,
    image: &Digest,
    destination: &Reference,
    options: &PushOptions,
    progress: Arc<dyn Progress>,
) -> Result<Reference, PushError> {
    let runtime = threads("mica-push").map_err(PushError::Threads)?;
    runtime.block_on(bring(store, image, destination, options, progress))
}

async fn bring(
    store: &Store,
    image: &Digest,
    destination: &Reference,
    options: &PushOptions,
    progress: Arc<dyn Progress>,
) -> Result<Reference, PushError> {
    tag_of(destination)?;
    let in_store = store.clone();
    let digest = *image;
    let found =
        blocking(move || -> Result<Image, store::Error> { in_store.image_by_digest(&digest) });
    let found = found.await?;
    let tag = format!("sha256-{}.image", image.hex());
    let (registry, repository) = (destination.registry(), destination.repository());
    let name = format!("{registry}/{repository}:{tag}");
    let no_name = |_| PushError::Digest(Box::new(destination.clone()));
    let name: Reference = name.parse().map_err(no_name)?;

    let settings = Arc::new(options.settings.for_registries());
    let credentials = &options.credentials;
    let there = Repository::new(&name, &settings, credentials, &progress)?;
    if let Some(tagged) = present(there.named(&name).await)?
        && config_of(&tagged) == Some(found.config_digest)
    {
        return Ok(without_tag(&name, tagged.digest));
    }
    if let Some(same) = present(there.manifest(image, None).await)? {
        let destination = Destination::new(&name, [], &settings, credentials, &progress)?;
        let media_type = same.media_type.as_deref().unwrap_or(super::MANIFEST);
        destination
            .put_manifest(&tag, media_type, &same.bytes)
            .await?;
        return Ok(without_tag(&name, same.digest));
    }
    let pushed = push(store, &image.to_string(), Some(&name), options, progress).await?;
    Ok(without_tag(&name, pushed.manifest_digest))
}

/// Returns what a registry has; none if it lacks it, or doesn't say.
fn present(fetched: Result<Fetched, RegistryError>) -> Result<Option<Fetched>, RegistryError> {
    match fetched {
        Ok(fetched) => Ok(Some(fetched)),
        Err(error) if error.reason.is_missing() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the config that a manifest names.
fn config_of(fetched: &Fetched) -> Option<Digest> {
    let document = Document::parse(&fetched.bytes, fetched.media_type.as_deref()).ok()?;
    let Document::Manifest(manifest) = document else {
        return None;
    };
    digest_of(&manifest.config, "manifest", "config").ok()
}

/// Returns the name of what has this digest.
fn without_tag(name: &Reference, digest: Digest) -> Reference {
    let text = format!("{}/{}@{digest}", name.registry(), name.repository());
    text.parse().unwrap_or_else(|_| name.with_digest(digest))
}
