//! Archives with parts that are no images, or none that can be used here.

use micabox_image::Digest;
use serde_json::{Value, json};

use super::bundle::{Bundle, REF_NAME, blob, docker_save, layout, named, plain_layer};
use super::{Loader, assert_is};
use crate::image::{TestImage, TestLayer, index};

const EMPTY: &str = "application/vnd.oci.empty.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";

/// Makes an artifact that is about an image. Its only layer has this media type.
fn artifact(config_type: &str, layer_type: &'static str, artifact_type: Option<&str>) -> TestImage {
    let layer = TestLayer {
        blob: b"{}".to_vec(),
        diff_id: Digest::of(b"{}"),
        media_type: layer_type,
    };
    // cosign's config has the fields of an image's, and they are empty.
    let config = json!({"architecture": "", "os": "", "config": {},
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id]}});
    let mut artifact = TestImage::with_config(vec![layer], &config);
    artifact.edit_manifest(|manifest| {
        manifest["config"]["mediaType"] = json!(config_type);
        if let Some(kind) = artifact_type {
            manifest["artifactType"] = json!(kind);
        }
    });
    artifact
}

fn artifacts() -> [TestImage; 4] {
    const SIGNATURE: &str = "application/vnd.example.signature";
    [
        artifact(EMPTY, "application/json", Some(SIGNATURE)),
        artifact(&format!("{CONFIG}+x"), "application/json", None),
        artifact(
            CONFIG,
            "application/vnd.dev.cosign.simplesigning.v1+json",
            None,
        ),
        artifact(CONFIG, "application/vnd.in-toto+json", Some(SIGNATURE)),
    ]
}

/// Asserts that only the image is loaded from an archive and a directory; returns the notices.
#[track_caller]
fn assert_loads(bundle: &Bundle, image: &TestImage) -> String {
    let directory = tempfile::tempdir().unwrap();
    let mut notices = String::new();
    for path in [
        bundle.write_archive(directory.path()),
        bundle.write_directory(directory.path()),
    ] {
        let loader = Loader::new();
        let loaded = loader.load(&path, None);
        assert_eq!(loaded.len(), 1);
        assert_is(&loaded[0], image);
        notices = loader.notices();
    }
    notices
}

#[test]
fn artifacts_beside_an_image_are_left_out_with_a_notice() {
    let image = TestImage::small();
    let own = named(&image, REF_NAME, "x:1");
    for artifact in artifacts() {
        for entry in [
            artifact.entry(None),
            named(&artifact, REF_NAME, "sha256-1.sig"),
            named(&artifact, "kind", "dev.cosignproject.cosign/sigs"),
        ] {
            for entries in [[own.clone(), entry.clone()], [entry.clone(), own.clone()]] {
                let notices = assert_loads(&layout(&entries, &[&image, &artifact]), &image);
                assert!(notices.contains("left out"), "{notices}");
            }
        }
        // Alone it is what the error is about.
        let directory = tempfile::tempdir().unwrap();
        let alone = layout(&[named(&artifact, REF_NAME, "x:1")], &[&artifact]);
        Loader::new().refusal(&alone.write_archive(directory.path()));
    }
}

#[test]
fn members_of_an_index_that_are_no_images_are_passed_over() {
    let image = TestImage::small();
    let unknown = b"<svg/>".to_vec();
    let member = |kind: &str, bytes: &[u8]| json!({"mediaType": kind, "digest": Digest::of(bytes), "size": bytes.len()});
    let mut odd: Vec<Value> = artifacts().iter().map(|one| one.entry(None)).collect();
    odd.extend([
        member("image/svg+xml", &unknown),
        // Not in the archive at all.
        member("application/vnd.oci.image.manifest.v1+json", b"gone"),
        json!({"mediaType": 3}),
        json!("x"),
        json!({"mediaType": "x", "digest": "sha512:00", "size": 1}),
    ]);
    let [a, b, c, d] = artifacts();
    for odd in odd {
        let nested = index(&[odd, image.entry(None)]);
        let mut entry = member("application/vnd.oci.image.index.v1+json", &nested);
        entry["annotations"] = json!({REF_NAME: "x:1"});
        let bundle = layout(&[entry], &[&image, &a, &b, &c, &d])
            .with(&blob(&Digest::of(&nested)), nested)
            .with(&blob(&Digest::of(&unknown)), unknown.clone());
        assert_loads(&bundle, &image);
    }
}

#[test]
fn images_for_other_machines_are_left_out_beside_one_for_this() {
    let image = TestImage::small();
    let elsewhere = "linux/s390x".parse().unwrap();
    let other = TestImage::for_platform(vec![TestLayer::noise(9, 10)], &elsewhere);
    let entries = [
        named(&other, REF_NAME, "other:1"),
        named(&image, REF_NAME, "x:1"),
    ];
    let notices = assert_loads(&layout(&entries, &[&image, &other]), &image);
    assert!(
        notices.contains("left out other:1") && notices.contains("linux/s390x"),
        "{notices}"
    );
    let plain = TestImage::new(vec![plain_layer("a")]);
    let other = TestImage::for_platform(vec![plain_layer("b")], &elsewhere);
    let saved = docker_save(&[(&other, &["other:1"]), (&plain, &["x:1"])]);
    let notices = assert_loads(&saved, &plain);
    assert!(notices.contains("left out other:1"), "{notices}");
}

#[test]
fn what_is_damaged_or_lost_under_a_name_is_an_error_beside_an_image() {
    let (image, other) = (TestImage::small(), TestImage::large());
    let entries = [
        named(&image, REF_NAME, "x:1"),
        named(&other, REF_NAME, "other:1"),
    ];
    let whole = layout(&entries, &[&image, &other]);
    let manifest = blob(&other.digest());
    let damaged = [other.manifest.clone(), vec![b' ']].concat();
    let directory = tempfile::tempdir().unwrap();
    let layer = blob(&other.layers[0].digest());
    let reversed = [entries[1].clone(), entries[0].clone()];
    let reversed = layout(&reversed, &[&image, &other]);
    for (bundle, part) in [
        (whole.clone().with(&manifest, damaged), "is damaged"),
        (whole.clone().without(&manifest), "is missing"),
        (reversed.clone().without(&manifest), "is missing"),
        (whole.clone().without(&layer), "is missing"),
        (reversed.clone().without(&layer), "is missing"),
        (
            reversed.with(&layer, "other bytes"),
            "bytes long instead of",
        ),
    ] {
        let loader = Loader::new();
        let path = bundle.write_archive(directory.path());
        let message = loader.try_load(&path, None).unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
        // The neighbour is whole, wherever it stands.
        assert!(loader.store.image("x:1").is_ok(), "{message}");
        assert!(loader.notices().contains("loaded x:1"), "{message}");
        assert!(loader.store.image("other:1").is_err(), "{message}");
    }
    let path = whole.without(&layer).write_archive(directory.path());
    let named = Loader::new().try_load(&path, Some("mine:1"));
    assert!(named.is_err(), "one name for two images");
    // What has no name may be left behind where the rest was copied.
    let sparse = layout(&[entries[0].clone(), other.entry(None)], &[&image]);
    let notices = assert_loads(&sparse, &image);
    assert!(notices.contains("is missing"), "{notices}");
    let sparse = layout(&[entries[0].clone(), other.entry(None)], &[&image, &other]);
    let notices = assert_loads(&sparse.without(&layer), &image);
    assert!(notices.contains("is missing"), "{notices}");
}

#[test]
fn items_of_a_docker_archive_are_read_each_by_itself_and_so_are_their_names() {
    let image = TestImage::new(vec![plain_layer("a")]);
    let bundle = docker_save(&[(&image, &["x:1", "<none>:<none>", "NO NAME"])]);
    let item = String::from_utf8(bundle.bytes("manifest.json")).unwrap();
    let notices = assert_loads(&bundle, &image);
    assert_eq!(notices.lines().count(), 1, "{notices}");
    assert!(
        notices.contains("left out a name of it: `NO NAME`"),
        "{notices}"
    );
    let item = item.trim_matches(['[', ']']);
    for list in [format!("[7, {item}]"), format!("[{item}, null]")] {
        let directory = tempfile::tempdir().unwrap();
        let path = bundle.clone().with("manifest.json", list);
        let loader = Loader::new();
        let path = path.write_archive(directory.path());
        let message = loader.try_load(&path, None).unwrap_err().to_string();
        assert!(
            message.contains("`manifest.json` in it is malformed"),
            "{message}"
        );
        assert!(loader.store.image("x:1").is_ok());
    }
}

#[test]
fn many_parts_that_are_left_out_are_a_few_notices() {
    let image = TestImage::small();
    let missing = |number: u8| {
        let kind = "application/vnd.oci.image.manifest.v1+json";
        json!({"mediaType": kind, "digest": Digest::of(&[number]), "size": 1})
    };
    let mut entries = vec![named(&image, REF_NAME, "x:1")];
    entries.extend((0..100).map(missing));
    let notices = assert_loads(&layout(&entries, &[&image]), &image);
    assert_eq!(notices.lines().count(), 11, "{notices}");
    assert!(notices.contains("left out 90 more"), "{notices}");
}
