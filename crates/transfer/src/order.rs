//! The order in which a start reads an image's layers, in a registry: an artifact beside the image, under a tag that its
//! manifest's digest makes, as signatures of cosign's have one.
//!
//! The manifest of the image, whose digest a conversion gives again and a signature covers, stays as it is. An order is a
//! hint: it decides when chunks are fetched, never which bytes are used.

use std::sync::Arc;

use micabox_image::manifest::Document;
use micabox_image::progress::Silent;
use micabox_image::store;
use micabox_image::{Descriptor, Digest, Progress, Reference, Store};
use micabox_lazy::Order;
use micabox_registry::{Destination, RegistryError, Repository};
use serde_json::json;

use crate::pull::blocking;
use crate::{PushError, PushOptions};

/// What the artifact is.
const ARTIFACT: &str = "application/vnd.micabox.start-order.v1";

/// The annotation that has the order, as JSON.
const ANNOTATION: &str = "org.micabox.start-order";

/// Media type and contents of what has none (OCI image specification, "guidance for an empty descriptor").
const EMPTY: &str = "application/vnd.oci.empty.v1+json";
const NOTHING: &[u8] = b"{}";

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// Returns the name of the order of an image with this manifest; none if `image` has a repository that can't have it.
fn name(image: &Reference, manifest: &Digest) -> Option<(Reference, String)> {
    let tag = format!("sha256-{}.order", manifest.hex());
    let text = format!("{}/{}:{tag}", image.registry(), image.repository());
    Some((text.parse().ok()?, tag))
}

/// Fetches the order of an image; none if its registry has none that can be used.
pub(crate) async fn fetch(
    repository: &Repository,
    image: &Reference,
    manifest: &Digest,
) -> Option<Order> {
    let (name, _) = name(image, manifest)?;
    let fetched = repository.named(&name).await.ok()?;
    let document = Document::parse(&fetched.bytes, fetched.media_type.as_deref());
    let Document::Manifest(artifact) = document.ok()? else {
        return None;
    };
    serde_json::from_str(artifact.annotations.get(ANNOTATION)?).ok()
}

/// Sends the order in which the last lazy start of an image read its layers to the image's registry, and blocks until it
/// is there. Returns its name.
///
/// # Errors
///
/// [`PushError::NoOrder`] if there was no such start; [`PushError`].
pub fn push_start_order_blocking(
    store: &Store,
    image: &str,
    options: &PushOptions,
) -> Result<Reference, PushError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(PushError::Threads)?;
    runtime.block_on(push(store, image, options))
}

async fn push(store: &Store, image: &str, options: &PushOptions) -> Result<Reference, PushError> {
    let (in_store, asked) = (store.clone(), image.to_owned());
    let found = blocking(move || -> Result<_, store::Error> {
        let image = in_store.image(&asked)?;
        let order = in_store.start_order(&image.manifest_digest);
        Ok((image, order))
    });
    let (found, order) = found.await?;
    let order = order.filter(|order| !order.is_empty());
    let order = order.ok_or_else(|| PushError::NoOrder(image.to_owned()))?;
    let no_destination = || PushError::NoDestination(image.to_owned());
    let reference = found.reference.ok_or_else(no_destination)?;
    let (name, tag) = name(&reference, &found.manifest_digest).ok_or_else(no_destination)?;
    let order = serde_json::to_string(&order).map_err(|_| PushError::NoOrder(image.to_owned()))?;
    let silent: Arc<dyn Progress> = Arc::new(Silent);
    let settings = Arc::new(options.settings.for_registries());
    let destination = Destination::new(&name, [], &settings, &options.credentials, &silent)?;
    let nothing = nothing(store, &destination).await?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": ARTIFACT,
        "config": nothing,
        "layers": [nothing],
        "annotations": { ANNOTATION: order },
    });
    let manifest = manifest.to_string();
    destination
        .put_manifest(&tag, MANIFEST, manifest.as_bytes())
        .await?;
    Ok(name)
}

/// Sends the blob of what has no contents, unless it is there.
async fn nothing(store: &Store, destination: &Destination) -> Result<Descriptor, PushError> {
    let blob = Descriptor {
        media_type: EMPTY.to_owned(),
        digest: Digest::of(NOTHING),
        size: NOTHING.len() as u64,
    };
    if !destination.has(&blob).await? {
        let store = store.clone();
        let file = Arc::new(blocking(move || store.unnamed(NOTHING)).await?);
        let uploaded: Result<(), RegistryError> =
            destination.upload(&blob, &file, None, None).await;
        uploaded?;
    }
    Ok(blob)
}
