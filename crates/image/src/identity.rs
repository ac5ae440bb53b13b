//! UUIDs of the filesystem images we make. They are derived from an image's contents, so that the
//! guest identifies devices by their superblocks, whatever their names and order.

use crate::Trim;
use micabox_oci::{Digest, Hasher};

/// The version of everything that is kept of a layer or an image besides its own bytes: the
/// writer's layout, the markers, the merge, the recipe. Raised with any change to them, so that
/// images and layers of different versions are never combined.
pub const FORMAT: u32 = 3;

/// Returns the UUID of a layer's image.
pub fn layer_uuid(diff_id: &Digest) -> [u8; 16] {
    uuid("layer", [diff_id])
}

/// Returns the UUID of the merged image over these layers, bottom first.
pub fn fsmeta_uuid<'a>(diff_ids: impl IntoIterator<Item = &'a Digest>) -> [u8; 16] {
    uuid("fsmeta", diff_ids)
}

/// Returns the UUID of the merged image over these layers, bottom first, without what `trim` names.
pub fn trimmed_uuid<'a>(diff_ids: impl IntoIterator<Item = &'a Digest>, trim: &Trim) -> [u8; 16] {
    let trim = trim.digest();
    let mut digests: Vec<&Digest> = diff_ids.into_iter().collect();
    digests.push(&trim);
    uuid("trimmed", digests)
}

/// Returns the UUID of the fixup directly above the last of these layers, bottom first.
pub fn fixup_uuid<'a>(diff_ids: impl IntoIterator<Item = &'a Digest>) -> [u8; 16] {
    uuid("fixup", diff_ids)
}

/// Returns the UUID of the same fixup with its files' contents.
pub fn whole_fixup_uuid<'a>(diff_ids: impl IntoIterator<Item = &'a Digest>) -> [u8; 16] {
    uuid("whole fixup", diff_ids)
}

/// Returns the UUID of a layer's image without whiteouts, for the bottom of a stack.
pub fn bottom_uuid(diff_id: &Digest) -> [u8; 16] {
    uuid("bottom", [diff_id])
}

fn uuid<'a>(kind: &str, diff_ids: impl IntoIterator<Item = &'a Digest>) -> [u8; 16] {
    let mut hasher = Hasher::new();
    // The label ends with a NUL and all digests have the same length, so the input is unambiguous.
    hasher.update(format!("micabox {kind} {FORMAT}\0").as_bytes());
    for diff_id in diff_ids {
        hasher.update(diff_id.as_bytes());
    }
    let digest = hasher.finish();
    std::array::from_fn(|i| digest.as_bytes()[i])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_image_has_a_uuid_of_its_own() {
        let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
        let uuids = [
            layer_uuid(&a),
            layer_uuid(&b),
            fsmeta_uuid([&a]),
            fsmeta_uuid([&a, &b]),
            fsmeta_uuid([&b, &a]),
            fixup_uuid([&a, &b]),
            whole_fixup_uuid([&a, &b]),
            bottom_uuid(&a),
            trimmed_uuid([&a, &b], &"/a".parse().unwrap()),
            trimmed_uuid([&a, &b], &"/b".parse().unwrap()),
        ];
        for (i, uuid) in uuids.iter().enumerate() {
            assert!(!uuids[..i].contains(uuid));
        }
        assert_eq!(layer_uuid(&a), layer_uuid(&a));
    }
}
