//! Manifests, indexes and image configurations as registries and archives serve them.
//!
//! They are read as Go programs read them ([`micabox_oci::json`]); a document that could be read in
//! two ways is refused.

mod document;
pub mod erofs;
mod error;
mod layers;
mod search;
#[cfg(test)]
mod tests;

use micabox_oci::ImageConfiguration;

use crate::Platform;
use crate::{Digest, printable};
use micabox_oci::json::{self, Json};

pub use document::{Document, Entry, Index, Manifest};
pub use error::ManifestError;
pub(crate) use layers::fsmeta_of;
pub use layers::{LayerSource, Parts, layers_of};
pub use search::Search;

/// Media types of images' configs.
const IMAGE_CONFIGS: [&str; 2] = [
    "application/vnd.oci.image.config.v1+json",
    "application/vnd.docker.container.image.v1+json",
];

/// Parses an image configuration. Where it doesn't name a platform it is this machine's.
///
/// # Errors
///
/// [`ManifestError::Malformed`].
pub fn parse_config(bytes: &[u8]) -> Result<ImageConfiguration, ManifestError> {
    let malformed = |error: json::Error| ManifestError::Malformed {
        document: "config",
        message: printable(&error.to_string()),
    };
    let mut document: Json = json::from_slice(bytes).map_err(malformed)?;
    // Docker takes a string for a list of one word here.
    let mut run = document.field("config");
    for name in ["Cmd", "Entrypoint"] {
        if let word @ Json::Text(_) = run.field(name) {
            run.set_field(name, Json::List(vec![word]));
            document.set_field("config", run.clone());
        }
    }
    let mut config: ImageConfiguration =
        serde::Deserialize::deserialize(document).map_err(malformed)?;
    let host = Platform::host();
    if config.os().is_empty() {
        config.set_os(host.os().into());
    }
    if config.architecture().is_empty() {
        config.set_architecture(host.architecture().into());
    }
    Ok(config)
}

/// Returns the platform in an image's config.
pub fn platform_of(config: &ImageConfiguration) -> Platform {
    let platform = Platform::new(
        config.os(),
        config.architecture(),
        config.variant().as_deref().unwrap_or_default(),
    );
    platform.with_features(config.os_features().iter().flatten())
}

/// Returns the digest in a descriptor.
///
/// # Errors
///
/// [`ManifestError::Digest`], which names `document` and `of`.
pub fn digest_of(
    entry: &Entry,
    document: &'static str,
    of: &'static str,
) -> Result<Digest, ManifestError> {
    entry
        .digest
        .parse()
        .map_err(|source| ManifestError::Digest {
            document,
            of,
            source,
        })
}

/// Returns the descriptor of an image's config; an error if the manifest isn't an image's.
///
/// # Errors
///
/// [`ManifestError::Artifact`].
pub fn config_of(manifest: &Manifest) -> Result<&Entry, ManifestError> {
    match manifest.config.media_type.as_str() {
        // Docker Hub has images from 2016 with the former.
        "application/octet-stream" | "" => Ok(&manifest.config),
        kind if IMAGE_CONFIGS.contains(&kind) => Ok(&manifest.config),
        other => {
            let kind = match manifest.artifact_type.as_str() {
                "" => other,
                kind => kind,
            };
            Err(ManifestError::Artifact(printable(kind)))
        }
    }
}
