//! The documents of images whose layers are EROFS images: manifest, config, and the index that has such an image beside
//! the one of its archives.

use micabox_oci::json::{self, Json};
use serde_json::json;

use super::erofs::ErofsEntry;
use super::manifest::{MANIFEST_TYPE, config_descriptor};
use crate::identity;
use crate::manifest::erofs as names;
use crate::manifest::{Document, ManifestError};
use crate::{Descriptor, printable};

/// Media type of an index.
pub const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";

/// The documents of an image whose layers are EROFS images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErofsDocuments {
    /// The config.
    pub config: Vec<u8>,
    /// The manifest, [`MANIFEST_TYPE`].
    pub manifest: Vec<u8>,
}

/// Returns the documents of the image with `config` whose layers, bottom first, and merged metadata are `images`.
///
/// # Errors
///
/// [`ManifestError`]: `manifest` or `config` can't be read.
pub fn erofs_documents(
    manifest: &[u8],
    config: &[u8],
    images: &[ErofsEntry],
) -> Result<ErofsDocuments, ManifestError> {
    documents(
        manifest,
        config,
        images,
        Some("merged metadata of the layers"),
    )
}

/// Returns the documents of the image with `config` whose layers, bottom first, are `images`. The history lacks the
/// last one if that is `added`.
pub(super) fn documents(
    manifest: &[u8],
    config: &[u8],
    images: &[ErofsEntry],
    added: Option<&str>,
) -> Result<ErofsDocuments, ManifestError> {
    let malformed = |document| {
        move |error: json::Error| ManifestError::Malformed {
            document,
            message: printable(&error.to_string()),
        }
    };
    let diff_ids: Vec<_> = images.iter().map(|image| image.uncompressed).collect();
    let mut config: Json = json::from_slice(config).map_err(malformed("config"))?;
    let of = |value: &serde_json::Value| Json::of(value).map_err(malformed("config"));
    config.set_field(
        "rootfs",
        of(&json!({"type": "layers", "diff_ids": diff_ids}))?,
    );
    let features = [features(&config), vec![names::FEATURE.to_owned()]].concat();
    config.set_field("os.features", of(&json!(features))?);
    if let Some(added) = added
        && let Json::List(mut history) = config.field("history")
        && !history.is_empty()
    {
        history.push(of(&json!({"created_by": added}))?);
        config.set_field("history", Json::List(history));
    }
    let config = serde_json::to_vec(&config).map_err(malformed("config"))?;

    // Docker's manifests have no annotations.
    let annotations = match Document::parse(manifest, None)? {
        Document::Manifest(parsed) if parsed.media_type != MANIFEST_TYPE => Json::Null,
        _ => json::from_slice::<Json>(manifest)
            .map_err(malformed("manifest"))?
            .field("annotations"),
    };
    let layers: Vec<_> = images.iter().map(ErofsEntry::json).collect();
    let mut manifest = Json::of(&json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": config_descriptor(&config),
        "layers": layers,
    }))
    .map_err(malformed("manifest"))?;
    let mut annotations = match annotations {
        Json::Object(fields) => Json::Object(fields),
        _ => Json::Object(Vec::new()),
    };
    annotations.set_field(names::FORMAT, Json::Text(identity::FORMAT.to_string()));
    annotations.set_field(names::ZSTD, Json::Text(micabox_chunk::zstd_version()));
    manifest.set_field("annotations", annotations);
    Ok(ErofsDocuments {
        config,
        manifest: serde_json::to_vec(&manifest).map_err(malformed("manifest"))?,
    })
}

/// Returns an index of an image's two manifests, the one of archives first: clients that know nothing of EROFS take the
/// first for their platform. Without `archives` it has the other one alone.
///
/// # Errors
///
/// [`ManifestError::Malformed`]: `config` can't be read.
pub fn erofs_index(
    archives: Option<&Descriptor>,
    images: &Descriptor,
    config: &[u8],
) -> Result<Vec<u8>, ManifestError> {
    let malformed = |error: json::Error| ManifestError::Malformed {
        document: "config",
        message: printable(&error.to_string()),
    };
    let config: Json = json::from_slice(config).map_err(malformed)?;
    let mut platform = serde_json::Map::new();
    for name in ["architecture", "os", "os.version", "variant"] {
        if let Json::Text(value) = config.field(name)
            && !value.is_empty()
        {
            platform.insert(name.to_owned(), json!(value));
        }
    }
    let features = features(&config);
    let entry = |of: &Descriptor, feature: Option<&str>| {
        let mut platform = platform.clone();
        let features = features.iter().map(String::as_str).chain(feature);
        let features: Vec<_> = features.collect();
        if !features.is_empty() {
            platform.insert("os.features".to_owned(), json!(features));
        }
        json!({"mediaType": of.media_type, "digest": of.digest, "size": of.size, "platform": platform})
    };
    let archives = archives.map(|archives| entry(archives, None));
    let images = entry(images, Some(names::FEATURE));
    let manifests: Vec<_> = archives.into_iter().chain([images]).collect();
    let index = json!({
        "schemaVersion": 2,
        "mediaType": INDEX_TYPE,
        "manifests": manifests,
    });
    serde_json::to_vec(&index).map_err(malformed)
}

impl ErofsEntry {
    fn json(&self) -> serde_json::Value {
        let annotations = self.annotations.iter();
        let annotations: serde_json::Map<_, _> = annotations
            .map(|(name, value)| ((*name).to_owned(), json!(value)))
            .collect();
        json!({
            "mediaType": self.blob.media_type,
            "digest": self.blob.digest,
            "size": self.blob.size,
            "annotations": annotations,
        })
    }
}

/// Returns what an image asks of its platform, apart from EROFS.
fn features(config: &Json) -> Vec<String> {
    let Json::List(features) = config.field("os.features") else {
        return Vec::new();
    };
    let features = features.into_iter().filter_map(|feature| match feature {
        Json::Text(name) if name != names::FEATURE => Some(name),
        _ => None,
    });
    features.collect()
}
