//! Indexes and manifests: OCI's, and Docker's of the same structure.

use std::collections::BTreeMap;

use micabox_oci::json::{self, Json};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::ManifestError;
use crate::Platform;
use crate::printable;

/// A document that a manifest URL or an `index.json` refers to.
#[derive(Debug)]
pub enum Document {
    /// An index of images.
    Index(Box<Index>),
    /// The manifest of an image.
    Manifest(Box<Manifest>),
}

/// An index: alternatives of one image, or a list of images.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Index {
    /// Its entries, without those that can't be read.
    pub entries: Vec<Entry>,
    /// What is wrong with the first entry that can't be read.
    pub unreadable: Option<String>,
}

/// The manifest of an image or of another artifact.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manifest {
    /// Its own media type; empty if it has none.
    pub media_type: String,
    /// What the artifact is, if it isn't an image.
    pub artifact_type: String,
    /// The config.
    pub config: Entry,
    /// The layers, bottom first.
    pub layers: Vec<Entry>,
    /// Free text.
    pub annotations: BTreeMap<String, String>,
}

/// A descriptor as the document has it: its digest is not yet parsed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Media type of the document or blob.
    pub media_type: String,
    /// Its digest.
    pub digest: String,
    /// Its size in bytes. The specification requires it; some tools leave it out.
    pub size: Option<u64>,
    /// Addresses outside of the registry.
    pub urls: Vec<String>,
    /// Free text.
    pub annotations: BTreeMap<String, String>,
    /// What the document is, if it isn't an image.
    pub artifact_type: String,
    platform: Option<EntryPlatform>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
struct EntryPlatform {
    os: String,
    architecture: String,
    variant: String,
    #[serde(rename = "os.features")]
    features: Vec<String>,
}

impl Entry {
    /// Returns the platform that the entry claims. One without an architecture claims none; one
    /// without an operating system is for Linux.
    #[must_use]
    pub fn platform(&self) -> Option<Platform> {
        let platform = self.platform.as_ref()?;
        let os = match platform.os.as_str() {
            "" => "linux",
            os => os,
        };
        let known = !platform.architecture.is_empty();
        known.then(|| {
            Platform::new(os, &platform.architecture, &platform.variant)
                .with_features(&platform.features)
        })
    }

    /// Returns an annotation that isn't empty.
    #[must_use]
    pub fn annotation(&self, name: &str) -> Option<&str> {
        let value = self.annotations.get(name)?;
        Some(value.as_str()).filter(|value| !value.is_empty())
    }

    /// Returns what the entry says that it is, if that is no image: a signature, for example.
    #[must_use]
    pub fn artifact(&self) -> Option<&str> {
        let kind = self.artifact_type.as_str();
        Some(kind).filter(|kind| !kind.is_empty() && !super::IMAGE_CONFIGS.contains(kind))
    }
}

/// The fields of both documents.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fields {
    schema_version: i64,
    media_type: String,
    artifact_type: String,
    manifests: Option<Vec<Json>>,
    config: Option<Entry>,
    layers: Option<Vec<Entry>>,
    annotations: BTreeMap<String, String>,
    fs_layers: Option<IgnoredAny>,
}

impl Document {
    /// Parses an index or a manifest. `content_type` is the registry's or the descriptor's type; a
    /// type in the document itself takes precedence.
    ///
    /// # Errors
    ///
    /// [`ManifestError`]: neither of the two, or both at once.
    pub fn parse(bytes: &[u8], content_type: Option<&str>) -> Result<Self, ManifestError> {
        let malformed = |message: &str| ManifestError::Malformed {
            document: "manifest",
            message: printable(message),
        };
        let fields: Fields =
            json::from_slice(bytes).map_err(|error| malformed(&error.to_string()))?;
        // Parameters such as a character set have no meaning for JSON.
        let content_type = content_type
            .and_then(|text| text.split(';').next())
            .map(str::trim);
        let media_type = match fields.media_type.as_str() {
            "" => content_type.unwrap_or_default(),
            own => own,
        };
        if fields.schema_version == 1
            || fields.fs_layers.is_some()
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
                fields.manifests.is_some()
            }
            other => return Err(ManifestError::UnknownType(printable(other))),
        };
        if fields.manifests.is_some() && (fields.layers.is_some() || fields.config.is_some()) {
            return Err(ManifestError::Ambiguous);
        }
        if is_index {
            let entries = fields.manifests.unwrap_or_default();
            return Ok(Self::Index(Box::new(Index::of(entries))));
        }
        Ok(Self::Manifest(Box::new(Manifest {
            config: fields.config.ok_or_else(|| malformed("it has no config"))?,
            media_type: fields.media_type,
            artifact_type: fields.artifact_type,
            layers: fields.layers.unwrap_or_default(),
            annotations: fields.annotations,
        })))
    }
}

impl Index {
    /// Reads the entries, each by itself: a neighbour that is of another shape does no harm.
    fn of(entries: Vec<Json>) -> Self {
        let mut index = Self::default();
        for entry in entries {
            match Entry::deserialize(entry) {
                Ok(entry) => index.entries.push(entry),
                Err(error) => {
                    let problem = printable(&error.to_string());
                    index.unreadable.get_or_insert(problem);
                }
            }
        }
        index
    }
}
