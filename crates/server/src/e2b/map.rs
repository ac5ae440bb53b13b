//! Maps of text in JSON, in which each name is there once: of two values, a client would not know which counts.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserializer, Error, MapAccess, Visitor};

/// Most entries of a map that a client sends.
const ENTRIES: usize = 1000;

/// Reads a map; null is an empty one.
pub fn unique<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, String>, D::Error> {
    from.deserialize_any(Unique)
}

struct Unique;

impl<'de> Visitor<'de> for Unique {
    type Value = BTreeMap<String, String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of text")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(BTreeMap::new())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut all = BTreeMap::new();
        while let Some((name, value)) = map.next_entry::<String, String>()? {
            if all.contains_key(&name) {
                return Err(A::Error::custom(format!("`{name}` is there twice")));
            }
            if all.len() == ENTRIES {
                let message = format!("a map may have {ENTRIES} entries");
                return Err(A::Error::custom(message));
            }
            all.insert(name, value);
        }
        Ok(all)
    }
}
