//! Names with a digest, which an archive may claim for any image.

use micabox_image::Digest;
use serde_json::json;

use super::Loader;
use super::bundle::{FULL_NAME, REF_NAME, blob, docker_save, layout, named, plain_layer};
use crate::image::{TestImage, index};

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
    // Beside a second entry of that name, it is one of two.
    let mut other = named(&image, FULL_NAME, &pin);
    other["platform"] = json!({"os": "linux", "architecture": "amd64"});
    let bundle = layout(&[other, only], &[&image]).with(&blob(&digest), nested);
    assert!(!has_name(&bundle, &pin));
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
