//! Paths among the options of requests.

use std::path::PathBuf;

use serde::{Deserialize, Deserializer};

/// Reads a path, which is not empty.
pub(super) fn one<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PathBuf>, D::Error> {
    let path = Option::<PathBuf>::deserialize(from)?;
    path.map(not_empty).transpose()
}

/// Reads paths, of which none is empty.
pub(super) fn some<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<PathBuf>, D::Error> {
    let paths = Vec::<PathBuf>::deserialize(from)?;
    paths.into_iter().map(not_empty).collect()
}

fn not_empty<E: serde::de::Error>(path: PathBuf) -> Result<PathBuf, E> {
    if path.as_os_str().is_empty() {
        return Err(E::custom("expected a path"));
    }
    Ok(path)
}
