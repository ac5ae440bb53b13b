//! Manifests that lie about parts of layers.

use std::sync::Arc;

use micabox_image::Digest;
use micabox_image::progress::Silent;
use micabox_transfer::complete_blocking;
use serde_json::{Value, json};

use super::{converted, lazy};
use crate::erofs::{reference, served};

#[test]
fn a_manifest_that_lies_about_parts_gives_no_image_or_a_whole_one() {
    type Change = fn(&mut Value);
    fn set(manifest: &mut Value, name: &str, value: Value) {
        for layer in manifest["layers"].as_array_mut().unwrap() {
            layer["annotations"][name] = value.clone();
        }
    }
    let refused: [(Change, &str); 5] = [
        (
            |m| {
                m["layers"][3]["annotations"]["org.erofs.chunk-index.digest"] =
                    json!(Digest::of(b""));
            },
            "its chunk index has the digest",
        ),
        (
            |m| {
                let range = &mut m["layers"][3]["annotations"]["org.erofs.chunk-index.range"];
                let (start, end) = range.as_str().unwrap().split_once(':').unwrap();
                let start: u64 = start.parse().unwrap();
                *range = json!(format!("{}:{end}", start - 4));
            },
            "its chunk index has the digest",
        ),
        (
            |m| m["layers"][3]["annotations"]["org.micabox.metadata"] = json!("4096"),
            "another place of its metadata",
        ),
        (
            |m| {
                let length = &mut m["layers"][3]["annotations"]["org.erofs.dmverity.hash_offset"];
                let number: u64 = length.as_str().unwrap().parse().unwrap();
                *length = json!((number + 4096).to_string());
            },
            "EROFS image",
        ),
        (
            |m| m["layers"][3]["annotations"]["org.micabox.archive"] = json!(Digest::of(b"")),
            "its UUID is not that of the archive",
        ),
    ];
    let converted = converted();
    for (change, part) in refused {
        let (_registry, name) = served(&converted, change);
        let puller = lazy();
        let said = puller.try_pull(&name).unwrap_err().to_string();
        assert!(said.contains(part), "{part}: {said}");
        assert_eq!(puller.store.images().unwrap(), []);
        assert_eq!(puller.store.fsck(false).unwrap().findings, []);
    }
    // What is not said, or not in words of this version.
    for (name, value) in [
        ("org.micabox.metadata", json!("x")),
        ("org.micabox.metadata", json!("4095")),
        ("org.micabox.metadata", Value::Null),
        ("org.micabox.checksum", json!("sha256:00")),
        ("org.erofs.chunk-index.range", json!("7")),
        (
            "org.erofs.chunk-index.range",
            json!("18446744073709551615:5"),
        ),
        ("org.erofs.chunk-index.mediaType", json!("another")),
        (
            "org.erofs.dmverity.hash_offset",
            json!("18446744073709551615"),
        ),
    ] {
        let (_registry, reference) = served(&converted, |m| set(m, name, value.clone()));
        assert!(!lazy().pull(&reference).is_lazy(), "{name}: {value}");
    }
}

#[test]
fn a_checksum_that_lies_is_found_when_the_layer_is_whole() {
    let converted = converted();
    let (_registry, name) = served(&converted, |manifest| {
        let of =
            |layer: usize| manifest["layers"][layer]["annotations"]["org.micabox.checksum"].clone();
        let other = of(1);
        manifest["layers"][3]["annotations"]["org.micabox.checksum"] = other;
    });
    let mut puller = lazy();
    let image = puller.pull(&name);
    assert!(image.is_lazy());
    // All of it can be fetched, and it is not taken for what it should be.
    let completed = complete_blocking(&image, &puller.options, Arc::new(Silent));
    let said = completed.unwrap_err().to_string();
    assert!(said.contains("has the checksum blake3:"), "{said}");
    assert!(puller.store.is_lazy(&image.layers[3]));
    assert!(!puller.store.is_whole(&image.layers[3]));
    assert_eq!(puller.store.fsck(false).unwrap().findings, []);
    // It is of no other image: with the right one, the layer is fetched.
    let right = puller.pull(&reference(&converted.registry, "app:1"));
    assert_ne!(right.manifest_digest, image.manifest_digest);
    let layer = &right.layers[3];
    assert!(puller.store.is_whole(layer));
    assert!(puller.store.image(&name.to_string()).is_err());
    // The image that lies becomes one that says the truth, or none: its layer is here now.
    puller.options.lazy = false;
    let again = puller.pull(&name);
    assert_eq!(again.layers[3].record, layer.record);
    assert_eq!(puller.store.fsck(false).unwrap().findings, []);
}
