//! What is signed: the digest of a manifest, and its name ([simple signing], as cosign has it).
//!
//! [simple signing]: https://github.com/containers/image/blob/main/docs/containers-signature.5.md

use micabox_oci::Digest;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::identity::SignedName;

/// The kind of all payloads of cosign.
const TYPE: &str = "cosign container image signature";

/// A signed statement, only read once its signature is good.
#[derive(Debug)]
pub(crate) struct Payload {
    pub(crate) manifest: Digest,
    pub(crate) name: SignedName,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    critical: Critical,
    #[serde(rename = "optional")]
    _optional: IgnoredAny,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Critical {
    r#type: String,
    image: Image,
    identity: Identity,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Image {
    docker_manifest_digest: Digest,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Identity {
    docker_reference: SignedName,
}

impl Payload {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let document: Document = serde_json::from_slice(bytes)
            .map_err(|error| format!("what is signed is no statement about an image: {error}"))?;
        let critical = document.critical;
        if critical.r#type != TYPE {
            let kind = micabox_oci::printable(&critical.r#type);
            return Err(format!("what is signed is of the kind `{kind}`"));
        }
        Ok(Self {
            manifest: critical.image.docker_manifest_digest,
            name: critical.identity.docker_reference,
        })
    }
}
