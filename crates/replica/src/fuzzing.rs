//! Entry points for `fuzz/` to the parsers of requests.

use std::ops::Range;

use crate::blob;
use crate::name::Name;
use crate::path::Asked;

/// Returns the reference that a path and the registry of a mirror's client mean, if it is a tag's.
pub fn reference(path: &str, registry: Option<&str>, default: &str) -> Option<String> {
    let Ok(Asked::Tag(path, tag)) = Asked::of(path) else {
        return None;
    };
    let name = Name {
        registry: registry.map(str::to_owned),
        path: path.to_owned(),
    };
    let reference = name.reference(tag, default).ok()?;
    Some(reference.to_string())
}

/// Parses `Range`, of a blob of so many bytes; `None` if it is refused, or stands for all of it.
pub fn range(header: &str, size: u64) -> Option<Range<u64>> {
    blob::range(header, size).unwrap_or_default()
}
