//! Requests of clients of `mica store serve`: paths, the registry that is mirrored, ranges.

use micabox_replica::fuzzing::{range, reference};

/// The registry of names that say none.
const DEFAULT: &str = "docker.io";

/// Parses what the first byte says: a range, a path, or a path and a registry, with a zero byte between them.
pub fn request(bytes: &[u8]) {
    let Some((kind, rest)) = bytes.split_first() else {
        return;
    };
    let Ok(text) = str::from_utf8(rest) else {
        return;
    };
    match kind % 3 {
        0 => part(text),
        1 => name(text, None),
        _ => {
            if let Some((path, registry)) = text.split_once('\0') {
                name(path, Some(registry));
            }
        }
    }
}

/// Checks that a range is within the blob, and never empty.
fn part(header: &str) {
    for size in [0, 1, 1000, u64::MAX] {
        if let Some(part) = range(header, size) {
            assert!(
                part.start < part.end && part.end <= size,
                "{header}: {part:?} of {size}"
            );
        }
    }
}

/// Checks that a name is of the registry that was said, and of nothing but a tag.
fn name(path: &str, registry: Option<&str>) {
    let Some(found) = reference(path, registry, DEFAULT) else {
        return;
    };
    let (of, rest) = found.split_once('/').expect("a registry");
    match registry {
        Some(registry) => assert_eq!(of, registry, "{path}"),
        None => {
            let is_said = path.starts_with(&format!("/v2/{of}/"));
            assert!(is_said || of == DEFAULT, "{path}: {found}");
        }
    }
    // Two dots are the parent as a part of the path only: a tag may have them anywhere but at its start.
    let is_within = rest.split('/').all(|part| part != "..");
    assert!(is_within && !rest.contains('@'), "{path}: {found}");
    let tag = path.rsplit('/').next().expect("a tag");
    assert!(rest.ends_with(&format!(":{tag}")), "{path}: {found}");
}

/// Requests that clients send.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let texts = [
        ("range", "\0bytes=7-11"),
        ("end", "\0bytes=-5"),
        ("hub", "\x01/v2/library/box/manifests/1"),
        ("other", "\x01/v2/ghcr.io/team/box/manifests/latest"),
        ("dots", "\x01/v2/ghcr.io/team/box/manifests/1..2"),
        ("digest", "\x01/v2/a@sha256/manifests/00"),
        ("mirror", "\x02/v2/team/box/manifests/1\0localhost:5000"),
    ];
    texts
        .map(|(name, text)| (name, text.as_bytes().to_vec()))
        .into()
}
