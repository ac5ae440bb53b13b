//! What is signed: the digest of a manifest, and its name ([simple signing]). Cosign has the same with another type.
//!
//! [simple signing]: https://github.com/containers/image/blob/main/docs/containers-signature.5.md

use micabox_oci::Digest;
use serde::Deserialize;
use serde_json::Value;

use crate::identity::SignedName;
use crate::strict::{Object, Once, object};

/// The type of all statements that cosign signs.
pub(crate) const COSIGN: &str = "cosign container image signature";
/// The type of those that GnuPG signs.
pub(crate) const SIMPLE_SIGNING: &str = "atomic container signature";

/// A signed statement, only read once its signature is good.
#[derive(Debug)]
pub(crate) struct Payload {
    pub(crate) manifest: Digest,
    pub(crate) name: SignedName,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(deserialize_with = "object")]
    critical: Critical,
    optional: Option<Once<Value>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Critical {
    r#type: String,
    #[serde(deserialize_with = "object")]
    image: Image,
    #[serde(deserialize_with = "object")]
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
    /// Parses a statement of this type.
    pub(crate) fn parse(bytes: &[u8], wanted: &str) -> Result<Self, String> {
        let none = |problem: &str| {
            let problem = micabox_oci::printable(problem);
            format!("what is signed is no statement about an image: {problem}")
        };
        let document: Result<Object<Document>, _> = serde_json::from_slice(bytes);
        let Object(document) = document.map_err(|error| none(&error.to_string()))?;
        if document.optional.is_none() && wanted == SIMPLE_SIGNING {
            return Err(none("it has nothing optional"));
        }
        let optional = document.optional.unwrap_or_default().0;
        let is_sound = optional.iter().all(|(name, value)| match &**name {
            "creator" => value.is_string(),
            "timestamp" => is_whole(value),
            _ => true,
        });
        if !is_sound {
            return Err(none("its creator or timestamp is none"));
        }
        let critical = document.critical;
        if critical.r#type != wanted {
            let kind = micabox_oci::printable(&critical.r#type);
            return Err(format!("what is signed is of the kind `{kind}`"));
        }
        Ok(Self {
            manifest: critical.image.docker_manifest_digest,
            name: critical.identity.docker_reference,
        })
    }
}

/// Returns whether a number is a whole one, however it is written.
fn is_whole(value: &Value) -> bool {
    let is_whole = |number: f64| number.fract() == 0.0 && number.abs() < 9e18;
    value.is_i64() || value.as_f64().is_some_and(is_whole)
}
