//! Bytes that are text as a rule: an argument, a variable, a path. In JSON a string, or
//! `{"base64": "..."}` where they are not UTF-8.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes as such a text, for `#[serde(with)]`.
#[derive(Debug)]
pub enum AsText {}

#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
enum Json<'a> {
    Text(Cow<'a, str>),
    Bytes {
        #[cfg_attr(
            feature = "schema",
            schemars(regex(
                pattern = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
            ))
        )]
        base64: String,
    },
}

impl AsText {
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
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for AsText {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Text".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        Json::json_schema(generator)
    }
}
