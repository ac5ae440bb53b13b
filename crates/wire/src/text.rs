//! Bytes that are text as a rule: an argument, a variable, a path. In JSON a string, or
//! `{"base64": "..."}` where they are not UTF-8. For `#[serde(with)]`.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Json<'a> {
    Text(Cow<'a, str>),
    Bytes { base64: String },
}

/// Serializes bytes.
///
/// # Errors
/// The serializer's.
pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    let json = match std::str::from_utf8(bytes) {
        Ok(text) => Json::Text(text.into()),
        Err(_) => Json::Bytes {
            base64: STANDARD.encode(bytes),
        },
    };
    json.serialize(serializer)
}

/// Deserializes bytes.
///
/// # Errors
/// If it is neither, and the deserializer's.
pub fn deserialize<'a, D: Deserializer<'a>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    match Json::deserialize(deserializer)? {
        Json::Text(text) => Ok(text.into_owned().into_bytes()),
        Json::Bytes { base64 } => STANDARD.decode(base64).map_err(serde::de::Error::custom),
    }
}
