//! Bundles in a registry: manifests that refer to the image's, with one layer that is the bundle ([specification]).
//!
//! [specification]: https://github.com/sigstore/cosign/blob/main/specs/BUNDLE_SPEC.md

use micabox_oci::{Descriptor, Digest};
use serde::Deserialize;

use crate::bundle::BUNDLE_TYPE;
use crate::strict::Object;

/// Most bundles of an image that are looked at, the last ones, and most bytes of one.
const MOST: usize = 64;
const LARGEST: u64 = 256 << 10;

/// Types of entries in lists that cosign 3.0 makes where the registry makes none: none, or that of the config, which is
/// empty. Whether it is a bundle, the manifest says.
const UNKNOWN: [&str; 2] = ["", "application/vnd.oci.empty.v1+json"];

#[derive(Deserialize)]
struct Index {
    manifests: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
struct Manifest {
    layers: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    media_type: String,
    #[serde(default)]
    artifact_type: String,
    digest: Digest,
    size: u64,
}

impl Entry {
    fn of(value: serde_json::Value) -> Option<Self> {
        let Object(entry) = serde_json::from_value(value).ok()?;
        Some(entry)
    }

    fn descriptor(self) -> Descriptor {
        Descriptor {
            media_type: self.media_type,
            digest: self.digest,
            size: self.size,
        }
    }
}

/// Returns the tag of the list of what refers to a manifest, in a registry that makes no such lists itself
/// ([distribution]).
///
/// [distribution]: https://github.com/opencontainers/distribution-spec/blob/main/spec.md#referrers-tag-schema
#[must_use]
pub fn referrers_tag(manifest: &Digest) -> String {
    format!("sha256-{}", manifest.hex())
}

/// Returns the manifests in a list of what refers to an image that are bundles, or may be: the last 64. What is something
/// else is left out; of a document that is no list, all.
#[must_use]
pub fn bundles_of(index: &[u8]) -> Vec<Descriptor> {
    let Ok(Object(index)) = serde_json::from_slice::<Object<Index>>(index) else {
        return Vec::new();
    };
    let entries = index.manifests.into_iter().rev().filter_map(Entry::of);
    let may_be_one = |kind: &str| kind == BUNDLE_TYPE || UNKNOWN.contains(&kind);
    let bundles = entries.filter(|entry| may_be_one(&entry.artifact_type));
    let mut bundles: Vec<_> = bundles.take(MOST).map(Entry::descriptor).collect();
    bundles.reverse();
    bundles
}

/// Returns the blob that is the bundle of a manifest; none if it has none, or one of over 256 KiB.
#[must_use]
pub fn bundle_of(manifest: &[u8]) -> Option<Descriptor> {
    let Object(manifest): Object<Manifest> = serde_json::from_slice(manifest).ok()?;
    let mut layers = manifest.layers.into_iter().filter_map(Entry::of);
    let bundle = layers.find(|layer| layer.media_type == BUNDLE_TYPE);
    let bundle = bundle.map(Entry::descriptor);
    bundle.filter(|bundle| bundle.size <= LARGEST)
}
