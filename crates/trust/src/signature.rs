//! Signatures as cosign attaches them: a manifest under a tag that has the digest of the image's, with a layer for each
//! signature.

use std::collections::HashMap;

use micabox_oci::{Descriptor, Digest};
use serde::Deserialize;

use crate::strict::Object;

/// Media type of a layer that is what was signed.
pub const MEDIA_TYPE: &str = "application/vnd.dev.cosign.simplesigning.v1+json";

/// Most signatures of an image that are looked at, the last ones, and most bytes of what one of them signs.
const MOST: usize = 64;
const LARGEST: u64 = 64 << 10;

const SIGNATURE: &str = "dev.cosignproject.cosign/signature";
const CERTIFICATE: &str = "dev.sigstore.cosign/certificate";
const CHAIN: &str = "dev.sigstore.cosign/chain";
const BUNDLE: &str = "dev.sigstore.cosign/bundle";

/// A signature, none of which is trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// What is signed.
    pub payload: Vec<u8>,
    /// The signature in base64.
    pub signature: String,
    /// The certificate of who signed, in PEM.
    pub certificate: Option<String>,
    /// Certificates between that and the root, in PEM.
    pub chain: Option<String>,
    /// The log's note of the signature, in JSON.
    pub bundle: Option<String>,
}

/// Why a manifest of signatures can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the manifest of its signatures can't be read: {0}")]
pub struct SignatureError(String);

/// Returns the tag under which a manifest's signatures are, in the same repository.
#[must_use]
pub fn attached_tag(manifest: &Digest) -> String {
    format!("sha256-{}.sig", manifest.hex())
}

#[derive(Deserialize)]
struct Manifest {
    layers: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Layer {
    media_type: String,
    digest: Digest,
    size: u64,
    #[serde(default)]
    annotations: HashMap<String, String>,
}

/// Returns the signatures that a manifest lists, each without its payload, and the blob that this is: the last 64, as
/// cosign adds new ones at the end, of payloads of at most 64 KiB. What is no signature is left out.
///
/// # Errors
/// It is no manifest.
pub fn signatures_of(manifest: &[u8]) -> Result<Vec<(Descriptor, Signature)>, SignatureError> {
    let manifest: Result<Object<Manifest>, _> = serde_json::from_slice(manifest);
    let Object(manifest) =
        manifest.map_err(|error| SignatureError(micabox_oci::printable(&error.to_string())))?;
    let signature = |layer: serde_json::Value| {
        let Object(mut layer): Object<Layer> = serde_json::from_value(layer).ok()?;
        let mut annotation = |name| layer.annotations.remove(name);
        let signature = Signature {
            payload: Vec::new(),
            signature: annotation(SIGNATURE)?,
            certificate: annotation(CERTIFICATE),
            chain: annotation(CHAIN),
            bundle: annotation(BUNDLE),
        };
        let payload = Descriptor {
            media_type: layer.media_type,
            digest: layer.digest,
            size: layer.size,
        };
        (payload.media_type == MEDIA_TYPE && payload.size <= LARGEST)
            .then_some((payload, signature))
    };
    let signatures = manifest.layers.into_iter().rev().filter_map(signature);
    let mut signatures: Vec<_> = signatures.take(MOST).collect();
    signatures.reverse();
    Ok(signatures)
}
