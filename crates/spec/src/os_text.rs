//! Words of the operating system in JSON.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes of an argument or a path: text as a rule, which JSON can hold as a string.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Text {
    Utf8(String),
    Bytes(Vec<u8>),
}

impl From<&OsString> for Text {
    fn from(text: &OsString) -> Self {
        match text.to_str() {
            Some(text) => Self::Utf8(text.to_owned()),
            None => Self::Bytes(text.as_bytes().to_vec()),
        }
    }
}

impl From<Text> for OsString {
    fn from(text: Text) -> Self {
        match text {
            Text::Utf8(text) => text.into(),
            Text::Bytes(bytes) => Self::from_vec(bytes),
        }
    }
}

pub(crate) mod text {
    use super::{Deserialize, Deserializer, OsString, Serialize, Serializer, Text};

    pub(crate) fn serialize<S: Serializer>(text: &OsString, to: S) -> Result<S::Ok, S::Error> {
        Text::from(text).serialize(to)
    }

    pub(crate) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<OsString, D::Error> {
        Ok(Text::deserialize(from)?.into())
    }
}

pub(crate) mod texts {
    use super::{Deserialize, Deserializer, OsString, Serializer, Text};

    pub(crate) fn serialize<S: Serializer>(texts: &[OsString], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(texts.iter().map(Text::from))
    }

    pub(crate) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Vec<OsString>, D::Error> {
        let texts = Vec::<Text>::deserialize(from)?.into_iter();
        Ok(texts.map(OsString::from).collect())
    }
}

pub(crate) mod pairs {
    use super::{Deserialize, Deserializer, OsString, Serializer, Text};

    type Pair = (OsString, OsString);

    pub(crate) fn serialize<S: Serializer>(pairs: &[Pair], to: S) -> Result<S::Ok, S::Error> {
        let pairs = pairs.iter();
        to.collect_seq(pairs.map(|(name, value)| (Text::from(name), Text::from(value))))
    }

    pub(crate) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Vec<Pair>, D::Error> {
        let pairs = Vec::<(Text, Text)>::deserialize(from)?.into_iter();
        Ok(pairs
            .map(|(name, value)| (name.into(), value.into()))
            .collect())
    }
}
