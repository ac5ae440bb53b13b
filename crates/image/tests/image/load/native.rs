//! Layers that are EROFS images, as the draft specification's manifests describe them, and layers
//! that are marked as something else.

use std::fs;
use std::process::Command;

use micabox_image::{Digest, Platform};
use micabox_testing::run;
use serde_json::{Value, json};

use super::Loader;
use super::bundle::{Bundle, REF_NAME, layout, named};
use crate::image::{TestImage, TestLayer};

const RAW: &str = "application/vnd.erofs";
const ZSTD: &str = "application/vnd.erofs+zstd";
const ROLE: &str = "org.erofs.role";
const UNCOMPRESSED: &str = "org.erofs.uncompressed-digest";

/// Makes an image with one file by `mkfs.erofs`.
fn erofs(name: &str) -> TestLayer {
    let directory = tempfile::tempdir().unwrap();
    let tree = directory.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join(name), name).unwrap();
    let image = directory.path().join("image");
    run(Command::new("mkfs.erofs").arg("-T0").args([&image, &tree]));
    let blob = fs::read(image).unwrap();
    TestLayer {
        diff_id: Digest::of(&blob),
        blob,
        media_type: RAW,
    }
}

fn compressed(layer: &TestLayer) -> TestLayer {
    TestLayer {
        blob: zstd::encode_all(&layer.blob[..], 3).unwrap(),
        diff_id: layer.diff_id,
        media_type: ZSTD,
    }
}

/// Makes an image of layers with annotations. The config has these diff IDs, or no `rootfs`.
fn image(layers: Vec<(TestLayer, Value)>, diff_ids: Option<Vec<Digest>>) -> Bundle {
    let (layers, annotations): (Vec<_>, Vec<_>) = layers.into_iter().unzip();
    let mut config = json!({"architecture": Platform::host().architecture(), "os": "linux"});
    if let Some(diff_ids) = diff_ids {
        config["rootfs"] = json!({"type": "layers", "diff_ids": diff_ids});
    }
    let mut image = TestImage::with_config(layers, &config);
    image.edit_manifest(|manifest| {
        for (number, annotations) in annotations.into_iter().enumerate() {
            manifest["layers"][number]["annotations"] = annotations;
        }
    });
    layout(&[named(&image, REF_NAME, "x:1")], &[&image])
}

/// Loads an image and returns the diff IDs of its layers, or the error.
fn load(bundle: &Bundle) -> Result<Vec<Digest>, String> {
    let directory = tempfile::tempdir().unwrap();
    let path = bundle.write_archive(directory.path());
    let loader = Loader::new();
    let loaded = loader.try_load(&path, None).map_err(|e| e.to_string())?;
    // What was published is found again.
    let image = loader.store.image("x:1").unwrap();
    assert_eq!(image.manifest_digest, loaded[0].manifest_digest);
    Ok(image.layers.iter().map(|layer| layer.diff_id).collect())
}

#[test]
fn diff_ids_of_native_layers_need_not_be_in_the_config() {
    let layer = erofs("hello");
    let (raw, packed) = (layer.clone(), compressed(&layer));
    let own = vec![layer.diff_id];
    let other = vec![Digest::of(b"another")];
    let noted = json!({UNCOMPRESSED: layer.diff_id});
    for (layer, annotations, diff_ids) in [
        (&raw, json!(null), Some(own.clone())),
        (&raw, json!(null), None),
        (&raw, json!(null), Some(Vec::new())),
        (&raw, noted.clone(), None),
        (&packed, json!(null), Some(own.clone())),
        (&packed, noted.clone(), None),
        (&packed, noted.clone(), Some(Vec::new())),
        // The annotation is about the blob, the config about the image.
        (&packed, noted, Some(other)),
    ] {
        let bundle = image(vec![(layer.clone(), annotations)], diff_ids);
        assert_eq!(load(&bundle), Ok(own.clone()));
    }
    let error = load(&image(vec![(packed.clone(), json!(null))], None)).unwrap_err();
    assert!(error.contains(UNCOMPRESSED), "{error}");
    let lie = json!({UNCOMPRESSED: Digest::of(b"a lie")});
    let error = load(&image(vec![(packed, lie)], None)).unwrap_err();
    assert!(error.contains("uncompressed it has the diff ID"), "{error}");
    // Archives have none of this.
    let archive = TestLayer::noise(1, 10);
    let noted = json!({UNCOMPRESSED: archive.diff_id});
    let error = load(&image(vec![(archive, noted)], None)).unwrap_err();
    assert!(error.contains("1 layers, its config 0"), "{error}");
}

#[test]
fn a_map_of_chunks_is_no_layer_of_the_root() {
    let layer = erofs("hello");
    let chunks = TestLayer {
        blob: b"\xcd\xe4\xec\x67\x01".to_vec(),
        diff_id: Digest::of(b"\xcd\xe4\xec\x67\x01"),
        media_type: "application/vnd.erofs.chunk-index.v1",
    };
    let own = vec![layer.diff_id];
    for diff_ids in [Some(vec![layer.diff_id, chunks.diff_id]), None] {
        let layers = vec![(layer.clone(), json!(null)), (chunks.clone(), json!(null))];
        assert_eq!(load(&image(layers, diff_ids)), Ok(own.clone()));
    }
}

#[test]
fn a_layer_with_another_role_than_the_next_of_a_stack_is_refused_by_it() {
    let (below, above) = (erofs("below"), erofs("above"));
    let both = vec![below.diff_id, above.diff_id];
    let with = |layer: &TestLayer, annotations: Value| {
        let layers = vec![(layer.clone(), annotations), (above.clone(), json!(null))];
        load(&image(layers, Some(vec![layer.diff_id, above.diff_id])))
    };
    for annotations in [
        json!(null),
        json!({ROLE: "overlay-lower"}),
        json!({ROLE: ""}),
        json!({"org.erofs.unknown": "x", "org.erofs.dmverity.root_digest": "00"}),
    ] {
        assert_eq!(with(&below, annotations), Ok(both.clone()));
    }
    for role in ["device", "overlay-data", "Device", "martian"] {
        let error = with(&below, json!({ROLE: role})).unwrap_err();
        assert!(error.contains(&format!("the role `{role}`")), "{error}");
        // Also of a layer that is an archive, as devices may be.
        let error = with(&TestLayer::noise(1, 10), json!({ROLE: role})).unwrap_err();
        assert!(error.contains(&format!("the role `{role}`")), "{error}");
    }
    for (mark, name) in [
        ("containerd.io/snapshot/overlaybd/blob-digest", "overlaybd"),
        ("containerd.io/snapshot/nydus-bootstrap", "nydus"),
        ("org.opencontainers.image.enc.keys.jwe", "encrypted"),
    ] {
        let error = with(&TestLayer::noise(1, 10), json!({mark: "true"})).unwrap_err();
        assert!(error.contains(name) && error.contains(mark), "{error}");
    }
}
