//! Documents of images that Go programs write and read, and platforms finer than OS and ARCH.

use micabox_image::{Digest, Platform};
use serde_json::{Value, json};

use super::bundle::{REF_NAME, docker_save, layout, named, plain_layer};
use super::{Loader, assert_is};
use crate::image::{TestImage, TestLayer, index};

/// Makes an image whose config `edit` changed.
fn with_config(edit: impl Fn(&mut Value)) -> TestImage {
    let layer = TestLayer::noise(1, 100);
    let mut config = json!({
        "architecture": Platform::host().architecture(), "os": "linux",
        "config": {"Cmd": ["sh"]}, "rootfs": {"type": "layers", "diff_ids": [layer.diff_id]},
    });
    edit(&mut config);
    TestImage::with_config(vec![layer], &config)
}

#[track_caller]
fn load(entries: &[Value], image: &TestImage) -> micabox_image::store::Image {
    let directory = tempfile::tempdir().unwrap();
    let bundle = layout(entries, &[image]);
    let loader = Loader::new();
    let mut loaded = loader.load(&bundle.write_archive(directory.path()), None);
    assert_is(&loaded[0], image);
    loaded.remove(0)
}

#[test]
fn configs_are_read_as_go_reads_them() {
    let run = |name: &'static str, value: Value| {
        with_config(move |config| config["config"][name] = value.clone())
    };
    for image in [
        run("Volumes", json!({"/data": null})),
        run("ExposedPorts", json!({"80/tcp": null})),
        run("Labels", json!({"a": null})),
        run("Env", json!(["A=1", null])),
        run("Cmd", json!("sh")),
        run("Entrypoint", json!(null)),
        with_config(|config| drop(config["rootfs"].as_object_mut().unwrap().remove("type"))),
        with_config(|config| config["config"] = json!(null)),
        with_config(|config| config["history"] = json!([null, {"created": null}])),
        with_config(|config| config["created"] = json!(null)),
        with_config(|config| {
            let rootfs = config["rootfs"].take();
            config.as_object_mut().unwrap().remove("rootfs");
            config["RootFS"] = json!({"Type": "layers", "DIFF_IDS": rootfs["diff_ids"]});
        }),
    ] {
        load(&[named(&image, REF_NAME, "x:1")], &image);
    }
    let image = run("Cmd", json!("sh -c"));
    let loaded = load(&[named(&image, REF_NAME, "x:1")], &image);
    let cmd = loaded.config.config().as_ref().unwrap().cmd().clone();
    assert_eq!(cmd, Some(vec!["sh -c".to_owned()]));
    // Lists of other fields are lists.
    let image = run("Env", json!("A=1"));
    let directory = tempfile::tempdir().unwrap();
    let bundle = layout(&[named(&image, REF_NAME, "x:1")], &[&image]);
    let message = Loader::new().refusal(&bundle.write_archive(directory.path()));
    assert!(
        message.contains("a string in the place of a list"),
        "{message}"
    );
}

#[test]
fn an_entry_with_half_a_platform_has_that_of_its_config() {
    let image = TestImage::small();
    for platform in [
        json!(null),
        json!({}),
        json!({"os": "", "architecture": ""}),
        json!({"os": "linux"}),
        json!({"architecture": Platform::host().architecture()}),
        json!({"OS": "linux", "Architecture": Platform::host().architecture(), "variant": null}),
    ] {
        let mut entry = named(&image, REF_NAME, "x:1");
        entry["platform"] = platform.clone();
        load(&[entry], &image);
        // A neighbour needs no reading.
        let mut neighbour = json!({"mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": Digest::of(b"{}"), "size": 2});
        neighbour["platform"] = platform;
        let nested = index(&[neighbour, image.entry(None)]);
        let entry = json!({"mediaType": "application/vnd.oci.image.index.v1+json",
            "digest": Digest::of(&nested), "size": nested.len(), "annotations": {REF_NAME: "x:1"}});
        let bundle = layout(&[entry], &[&image])
            .with(&super::bundle::blob(&Digest::of(&nested)), nested)
            .with(&super::bundle::blob(&Digest::of(b"{}")), "{}");
        let directory = tempfile::tempdir().unwrap();
        let loader = Loader::new();
        assert_is(
            &loader.load(&bundle.write_archive(directory.path()), None)[0],
            &image,
        );
    }
}

#[test]
fn lists_of_docker_archives_are_read_as_go_reads_them() {
    let image = TestImage::new(vec![plain_layer("a")]);
    let bundle = docker_save(&[(&image, &["x:1"])]);
    let text = String::from_utf8(bundle.bytes("manifest.json")).unwrap();
    let text = text.replace("\"Config\"", "\"config\"").replace(
        "\"RepoTags\":[\"x:1\"]",
        "\"repotags\":[null,\"x:1\"],\"Parent\":null",
    );
    let directory = tempfile::tempdir().unwrap();
    let path = bundle
        .with("manifest.json", text)
        .write_archive(directory.path());
    let loader = Loader::new();
    assert_is(&loader.load(&path, None)[0], &image);
    assert!(loader.store.image("x:1").is_ok());
}

#[test]
fn images_for_this_processors_variants_are_loaded_the_newest_first() {
    let host = Platform::host();
    let of = |variant: &str, seed| {
        let platform = Platform::new("linux", host.architecture(), variant);
        let image = TestImage::for_platform(vec![TestLayer::noise(seed, 10)], &platform);
        (platform.to_string(), image)
    };
    let newest = host.variant().unwrap_or_default();
    let (own, best) = of(newest, 1);
    load(&[named(&best, REF_NAME, "x:1")], &best);
    load(&[best.entry(Some(&own))], &best);
    let (plain, baseline) = of("", 2);
    for entries in [
        [best.entry(Some(&own)), baseline.entry(Some(&plain))],
        [baseline.entry(Some(&plain)), best.entry(Some(&own))],
    ] {
        let directory = tempfile::tempdir().unwrap();
        let bundle = layout(&entries, &[&best, &baseline]);
        let path = bundle.write_archive(directory.path());
        let chosen = if newest.is_empty() && entries[0]["digest"] != json!(best.digest()) {
            &baseline
        } else {
            &best
        };
        assert_is(&Loader::new().load(&path, None)[0], chosen);
        assert_is(
            &Loader::new().platform(&plain).load(&path, None)[0],
            match newest {
                "" => chosen,
                _ => &baseline,
            },
        );
    }
    let (future, image) = of("v9999", 3);
    let directory = tempfile::tempdir().unwrap();
    let bundle = layout(&[image.entry(Some(&future))], &[&image]);
    let message = Loader::new().refusal(&bundle.write_archive(directory.path()));
    assert!(message.contains(&future), "{message}");
}

#[test]
fn an_image_that_needs_an_unknown_feature_is_passed_over() {
    let host = Platform::host();
    let image = TestImage::small();
    let featured = |features: Value, seed| {
        let layer = TestLayer::noise(seed, 10);
        let config = json!({"architecture": host.architecture(), "os": "linux",
            "os.features": features, "rootfs": {"type": "layers", "diff_ids": [layer.diff_id]}});
        let image = TestImage::with_config(vec![layer], &config);
        let mut entry = image.entry(None);
        entry["platform"] = json!({"os": "linux", "architecture": host.architecture(),
            "os.features": features});
        (entry, image)
    };
    let (strange, martian) = featured(json!(["martian"]), 7);
    let (native, erofs) = featured(json!(["erofs"]), 8);
    let plain = Platform::new("linux", host.architecture(), "").to_string();
    let directory = tempfile::tempdir().unwrap();
    let entries = [strange.clone(), native, image.entry(Some(&plain))];
    let bundle = layout(&entries, &[&martian, &erofs, &image]);
    let path = bundle.write_archive(directory.path());
    assert_is(&Loader::new().load(&path, None)[0], &image);
    let wanted = format!("linux(+erofs)/{}", host.architecture());
    assert_is(
        &Loader::new().platform(&wanted).load(&path, None)[0],
        &erofs,
    );
    // Alone, and by its config.
    for entry in [strange, martian.entry(None)] {
        let bundle = layout(&[entry], &[&martian]);
        let message = Loader::new().refusal(&bundle.write_archive(directory.path()));
        assert!(message.contains("linux(+martian)"), "{message}");
    }
}
