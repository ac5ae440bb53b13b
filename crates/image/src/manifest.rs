//! Manifests, indexes and image configurations as registries and archives serve them.
//!
//! OCI's and Docker's documents have the same structure. An empty list in the spelling of Go
//! programs (`null`, or a missing field) is accepted; a document that could be read in two ways is
//! refused.

mod search;
#[cfg(test)]
mod tests;

use oci_spec::image::{Descriptor, ImageConfiguration, ImageIndex, ImageManifest};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::platform::Platform;
use crate::{Descriptor as Blob, Digest, Limits, printable};

pub use search::Search;

/// Most platforms that an error lists.
const MAX_LISTED: usize = 20;

/// Why a manifest or an image configuration can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// Not JSON, or JSON of another structure.
    #[error("the {document} is malformed: {message}")]
    Malformed {
        /// Manifest, index or config.
        document: &'static str,
        /// The position and the problem.
        message: String,
    },
    /// Docker's first manifest format.
    #[error(
        "it is a Docker schema 1 manifest, a format that can't be verified and was given up: \
         push the image again with a current tool"
    )]
    Schema1,
    /// An image manifest and an index at once, which different tools would read differently.
    #[error("the document claims to be both an image and an index of images")]
    Ambiguous,
    /// Neither an image nor an index.
    #[error("media type `{0}` is neither an image nor an index of images")]
    UnknownType(String),
    /// Another artifact that registries hold: a chart, a signature, a module.
    #[error("it is not a container image but an artifact of type `{0}`")]
    Artifact(String),
    /// The index has no image for this platform.
    #[error(
        "there is no image for {wanted}, only for {}; choose with --platform",
        list(offered)
    )]
    NoPlatform {
        /// The requested platform.
        wanted: Platform,
        /// The available platforms.
        offered: Vec<Platform>,
    },
    /// An index without images.
    #[error("the index names no image")]
    NoImage,
    /// Too many indexes within indexes, or too many documents.
    #[error("its indexes are nested too deeply or name too many documents")]
    TooDeep,
    /// A digest that can't be verified.
    #[error("the {document} names a {of} by a bad digest: {source}")]
    Digest {
        /// Manifest or config.
        document: &'static str,
        /// The document that the digest is of.
        of: &'static str,
        /// What is wrong with it.
        source: micabox_oci::ParseError,
    },
    /// The manifest and its config have different numbers of layers.
    #[error("the manifest has {layers} layers, its config {diff_ids}")]
    LayerCount {
        /// Layers in the manifest.
        layers: usize,
        /// Layers in the config.
        diff_ids: usize,
    },
    /// A layer whose blob alone exceeds the limit.
    #[error("layer {blob} is {size} bytes: more than limits.layer-size = {limit} allows")]
    LayerSize {
        /// The blob.
        blob: Digest,
        /// Its size in bytes.
        size: u64,
        /// The limit in bytes.
        limit: u64,
    },
}

fn list(platforms: &[Platform]) -> String {
    let mut names: Vec<String> = platforms
        .iter()
        .take(MAX_LISTED)
        .map(|platform| printable(&platform.to_string()))
        .collect();
    if platforms.len() > MAX_LISTED {
        names.push("others".to_owned());
    }
    names.join(", ")
}

/// A document that a manifest URL or an `index.json` refers to.
#[derive(Debug)]
pub enum Document {
    /// An index of images.
    Index(Box<ImageIndex>),
    /// The manifest of an image.
    Manifest(Box<ImageManifest>),
}

impl Document {
    /// Parses an index or a manifest. `content_type` is the registry's or the descriptor's type; a
    /// type in the document itself takes precedence.
    ///
    /// # Errors
    ///
    /// [`ManifestError`]: neither of the two, or both at once.
    pub fn parse(bytes: &[u8], content_type: Option<&str>) -> Result<Self, ManifestError> {
        let malformed = |message: String| ManifestError::Malformed {
            document: "manifest",
            message,
        };
        let mut value: Value = serde_json::from_slice(bytes)
            .map_err(|error| malformed(printable(&error.to_string())))?;
        if !value.is_object() {
            return Err(malformed("it is not a JSON object".to_owned()));
        }
        // Parameters such as a character set have no meaning for JSON.
        let content_type = content_type
            .and_then(|text| text.split(';').next())
            .map(str::trim);
        let own_type = value["mediaType"].as_str().filter(|own| !own.is_empty());
        let media_type = own_type.or(content_type).unwrap_or_default();
        if value["schemaVersion"] == json!(1)
            || !value["fsLayers"].is_null()
            || media_type.starts_with("application/vnd.docker.distribution.manifest.v1+")
        {
            return Err(ManifestError::Schema1);
        }
        let is_index = match media_type {
            "application/vnd.oci.image.index.v1+json"
            | "application/vnd.docker.distribution.manifest.list.v2+json" => true,
            "application/vnd.oci.image.manifest.v1+json"
            | "application/vnd.docker.distribution.manifest.v2+json" => false,
            // The generic type, or none: the document's structure decides.
            "" | "application/json" | "application/octet-stream" | "text/plain" => {
                !value["manifests"].is_null()
            }
            other => return Err(ManifestError::UnknownType(printable(other))),
        };
        let both = (!value["manifests"].is_null())
            && (!value["layers"].is_null() || !value["config"].is_null());
        if both {
            return Err(ManifestError::Ambiguous);
        }
        if is_index {
            empty_if_null(&mut value, "manifests");
            Ok(Self::Index(Box::new(from_value(value, "index")?)))
        } else {
            empty_if_null(&mut value, "layers");
            Ok(Self::Manifest(Box::new(from_value(value, "manifest")?)))
        }
    }
}

/// Parses an image configuration. Fields that OCI requires and some builders omit get their
/// implied values: no layers, and this machine's platform.
///
/// # Errors
///
/// [`ManifestError::Malformed`].
pub fn parse_config(bytes: &[u8]) -> Result<ImageConfiguration, ManifestError> {
    let mut value: Value =
        serde_json::from_slice(bytes).map_err(|error| ManifestError::Malformed {
            document: "config",
            message: printable(&error.to_string()),
        })?;
    if let Some(config) = value.as_object_mut() {
        let host = Platform::host();
        let mut default = |field: &str, value: Value| {
            let present = config
                .get(field)
                .is_some_and(|old| !old.is_null() && *old != json!(""));
            if !present {
                config.insert(field.to_owned(), value);
            }
        };
        default("os", json!(host.os()));
        default("architecture", json!(host.architecture()));
        default("rootfs", json!({"type": "layers"}));
        if let Some(rootfs) = config.get_mut("rootfs").filter(|rootfs| rootfs.is_object()) {
            empty_if_null(rootfs, "diff_ids");
        }
    }
    from_value(value, "config")
}

fn empty_if_null(object: &mut Value, field: &str) {
    if object[field].is_null() {
        object[field] = json!([]);
    }
}

fn from_value<T: DeserializeOwned>(
    value: Value,
    document: &'static str,
) -> Result<T, ManifestError> {
    serde_json::from_value(value).map_err(|error| ManifestError::Malformed {
        document,
        message: printable(&error.to_string()),
    })
}

/// Returns the platform in an image's config.
pub fn platform_of(config: &ImageConfiguration) -> Platform {
    Platform::new(
        &config.os().to_string(),
        &config.architecture().to_string(),
        config.variant().as_deref().unwrap_or_default(),
    )
}

/// Returns the digest in a descriptor.
///
/// # Errors
///
/// [`ManifestError::Digest`], which names `document` and `of`.
pub fn digest_of(
    descriptor: &Descriptor,
    document: &'static str,
    of: &'static str,
) -> Result<Digest, ManifestError> {
    let text = descriptor.digest().to_string();
    text.parse().map_err(|source| ManifestError::Digest {
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
pub fn config_of(manifest: &ImageManifest) -> Result<&Descriptor, ManifestError> {
    match manifest.config().media_type().to_string().as_str() {
        "application/vnd.oci.image.config.v1+json"
        | "application/vnd.docker.container.image.v1+json"
        // Docker Hub has images from 2016 with these.
        | "application/octet-stream"
        | "" => Ok(manifest.config()),
        other => {
            let kind = manifest.artifact_type().as_ref().map(ToString::to_string);
            Err(ManifestError::Artifact(printable(
                kind.as_deref().unwrap_or(other),
            )))
        }
    }
}

/// A layer, as a manifest and its config together describe it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerSource {
    /// The blob.
    pub blob: Blob,
    /// Digest of the uncompressed archive.
    pub diff_id: Digest,
    /// Other addresses of the blob, for layers that registries need not hold.
    pub urls: Vec<String>,
}

/// Returns the layers of an image, bottom first.
///
/// # Errors
///
/// [`ManifestError`]: manifest and config disagree, a digest is invalid, or a blob exceeds the
/// limit.
pub fn layers_of(
    manifest: &ImageManifest,
    config: &ImageConfiguration,
    limits: &Limits,
) -> Result<Vec<LayerSource>, ManifestError> {
    let diff_ids = config.rootfs().diff_ids();
    if manifest.layers().len() != diff_ids.len() {
        return Err(ManifestError::LayerCount {
            layers: manifest.layers().len(),
            diff_ids: diff_ids.len(),
        });
    }
    let mut layers = Vec::with_capacity(diff_ids.len());
    for (descriptor, diff_id) in manifest.layers().iter().zip(diff_ids) {
        let blob = digest_of(descriptor, "manifest", "layer")?;
        if descriptor.size() > limits.layer_size {
            return Err(ManifestError::LayerSize {
                blob,
                size: descriptor.size(),
                limit: limits.layer_size,
            });
        }
        let media_type = descriptor.media_type().to_string();
        // Only these layers may be elsewhere. For any other layer, a URL in a manifest would only
        // be a way to make a machine send requests to others.
        let foreign = media_type.contains("nondistributable") || media_type.contains(".foreign.");
        layers.push(LayerSource {
            diff_id: diff_id.parse().map_err(|source| ManifestError::Digest {
                document: "config",
                of: "layer",
                source,
            })?,
            urls: descriptor
                .urls()
                .clone()
                .filter(|_| foreign)
                .unwrap_or_default(),
            blob: Blob {
                digest: blob,
                size: descriptor.size(),
                media_type,
            },
        });
    }
    Ok(layers)
}
