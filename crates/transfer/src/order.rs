//! The order in which a start reads an image's layers, or a snapshot's memory, in a registry: an artifact beside it, under
//! a tag that its manifest's digest makes, as signatures of cosign's have one.
//!
//! The manifest of the image, whose digest a conversion gives again and a signature covers, stays as it is. An order is a
//! hint: it decides when chunks are fetched, never which bytes are used.

use std::sync::Arc;

use micabox_image::manifest::Document;
use micabox_image::progress::Silent;
use micabox_image::{Descriptor, Digest, Progress, Reference, Store};
use micabox_lazy::Order;
use micabox_registry::{Destination, Repository};
use serde_json::json;

use crate::pull::blocking;
use crate::{PushError, PushOptions};

/// What the artifact is.
const ARTIFACT: &str = "application/vnd.micabox.start-order.v1";

/// The annotation that has the order, as JSON.
const ANNOTATION: &str = "org.micabox.start-order";

/// Media type of what has no contents (OCI image specification, "guidance for an empty descriptor").
const EMPTY: &str = "application/vnd.oci.empty.v1+json";
/// The contents of what has none.
pub const NOTHING: &[u8] = b"{}";

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
    let found = store.image(image)?;
    let order = store.start_order(&found.manifest_digest);
    let order = order.filter(|order| !order.is_empty());
    let order = order.ok_or_else(|| PushError::NoOrder(image.to_owned()))?;
    let no_destination = || PushError::NoDestination(image.to_owned());
    let reference = found.reference.ok_or_else(no_destination)?;
    push_order_blocking(store, &reference, &found.manifest_digest, &order, options)
}

/// Sends the order in which something was read that is in the repository of `reference` under a manifest, and blocks until
/// it is there. Returns its name.
///
/// # Errors
///
/// [`PushError`].
pub fn push_order_blocking(
    store: &Store,
    reference: &Reference,
    manifest: &Digest,
    order: &Order,
    options: &PushOptions,
) -> Result<Reference, PushError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(PushError::Threads)?;
    runtime.block_on(push(store, reference, manifest, order, options))
}

async fn push(
    store: &Store,
    reference: &Reference,
    manifest: &Digest,
    order: &Order,
    options: &PushOptions,
) -> Result<Reference, PushError> {
    let what = || reference.familiar();
    let (name, tag) = name(reference, manifest).ok_or_else(|| PushError::NoDestination(what()))?;
    let artifact = start_order_artifact(order);
    let silent: Arc<dyn Progress> = Arc::new(Silent);
    let settings = Arc::new(options.settings.for_registries());
    let destination = Destination::new(&name, [], &settings, &options.credentials, &silent)?;
    send_blob(store, &destination, &artifact).await?;
    destination
        .put_manifest(&tag, artifact.media_type, &artifact.manifest)
        .await?;
    Ok(name)
}

/// An order as a registry has it: a manifest, and a blob without contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifact {
    /// The manifest, which has the order.
    pub manifest: Vec<u8>,
    /// Its media type.
    pub media_type: &'static str,
    /// The blob.
    pub blob: &'static [u8],
}

/// Returns an order as a registry has it.
#[must_use]
pub fn start_order_artifact(order: &Order) -> Artifact {
    let nothing = nothing();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": ARTIFACT,
        "config": nothing,
        "layers": [nothing],
        // Numbers alone: there is nothing in it that has no text.
        "annotations": { ANNOTATION: serde_json::to_string(order).unwrap_or_default() },
    });
    Artifact {
        manifest: manifest.to_string().into_bytes(),
        media_type: MANIFEST,
        blob: NOTHING,
    }
}

fn nothing() -> Descriptor {
    Descriptor {
        media_type: EMPTY.to_owned(),
        digest: Digest::of(NOTHING),
        size: NOTHING.len() as u64,
    }
}

/// Sends the artifact's blob, unless it is there.
async fn send_blob(
    store: &Store,
    destination: &Destination,
    artifact: &Artifact,
) -> Result<(), PushError> {
    let (store, blob, bytes) = (store.clone(), nothing(), artifact.blob);
    if !destination.has(&blob).await? {
        let file = Arc::new(blocking(move || store.unnamed(bytes)).await?);
        destination.upload(&blob, &file, None, None).await?;
    }
    Ok(())
}
