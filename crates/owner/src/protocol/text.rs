//! Strings that need not be UTF-8.

use serde::{Deserialize, Serialize};

/// Bytes that are text as a rule: an argument, a variable, a path. In JSON a string, or
/// `{"base64": "..."}` where they are not UTF-8.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(inline))]
#[serde(transparent)]
pub struct Text(#[serde(with = "micabox_wire::AsText")] pub Vec<u8>);

impl Text {
    /// Returns whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}
