//! Blobs as manifests name them.

use serde::{Deserialize, Serialize};

use crate::Digest;

/// A blob: what it is, its digest, its size (OCI image specification, `descriptor.md`).
///
/// The order of the fields is that of the JSON that is made of it: the same descriptors always
/// give the same manifest.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// Media type of the blob.
    pub media_type: String,
    /// Digest of the blob.
    pub digest: Digest,
    /// Size of the blob in bytes.
    pub size: u64,
}
