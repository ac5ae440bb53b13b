//! The formats of archives and layouts.

use std::io::Write;
use std::thread;

use micabox_image::Digest;
use serde_json::json;

use super::bundle::{
    Bundle, FULL_NAME, File, REF_NAME, blob, docker_save, layout, named, plain_layer, write,
};
use super::{Loader, assert_is};
use crate::image::{TestImage, TestLayer, index};
use crate::layer::gzip;

fn small() -> TestImage {
    TestImage::small()
}

/// An image as in `docker save`, with the first layer once more at the end.
fn docker_image() -> TestImage {
    TestImage::new(vec![plain_layer("a"), plain_layer("b"), plain_layer("a")])
}

#[test]
fn a_layout_is_a_directory_or_an_archive_compressed_or_not() {
    let image = small();
    let bundle = layout(&[named(&image, REF_NAME, "localhost/x:1")], &[&image]);
    let directory = tempfile::tempdir().unwrap();
    let archive = bundle.archive();
    let zstd = zstd::encode_all(&archive[..], 1).unwrap();
    for path in [
        bundle.write_directory(directory.path()),
        write(directory.path(), &archive),
        // Two members, like parallel compressors write.
        write(
            &directory.path().join("unpacked"),
            [gzip(&archive[..1000]), gzip(&archive[1000..])].concat(),
        ),
        write(&directory.path().join("unpacked/blobs"), zstd),
    ] {
        let loader = Loader::new();
        let loaded = loader.load(&path, None);
        assert_eq!(loaded.len(), 1);
        assert_is(&loaded[0], &image);
        assert_eq!(loaded[0].manifest_digest, image.digest());
        assert_eq!(
            loader.store.image("localhost/x:1").unwrap().manifest_digest,
            image.digest()
        );
        assert!(loader.notices().is_empty());
    }
}

#[test]
fn an_archive_may_come_through_a_pipe() {
    let image = docker_image();
    let archive = docker_save(&[(&image, &["x:1"])]).archive();
    for bytes in [gzip(&archive), archive] {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        let made = std::process::Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap();
        assert!(made.success());
        let writer = {
            let pipe = pipe.clone();
            thread::spawn(move || {
                let mut pipe = std::fs::OpenOptions::new().write(true).open(pipe).unwrap();
                pipe.write_all(&bytes).unwrap();
            })
        };
        let loader = Loader::new();
        assert_is(&loader.load(&pipe, None)[0], &image);
        writer.join().unwrap();
    }
}

#[test]
fn names_of_images_come_from_annotations() {
    let image = small();
    // (annotation, value, name in the store, bare tag in a notice)
    for (annotation, value, name) in [
        (FULL_NAME, "docker.io/library/x:1", Some("x:1")),
        (REF_NAME, "x:1", Some("x:1")),
        (REF_NAME, "quay.io/o/x", Some("quay.io/o/x:latest")),
        (REF_NAME, "latest", None),
        (REF_NAME, "3.12", None),
        (REF_NAME, "Not A Name/", None),
        (FULL_NAME, "", None),
    ] {
        let loader = Loader::new();
        let directory = tempfile::tempdir().unwrap();
        let bundle = layout(&[named(&image, annotation, value)], &[&image]);
        let loaded = loader.load(&bundle.write_archive(directory.path()), None);
        assert_is(&loaded[0], &image);
        match name {
            Some(name) => {
                assert_eq!(loaded[0].reference.as_ref().unwrap().familiar(), name);
                assert!(loader.store.image(name).is_ok());
            }
            None => {
                let notices = loader.notices();
                assert!(
                    notices.contains("mica tag") && notices.contains(value),
                    "{notices}"
                );
                assert!(notices.contains(&image.digest().to_string()), "{notices}");
                assert!(loader.store.image(&image.digest().to_string()).is_ok());
            }
        }
    }
    // Docker's annotation is the full one; the other one is only the tag then.
    let mut entry = named(&image, FULL_NAME, "docker.io/library/x:1");
    entry["annotations"][REF_NAME] = json!("1");
    let directory = tempfile::tempdir().unwrap();
    let loader = Loader::new();
    loader.load(
        &layout(&[entry], &[&image]).write_archive(directory.path()),
        None,
    );
    assert!(loader.store.image("x:1").is_ok());
}

#[test]
fn a_name_can_be_given_to_the_only_image() {
    let (image, other) = (small(), TestImage::large());
    let directory = tempfile::tempdir().unwrap();
    let one = layout(&[named(&image, REF_NAME, "old:1")], &[&image]);
    let loader = Loader::new();
    loader.load(&one.write_archive(directory.path()), Some("new:2"));
    assert!(loader.store.image("new:2").is_ok());
    assert!(loader.store.image("old:1").is_err());

    let entries = [
        named(&image, REF_NAME, "a:1"),
        named(&other, REF_NAME, "b:1"),
    ];
    let two = layout(&entries, &[&image, &other]).write_archive(directory.path());
    let loader = Loader::new();
    let message = loader
        .try_load(&two, Some("new:2"))
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("a:1") && message.contains("b:1"),
        "{message}"
    );
    let loaded = loader.load(&two, None);
    assert_is(&loaded[0], &image);
    assert_is(&loaded[1], &other);
}

#[test]
fn one_name_for_several_platforms_is_one_image() {
    let make = |seed, platform: &str| {
        TestImage::for_platform(vec![TestLayer::noise(seed, 10)], &platform.parse().unwrap())
    };
    let (arm, amd) = (make(1, "linux/arm64"), make(2, "linux/amd64"));
    let platforms = [(&arm, "linux/arm64"), (&amd, "linux/amd64")];
    let named_for = |name: Option<&str>| {
        platforms.map(|(image, platform)| {
            let mut entry = image.entry(Some(platform));
            if let Some(name) = name {
                entry["annotations"] = json!({REF_NAME: name});
            }
            entry
        })
    };
    let nested = index(&named_for(None));
    let entry = json!({
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "digest": Digest::of(&nested), "size": nested.len(),
        "annotations": {REF_NAME: "x:1"},
    });
    let bundles = [
        layout(&named_for(Some("x:1")), &[&arm, &amd]),
        layout(&named_for(None), &[&arm, &amd]),
        layout(&[entry], &[&arm, &amd]).with(&blob(&Digest::of(&nested)), nested),
        // Docker saves an index with the blobs of one platform.
        layout(&named_for(Some("x:1")), &[&amd]),
    ];
    for (number, bundle) in bundles.iter().enumerate() {
        let directory = tempfile::tempdir().unwrap();
        let path = bundle.write_archive(directory.path());
        let loader = Loader::new().platform("linux/amd64");
        let loaded = loader.load(&path, None);
        assert_eq!(loaded.len(), 1, "{number}");
        assert_is(&loaded[0], &amd);
        if number == 3 {
            let message = Loader::new().platform("linux/arm64").refusal(&path);
            assert!(message.contains(&blob(&arm.digest())), "{message}");
            continue;
        }
        assert_is(
            &Loader::new().platform("linux/arm64").load(&path, None)[0],
            &arm,
        );
        let message = Loader::new().platform("linux/s390x").refusal(&path);
        assert!(
            message.contains("linux/s390x, only for linux/amd64"),
            "{message}"
        );
    }
}

#[test]
fn docker_save_in_its_old_shape_is_loaded() {
    let (image, other) = (
        docker_image(),
        TestImage::new(vec![plain_layer("a"), plain_layer("c")]),
    );
    let bundle = docker_save(&[(&image, &["x:1", "localhost:5000/y:2"]), (&other, &[])]);
    let directory = tempfile::tempdir().unwrap();
    let path = bundle.write_archive(directory.path());
    let mut digests = Vec::new();
    for _ in 0..2 {
        let loader = Loader::new();
        let loaded = loader.load(&path, None);
        assert_eq!(loaded.len(), 2);
        digests.push(loaded[1].manifest_digest);
        assert_is(&loaded[0], &image);
        assert_is(&loaded[1], &other);
        for name in ["x:1", "localhost:5000/y:2"] {
            let found = loader.store.image(name).unwrap();
            assert_eq!(found.manifest_digest, loaded[0].manifest_digest);
        }
        assert!(
            loader
                .notices()
                .contains(&loaded[1].manifest_digest.to_string())
        );
        let manifest = loader.store.manifest(&loaded[1].manifest_digest).unwrap();
        let expected = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {
                "mediaType": "application/vnd.oci.image.config.v1+json",
                "digest": Digest::of(&other.config), "size": other.config.len(),
            },
            "layers": other.layers.iter().map(|layer| json!({
                "mediaType": layer.media_type, "digest": layer.diff_id, "size": layer.blob.len(),
            })).collect::<Vec<_>>(),
        });
        let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
        assert_eq!(manifest, expected);
    }
    assert_eq!(digests[0], digests[1], "the same archive is the same image");
}

#[test]
fn docker_archives_of_other_tools_have_compressed_layers_and_hard_links() {
    let compressed = TestImage::new(vec![TestLayer::noise(1, 1000), TestLayer::noise(2, 1000)]);
    let mut bundle = docker_save(&[(&compressed, &["x:1"])]);
    let moved = bundle.0.remove("0-1/layer.tar").unwrap();
    bundle.0.insert("0-0/moved".into(), moved);
    bundle
        .0
        .insert("0-1/layer.tar".into(), File::HardLink("./0-0/moved".into()));
    let directory = tempfile::tempdir().unwrap();
    let loader = Loader::new();
    let loaded = loader.load(&bundle.write_archive(directory.path()), None);
    assert_is(&loaded[0], &compressed);
    let manifest = loader.store.manifest(&loaded[0].manifest_digest).unwrap();
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
    assert_eq!(
        manifest["layers"][0]["digest"],
        json!(compressed.layers[0].digest())
    );
    assert!(
        manifest["layers"][0]["mediaType"]
            .as_str()
            .unwrap()
            .ends_with("+gzip")
    );
}

#[test]
fn docker_save_with_a_layout_inside_is_loaded() {
    let image = docker_image();
    let item = |tags: serde_json::Value| {
        let layers: Vec<_> = image
            .layers
            .iter()
            .map(|layer| blob(&layer.digest()))
            .collect();
        json!([{"Config": blob(&Digest::of(&image.config)), "RepoTags": tags, "Layers": layers}])
    };
    // With names in both places, and with the names in `manifest.json` alone.
    let entries = [
        named(&image, FULL_NAME, "docker.io/library/x:1"),
        named(&image, FULL_NAME, "docker.io/library/x:2"),
    ];
    let bundles = [
        layout(&entries, &[&image]).with("manifest.json", item(json!(["x:1", "x:2"])).to_string()),
        layout(&[image.entry(None)], &[&image])
            .with("manifest.json", item(json!(["x:1", "x:2"])).to_string()),
    ];
    for bundle in bundles {
        let directory = tempfile::tempdir().unwrap();
        let loader = Loader::new();
        let loaded = loader.load(&bundle.write_archive(directory.path()), None);
        assert_eq!(loaded.len(), 1);
        assert_is(&loaded[0], &image);
        assert_eq!(loaded[0].manifest_digest, image.digest());
        for name in ["x:1", "x:2"] {
            assert!(loader.store.image(name).is_ok(), "{name}");
        }
    }
}

#[test]
fn a_layer_that_the_store_has_is_not_read() {
    let image = small();
    let bundle = layout(&[named(&image, REF_NAME, "x:1")], &[&image]);
    let directory = tempfile::tempdir().unwrap();
    let loader = Loader::new();
    loader.load(&bundle.write_archive(directory.path()), None);
    let lost = bundle.without(&blob(&image.layers[0].digest()));
    assert_is(
        &loader.load(&lost.write_archive(directory.path()), None)[0],
        &image,
    );
}

#[test]
fn attestations_are_not_taken_for_images() {
    let image = small();
    let mut attestation = TestImage::large().entry(Some("unknown/unknown"));
    attestation["annotations"] = json!({"vnd.docker.reference.type": "attestation-manifest"});
    let bundle = layout(
        &[
            image.entry(Some(&micabox_image::Platform::host().to_string())),
            attestation,
        ],
        &[&image],
    );
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(
        Loader::new()
            .load(&bundle.write_archive(directory.path()), None)
            .len(),
        1
    );
}

#[test]
fn later_members_of_an_archive_replace_earlier_ones() {
    let image = small();
    let bundle = layout(&[named(&image, REF_NAME, "x:1")], &[&image]);
    let junk = Bundle::new().with("index.json", "junk").archive();
    let archive = bundle.archive();
    // Without the end of the first archive.
    let both = [&junk[..junk.len() - 1024], &archive].concat();
    let directory = tempfile::tempdir().unwrap();
    assert_is(
        &Loader::new().load(&write(directory.path(), both), None)[0],
        &image,
    );
}

/// The output of Docker 25.0.0 and 25.0.1 for an image that is saved by its ID: moby#47210.
#[test]
fn an_index_without_entries_beside_a_whole_manifest_is_dockers() {
    let image = docker_image();
    let config = blob(&Digest::of(&image.config));
    let layers: Vec<_> = image.layers.iter().map(|l| blob(&l.digest())).collect();
    let items = json!([{"Config": config, "RepoTags": null, "Layers": layers}]);
    for index in [
        r#"{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":null}"#,
        r#"{"schemaVersion":2,"manifests":[]}"#,
    ] {
        let bundle = layout(&[], &[&image])
            .with("index.json", index)
            .with("manifest.json", items.to_string());
        let directory = tempfile::tempdir().unwrap();
        for path in [
            bundle.write_archive(directory.path()),
            bundle.write_directory(directory.path()),
        ] {
            let loader = Loader::new();
            let loaded = loader.load(&path, Some("x:1"));
            assert_eq!(loaded.len(), 1);
            assert_is(&loaded[0], &image);
        }
        // Without `manifest.json` there is no image.
        let bundle = bundle.without("manifest.json");
        let message = Loader::new().refusal(&bundle.write_archive(directory.path()));
        assert!(message.contains("names no image"), "{message}");
    }
}

#[test]
fn links_within_a_layouts_directory_are_followed() {
    let image = small();
    let bundle = layout(&[named(&image, REF_NAME, "localhost/x:1")], &[&image]);
    let directory = tempfile::tempdir().unwrap();
    let path = bundle.write_directory(directory.path());
    // Like tools that make layouts with shared blobs.
    std::fs::create_dir(path.join("pool")).unwrap();
    for (digest, _) in image.blobs() {
        let name = path.join(blob(&digest));
        std::fs::rename(&name, path.join("pool").join(digest.hex())).unwrap();
        std::os::unix::fs::symlink(format!("../../pool/{}", digest.hex()), &name).unwrap();
    }
    let loader = Loader::new();
    let loaded = loader.load(&path, None);
    assert_is(&loaded[0], &image);
    // Bazel's links lead outside.
    let outside = directory.path().join("outside");
    std::fs::rename(path.join("pool"), &outside).unwrap();
    std::os::unix::fs::symlink(&outside, path.join("pool")).unwrap();
    let message = Loader::new().refusal(&path);
    assert!(
        message.contains("out of it") && message.contains("cp -rL"),
        "{message}"
    );
}

#[test]
fn skopeos_own_directories_are_named() {
    let image = small();
    let mut bundle = Bundle::new()
        .with("version", "Directory Transport Version: 1.1\n")
        .with("manifest.json", image.manifest.clone());
    for (digest, bytes) in image.blobs() {
        bundle = bundle.with(&digest.hex(), bytes);
    }
    let directory = tempfile::tempdir().unwrap();
    let message = Loader::new().refusal(&bundle.write_directory(directory.path()));
    assert!(message.contains("skopeo copy dir:"), "{message}");
}

#[test]
fn entries_left_out_of_a_layer_are_a_notice() {
    let archive = crate::layer::archive::Archive::new()
        .pax(&[("SCHILY.acl.access", b"no ACL at all")])
        .file("f", "")
        .finish();
    let image = TestImage::new(vec![TestLayer::gzip(&archive)]);
    let bundle = layout(&[named(&image, REF_NAME, "localhost/x:1")], &[&image]);
    let directory = tempfile::tempdir().unwrap();
    let loader = Loader::new();
    loader.load(&bundle.write_archive(directory.path()), None);
    let notices = loader.notices();
    assert!(
        notices.contains("1 extended attributes or ACLs"),
        "{notices}"
    );
}
