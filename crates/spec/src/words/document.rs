//! Words in documents: the text of a JSON string, for one.

use std::fmt::Display;
use std::str::FromStr;

use serde::de::Error;
use serde::{Deserialize, Deserializer};

use super::{
    Capabilities, Cpus, Exposed, Hostname, Limit, Memory, OrDefault, OrNone, Period, Processes,
    Published, Resolver, SecurityOption, Signal, Size, TmpfsWord,
};

/// A word of a type that has another form in documents, or none.
struct Written<T>(T);

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for Written<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map(Self).map_err(D::Error::custom)
    }
}

/// Deserializes a word, where its type has another form in documents.
///
/// # Errors
/// If it says nothing.
pub fn optional<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    let word = Option::<Written<T>>::deserialize(from)?;
    Ok(word.map(|Written(word)| word))
}

/// Deserializes words, where their type has another form in documents.
///
/// # Errors
/// If one of them says nothing.
pub fn all<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(
    from: D,
) -> Result<Vec<T>, D::Error> {
    let words = Vec::<Written<T>>::deserialize(from)?;
    Ok(words.into_iter().map(|Written(word)| word).collect())
}

/// Has types be in documents as they are written.
macro_rules! written {
    ($($word:ty),* $(,)?) => {$(
        impl<'de> Deserialize<'de> for $word {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                Written::deserialize(from).map(|Written(word)| word)
            }
        }
    )*};
}

written!(
    Capabilities,
    Cpus,
    Exposed,
    Hostname,
    Limit,
    Memory,
    Period,
    Processes,
    Published,
    Resolver,
    SecurityOption,
    Signal,
    Size,
    TmpfsWord,
);

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for OrDefault<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Written::deserialize(from).map(|Written(word)| word)
    }
}

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for OrNone<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Written::deserialize(from).map(|Written(word)| word)
    }
}
