//! Names with a digest, which an archive may claim for any image.

use micabox_image::{Digest, Platform};
use serde_json::json;

use super::Loader;
use super::bundle::{FULL_NAME, REF_NAME, blob, docker_save, layout, named, plain_layer};
use crate::image::{TestImage, TestLayer, index};

/// Loads an archive, and returns whether the image has the name then.
fn has_name(bundle: &super::bundle::Bundle, name: &str) -> bool {
    let directory = tempfile::tempdir().unwrap();
    let loader = Loader::new();
    let loaded = loader.load(&bundle.write_archive(directory.path()), None);
    assert_eq!(loaded.len(), 1);
    let found = loader.store.image(name).is_ok();
    assert_ne!(
        found,
        loader.notices().contains("left out the name"),
        "{name}"
    );
    found
}

#[test]
fn a_name_with_the_digest_of_something_else_is_left_out() {
    let image = TestImage::small();
    let pin = |digest: Digest| format!("docker.io/library/x@{digest}");
    let wrong = pin(Digest::of(b"another image"));
    for annotation in [REF_NAME, FULL_NAME] {
        for (name, is_true) in [(wrong.clone(), false), (pin(image.digest()), true)] {
            let bundle = layout(&[named(&image, annotation, &name)], &[&image]);
            assert_eq!(has_name(&bundle, &name), is_true, "{name}");
        }
    }
    let saved = TestImage::new(vec![plain_layer("a")]);
    assert!(!has_name(
        &docker_save(&[(&saved, &[wrong.as_str()])]),
        &wrong
    ));
    let tagged = format!("x:1@{}", Digest::of(b"another image"));
    assert!(!has_name(
        &docker_save(&[(&saved, &[tagged.as_str()])]),
        &tagged
    ));
}

#[test]
fn an_index_may_be_what_the_digest_in_a_name_is_of() {
    let image = TestImage::small();
    let nested = index(&[image.entry(None)]);
    let digest = Digest::of(&nested);
    let pin = format!("docker.io/library/x@{digest}");
    let entry = |digest: &Digest, size| {
        json!({
            "mediaType": "application/vnd.oci.image.index.v1+json", "digest": digest, "size": size,
            "annotations": {FULL_NAME: pin},
        })
    };
    let only = entry(&digest, nested.len());
    let bundle =
        layout(std::slice::from_ref(&only), &[&image]).with(&blob(&digest), nested.clone());
    assert!(has_name(&bundle, &pin));
    // So it is beside a second entry that leads to the same image, wherever that stands.
    let mut other = named(&image, FULL_NAME, &pin);
    other["platform"] = json!({"os": "linux", "architecture": "amd64"});
    for entries in [[other.clone(), only.clone()], [only, other]] {
        let bundle = layout(&entries, &[&image]).with(&blob(&digest), nested.clone());
        assert!(has_name(&bundle, &pin));
    }
}

#[test]
fn a_name_that_a_user_gives_has_no_other_digest_either() {
    let image = TestImage::small();
    let directory = tempfile::tempdir().unwrap();
    let bundle = layout(&[image.entry(None)], &[&image]);
    let path = bundle.write_archive(directory.path());
    let loader = Loader::new();
    let wrong = format!("x@{}", Digest::of(b"another image"));
    let error = loader
        .try_load(&path, Some(&wrong))
        .unwrap_err()
        .to_string();
    assert!(error.contains("leave the digest out"), "{error}");
    assert!(loader.store.images().unwrap().is_empty());
    loader.load(&path, Some("x:1"));
    let wrong = wrong.parse().unwrap();
    assert!(loader.store.tag(&wrong, &image.digest()).is_err());
    assert!(loader.store.image(&wrong.to_string()).is_err());
}

#[test]
fn sizes_in_an_index_and_in_a_manifest_are_compared() {
    let image = TestImage::small();
    let directory = tempfile::tempdir().unwrap();
    let mut entry = named(&image, REF_NAME, "x:1");
    entry["size"] = json!(image.manifest.len() + 1);
    let bundle = layout(std::slice::from_ref(&entry), &[&image]);
    let message = Loader::new().refusal(&bundle.write_archive(directory.path()));
    assert!(message.contains("bytes long instead of"), "{message}");
    let mut lying = image.clone();
    lying.edit_manifest(|manifest| manifest["config"]["size"] = json!(1));
    let bundle = layout(&[named(&lying, REF_NAME, "x:1")], &[&lying]);
    let message = Loader::new().refusal(&bundle.write_archive(directory.path()));
    assert!(message.contains("bytes long instead of 1"), "{message}");
    // Where the index has none, there is nothing to compare.
    entry.as_object_mut().unwrap().remove("size");
    let bundle = layout(&[entry], &[&image]);
    Loader::new().load(&bundle.write_archive(directory.path()), None);
}

#[test]
fn a_name_of_several_images_is_that_of_the_last_one_and_none_is_lost() {
    let make = |seed| TestImage::new(vec![TestLayer::noise(seed, 10)]);
    let (first, second, third) = (make(1), make(2), make(3));
    let elsewhere = "linux/s390x".parse().unwrap();
    let other = TestImage::for_platform(vec![TestLayer::noise(4, 10)], &elsewhere);
    let entry = |image: &TestImage| named(image, REF_NAME, "x:1");
    let host = Platform::host().to_string();
    let on_host = |image: &TestImage| {
        let mut entry = image.entry(Some(&host));
        entry["annotations"] = json!({REF_NAME: "x:1"});
        entry
    };
    let nested = index(&[second.entry(None)]);
    let nesting = json!({
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "digest": Digest::of(&nested), "size": nested.len(),
        "annotations": {REF_NAME: "x:1"},
    });
    // What has no name is no less an image.
    let plain = [first.entry(Some(&host)), second.entry(Some(&host))];
    // (entries, images in their order, the one with the name)
    for (entries, images, named) in [
        (
            vec![entry(&first), entry(&second)],
            vec![&first, &second],
            Some(&second),
        ),
        (
            vec![entry(&second), entry(&first)],
            vec![&second, &first],
            Some(&first),
        ),
        (
            vec![on_host(&first), on_host(&second)],
            vec![&first, &second],
            Some(&second),
        ),
        (
            vec![on_host(&first), entry(&second)],
            vec![&first, &second],
            Some(&second),
        ),
        (
            vec![entry(&first), nesting.clone()],
            vec![&first, &second],
            Some(&second),
        ),
        (
            vec![nesting, entry(&first)],
            vec![&second, &first],
            Some(&first),
        ),
        (
            vec![entry(&first), entry(&other), entry(&third), entry(&first)],
            vec![&third, &first],
            Some(&first),
        ),
        (
            vec![entry(&other), entry(&second), entry(&other)],
            vec![&second],
            Some(&second),
        ),
        (
            [vec![entry(&other); 81], vec![entry(&second)]].concat(),
            vec![&second],
            Some(&second),
        ),
        (plain.to_vec(), vec![&first, &second], None),
    ] {
        let bundle = layout(&entries, &[&first, &second, &third, &other])
            .with(&blob(&Digest::of(&nested)), nested.clone());
        let loader = Loader::new();
        let directory = tempfile::tempdir().unwrap();
        let path = bundle.write_archive(directory.path());
        let loaded = loader.load(&path, None);
        let digests = |images: &[&TestImage]| images.iter().map(|one| one.digest()).collect();
        let found: Vec<_> = loaded.iter().map(|image| image.manifest_digest).collect();
        let expected: Vec<_> = digests(&images);
        assert_eq!(found, expected, "{entries:?}");
        let notices = loader.notices();
        for image in &images {
            let digest = image.digest().to_string();
            assert!(loader.store.image(&digest).is_ok());
            let has_name = named.is_some_and(|named| named.digest() == image.digest());
            let loses = format!("left out the name x:1 of {digest}");
            assert_eq!(
                notices.contains(&loses),
                named.is_some() && !has_name,
                "{notices}"
            );
            assert_eq!(
                notices.contains(&format!("mica tag {digest}")),
                !has_name,
                "{notices}"
            );
        }
        let named = named.map(|image| image.digest());
        let found = loader
            .store
            .image("x:1")
            .ok()
            .map(|image| image.manifest_digest);
        assert_eq!(found, named, "{entries:?}");
        if images.len() > 1 {
            let error = Loader::new()
                .try_load(&path, Some("new:1"))
                .unwrap_err()
                .to_string();
            assert!(error.contains(&images[0].digest().to_string()), "{error}");
        }
    }
}

#[test]
fn a_name_of_several_images_of_a_docker_archive_is_that_of_the_last_one() {
    let images = ["a", "b"].map(|name| TestImage::new(vec![plain_layer(name)]));
    let saved = docker_save(&[(&images[0], &["x:1", "y:1"]), (&images[1], &["x:1"])]);
    let directory = tempfile::tempdir().unwrap();
    let loader = Loader::new();
    let loaded = loader.load(&saved.write_archive(directory.path()), None);
    let layers = |name| loader.store.image(name).unwrap().manifest_digest;
    assert_eq!(
        [layers("y:1"), layers("x:1")],
        [loaded[0].manifest_digest, loaded[1].manifest_digest]
    );
    assert!(
        loader
            .notices()
            .contains("left out the name x:1 of sha256:"),
        "{}",
        loader.notices()
    );
}

#[test]
fn another_image_of_a_name_that_cannot_be_loaded_is_an_error_and_takes_no_name() {
    let (image, other) = (TestImage::small(), TestImage::large());
    let entries = [&image, &other].map(|image| named(image, REF_NAME, "x:1"));
    let reversed = [entries[1].clone(), entries[0].clone()];
    let directory = tempfile::tempdir().unwrap();
    let manifest = blob(&other.digest());
    let damaged = [other.manifest.clone(), vec![b' ']].concat();
    for entries in [&entries, &reversed] {
        let whole = layout(entries, &[&image, &other]);
        for (bundle, part) in [
            (whole.clone().without(&manifest), "is missing"),
            (
                whole.clone().without(&blob(&Digest::of(&other.config))),
                "is missing",
            ),
            (
                whole.clone().without(&blob(&other.layers[0].digest())),
                "is missing",
            ),
            (whole.clone().with(&manifest, damaged.clone()), "is damaged"),
        ] {
            let loader = Loader::new();
            let path = bundle.write_archive(directory.path());
            let error = loader.try_load(&path, None).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
            let found = loader.store.image("x:1").map(|image| image.manifest_digest);
            assert_eq!(found.ok(), Some(image.digest()), "{error}");
            assert!(
                loader.notices().contains("loaded x:1"),
                "{}",
                loader.notices()
            );
            let named = Loader::new().try_load(&path, Some("new:1"));
            assert!(named.is_err());
        }
    }
}

#[test]
fn an_image_with_bare_tags_has_them_all_in_its_notice() {
    let image = TestImage::small();
    let entries = ["1", "2"].map(|tag| named(&image, REF_NAME, tag));
    let directory = tempfile::tempdir().unwrap();
    let loader = Loader::new();
    loader.load(
        &layout(&entries, &[&image]).write_archive(directory.path()),
        None,
    );
    let notices = loader.notices();
    assert!(notices.contains("only the tags `1`, `2`"), "{notices}");
}
