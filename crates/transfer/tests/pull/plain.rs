//! Registries without faults: names, platforms, policies, and what isn't fetched.

use std::thread;

use micabox_image::ParallelLayers;
use micabox_transfer::PullPolicy;
use serde_json::json;

use crate::image::{TestImage, TestLayer, index};
use crate::server::Registry;
use crate::{Puller, assert_has};

#[test]
fn an_image_is_pulled_once() {
    let image = TestImage::small();
    let registry = Registry::with(&image);
    let puller = Puller::new();
    let reference = registry.reference("x:1");
    puller.assert_has(&puller.pull(&reference), &image);
    let first = registry.requests().len();
    // Manifest, config, two layers.
    assert_eq!(first, 4);
    let again = puller.pull(&reference);
    assert_eq!(again.reference, Some(reference));
    assert_eq!(registry.requests().len(), first, "the store has it");
}

#[test]
fn a_tag_a_digest_or_both_name_an_image() {
    let image = TestImage::small();
    let registry = Registry::with(&image);
    let digest = image.digest();
    // A digest takes precedence over a tag, even if the tag doesn't exist.
    for rest in [
        "x:1".to_owned(),
        format!("x@{digest}"),
        format!("x:gone@{digest}"),
    ] {
        let puller = Puller::new();
        let reference = registry.reference(&rest);
        let pulled = puller.pull(&reference);
        puller.assert_has(&pulled, &image);
        assert!(puller.store.image(&reference.to_string()).is_ok());
    }
}

#[test]
fn policies_say_when_the_registry_is_asked() {
    let (old, new) = (TestImage::small(), TestImage::large());
    let registry = Registry::with(&old);
    let reference = registry.reference("x:1");

    let puller = Puller::new().policy(PullPolicy::Never);
    let message = puller.refusal(&reference);
    assert!(
        message.contains("never") && message.contains("mica pull"),
        "{message}"
    );
    assert!(registry.requests().is_empty());

    let puller = puller.policy(PullPolicy::Missing);
    puller.pull(&reference);
    registry.push("x", "1", &new);
    assert_has(&puller.store, &puller.pull(&reference), &old);
    let puller = puller.policy(PullPolicy::Never);
    assert_has(&puller.store, &puller.pull(&reference), &old);
    let puller = puller.policy(PullPolicy::Always);
    assert_has(&puller.store, &puller.pull(&reference), &new);

    // Nothing new: only the manifest is requested.
    let before = registry.requests().len();
    assert_has(&puller.store, &puller.pull(&reference), &new);
    let asked = registry.requests().split_off(before);
    assert!(asked.len() == 1 && asked[0].is_manifest(), "{asked:?}");
}

#[test]
fn layers_that_the_store_has_are_not_fetched() {
    let image = TestImage::small();
    let registry = Registry::with(&image);
    let puller = Puller::new();
    puller.pull(&registry.reference("x:1"));
    let mut layers = image.layers.clone();
    layers.push(TestLayer::noise(9, 100));
    let larger = TestImage::new(layers);
    registry.push("y", "1", &larger);
    let before = registry.layer_requests(&larger).len();
    puller.assert_has(&puller.pull(&registry.reference("y:1")), &larger);
    let fetched = registry.layer_requests(&larger).split_off(before);
    assert_eq!(fetched.len(), 1);
    assert!(
        fetched[0]
            .target
            .contains(&larger.layers[2].digest().to_string())
    );
    assert_eq!(*puller.progress.present.lock().unwrap(), 2);
}

#[test]
fn a_layer_that_occurs_twice_is_fetched_once_and_one_may_be_empty() {
    let empty = TestLayer::gzip(&crate::layer::archive::Archive::new().finish());
    let layers = vec![empty.clone(), TestLayer::noise(1, 10), empty.clone(), empty];
    let image = TestImage::new(layers);
    let registry = Registry::with(&image);
    let puller = Puller::new();
    puller.assert_has(&puller.pull(&registry.reference("x:1")), &image);
    assert_eq!(registry.layer_requests(&image).len(), 2);
}

#[test]
fn an_image_may_have_no_layers() {
    let mut image = TestImage::with_config(Vec::new(), &json!({"config": {"Cmd": ["sh"]}}));
    image.edit_manifest(|manifest| manifest["layers"] = json!(null));
    let registry = Registry::with(&image);
    let puller = Puller::new();
    puller.assert_has(&puller.pull(&registry.reference("x:1")), &image);
}

#[test]
fn an_index_leads_to_the_platform() {
    let arm = TestImage::for_platform(
        vec![TestLayer::noise(1, 10)],
        &"linux/arm64".parse().unwrap(),
    );
    let amd = TestImage::for_platform(
        vec![TestLayer::noise(2, 10)],
        &"linux/amd64".parse().unwrap(),
    );
    let registry = Registry::with(&arm);
    registry.push("x", "2", &amd);
    let attestation = arm.entry(Some("unknown/unknown"));
    let entries = [
        arm.entry(Some("linux/arm64/v8")),
        attestation,
        amd.entry(Some("linux/amd64")),
    ];
    registry.put_manifest("x", "multi", index(&entries));
    // An index inside an index, and entries that leave the platform to the config.
    let nested = json!({
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "digest": micabox_image::Digest::of(&index(&entries)), "size": index(&entries).len(),
    });
    registry.put_manifest("x", "nested", index(&[nested]));
    registry.put_manifest("x", "silent", index(&[arm.entry(None), amd.entry(None)]));

    for tag in ["multi", "nested", "silent"] {
        let reference = registry.reference(&format!("x:{tag}"));
        for (platform, image) in [("linux/arm64", &arm), ("linux/amd64", &amd)] {
            let puller = Puller::new().platform(platform);
            puller.assert_has(&puller.pull(&reference), image);
        }
        let message = Puller::new().platform("linux/s390x").refusal(&reference);
        for part in ["linux/s390x", "linux/arm64", "linux/amd64", "--platform"] {
            assert!(message.contains(part), "{message}");
        }
        assert!(!message.contains("unknown"), "{message}");
    }
    // Another platform means another image.
    let reference = registry.reference("x:multi");
    let puller = Puller::new().platform("linux/arm64");
    assert_has(&puller.store, &puller.pull(&reference), &arm);
    let puller = puller.platform("linux/amd64");
    assert_has(&puller.store, &puller.pull(&reference), &amd);
    // Also without an index.
    let message = Puller::new()
        .platform("linux/amd64")
        .refusal(&registry.reference("x:1"));
    assert!(message.contains("only for linux/arm64"), "{message}");
}

#[test]
fn layers_come_side_by_side_but_only_so_many() {
    let image = TestImage::new((0..6).map(|seed| TestLayer::noise(seed, 1000)).collect());
    let registry = Registry::with(&image);
    // No layer is served before two were requested, and the third must wait for one.
    registry.gather(2);
    let puller = Puller::new().edit_settings(|settings| {
        settings.parallel_layers = ParallelLayers::new(2);
    });
    puller.assert_has(&puller.pull(&registry.reference("x:1")), &image);
    assert_eq!(registry.peak(), 2);
}

#[test]
fn two_pulls_of_one_image_do_the_work_once() {
    let image = TestImage::new((0..4).map(|seed| TestLayer::noise(seed, 50_000)).collect());
    let registry = Registry::with(&image);
    let puller = Puller::new();
    let reference = registry.reference("x:1");
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_has(&puller.store, &puller.pull(&reference), &image));
        }
    });
    assert_eq!(registry.layer_requests(&image).len(), 4);
}

#[test]
fn a_layer_lost_from_the_store_is_fetched_again() {
    let image = TestImage::small();
    let registry = Registry::with(&image);
    let puller = Puller::new();
    let reference = registry.reference("x:1");
    let pulled = puller.pull(&reference);
    std::fs::remove_file(&pulled.layers[0].path).unwrap();
    puller.assert_has(&puller.pull(&reference), &image);
    assert_eq!(registry.layer_requests(&image).len(), 3);
}
