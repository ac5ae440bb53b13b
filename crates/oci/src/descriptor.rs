//! Descriptors: how manifests name blobs.

use serde::{Deserialize, Serialize};

use crate::Digest;

/// A blob's media type, digest and size (OCI image specification, `descriptor.md`).
///
/// The fields are serialized in this order, so the same descriptors always give the same manifest.
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
