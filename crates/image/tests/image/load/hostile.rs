//! Archives that lie, end early or refer to files outside.

use std::fs;
use std::path::Path;

use micabox_image::Digest;
use proptest::prelude::*;
use serde_json::json;

use super::Loader;
use super::bundle::{Bundle, File, REF_NAME, blob, docker_save, layout, named, plain_layer, write};
use crate::image::TestImage;
use crate::layer::gzip;

fn docker() -> (TestImage, Bundle) {
    let image = TestImage::new(vec![plain_layer("a"), plain_layer("b")]);
    let bundle = docker_save(&[(&image, &["x:1"])]);
    (image, bundle)
}

fn oci() -> (TestImage, Bundle) {
    let image = TestImage::small();
    let bundle = layout(&[named(&image, REF_NAME, "x:1")], &[&image]);
    (image, bundle)
}

/// Asserts that an archive of the bundle, and a directory of it, are refused with this message.
fn assert_refused(bundle: &Bundle, part: &str) {
    let directory = tempfile::tempdir().unwrap();
    for path in [
        bundle.write_archive(directory.path()),
        bundle.write_directory(directory.path()),
    ] {
        let message = Loader::new().refusal(&path);
        assert!(message.contains(part), "{}: {message}", path.display());
    }
}

#[test]
fn names_in_an_archive_do_not_lead_out_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let (image, bundle) = docker();
    // The exact bytes, in a file outside.
    let outside = directory.path().join("outside.tar");
    fs::write(&outside, &image.layers[0].blob).unwrap();
    let outside = outside.to_str().unwrap();
    let config = bundle.bytes("manifest.json");
    let config = serde_json::from_slice::<serde_json::Value>(&config).unwrap()[0]["Config"].clone();

    for name in [
        outside,
        "../outside.tar",
        "a/../../outside.tar",
        "0-0/../../outside.tar",
    ] {
        let item = json!([{"Config": config, "Layers": [name, "0-1/layer.tar"]}]);
        let changed = bundle.clone().with("manifest.json", item.to_string());
        for path in [
            changed.write_archive(directory.path()),
            changed.write_directory(directory.path()),
        ] {
            let message = Loader::new().refusal(&path);
            assert!(message.contains("outside.tar"), "{message}");
            if path.is_dir() {
                fs::remove_dir_all(path).unwrap();
            }
        }
    }
    for target in [
        outside,
        "../../outside.tar",
        "../../../../../../../../etc/passwd",
        "layer.tar",
        ".",
    ] {
        let linked = bundle
            .clone()
            .without("0-0/layer.tar")
            .link("0-0/layer.tar", target);
        for path in [
            linked.write_archive(directory.path()),
            linked.write_directory(directory.path()),
        ] {
            let message = Loader::new().refusal(&path);
            assert!(
                message.contains("link that leads nowhere or out of it"),
                "{message}"
            );
            if path.is_dir() {
                fs::remove_dir_all(path).unwrap();
            }
        }
    }
    // Also a directory in the path.
    let (_, bundle) = oci();
    let path = bundle.write_directory(directory.path());
    fs::rename(path.join("blobs"), directory.path().join("blobs")).unwrap();
    std::os::unix::fs::symlink("../blobs", path.join("blobs")).unwrap();
    let message = Loader::new().refusal(&path);
    assert!(message.contains("out of it"), "{message}");
}

#[test]
fn cycles_of_links_end() {
    let (_, mut bundle) = docker();
    bundle
        .0
        .insert("0-0/layer.tar".into(), File::Symlink("other".into()));
    bundle
        .0
        .insert("0-0/other".into(), File::Symlink("layer.tar".into()));
    let directory = tempfile::tempdir().unwrap();
    let message = Loader::new().refusal(&bundle.write_archive(directory.path()));
    assert!(message.contains("nowhere"), "{message}");
}

#[test]
fn a_blob_that_is_not_a_regular_file_is_not_opened() {
    let (image, bundle) = oci();
    let directory = tempfile::tempdir().unwrap();
    let path = bundle.write_directory(directory.path());
    let blob = path.join(blob(&image.layers[0].digest()));
    fs::remove_file(&blob).unwrap();
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&blob)
            .status()
            .unwrap()
            .success()
    );
    let message = Loader::new().try_load(&path, None).unwrap_err().to_string();
    assert!(message.contains("not a regular file"), "{message}");
    fs::remove_file(&blob).unwrap();
    fs::create_dir(&blob).unwrap();
    let message = Loader::new().try_load(&path, None).unwrap_err().to_string();
    assert!(message.contains("not a regular file"), "{message}");
}

#[test]
fn blobs_must_have_the_digest_in_their_name() {
    let (image, bundle) = oci();
    let altered = |name: &str| {
        let mut bytes = bundle.bytes(name);
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        bundle.clone().with(name, bytes)
    };
    let manifest = blob(&image.digest());
    assert_refused(
        &altered(&manifest),
        &format!("`{manifest}` in it is damaged"),
    );
    let config = blob(&Digest::of(&image.config));
    assert_refused(&altered(&config), &format!("`{config}` in it is damaged"));

    let directory = tempfile::tempdir().unwrap();
    let layer = blob(&image.layers[0].digest());
    let path = altered(&layer).write_archive(directory.path());
    let message = Loader::new().try_load(&path, None).unwrap_err().to_string();
    assert!(message.contains("damaged"), "{message}");
    let longer = [bundle.bytes(&layer), vec![0]].concat();
    let path = bundle
        .clone()
        .with(&layer, longer)
        .write_archive(directory.path());
    let message = Loader::new().try_load(&path, None).unwrap_err().to_string();
    assert!(message.contains("bytes long instead of"), "{message}");

    let (image, bundle) = docker();
    let other = plain_layer("other").blob;
    let path = bundle
        .with("0-0/layer.tar", other)
        .write_archive(directory.path());
    let message = Loader::new().try_load(&path, None).unwrap_err().to_string();
    assert!(
        message.contains(&image.layers[0].diff_id.to_string()),
        "{message}"
    );
}

#[test]
fn missing_members_are_named() {
    let (image, bundle) = oci();
    for name in [blob(&image.digest()), blob(&Digest::of(&image.config))] {
        assert_refused(
            &bundle.clone().without(&name),
            &format!("`{name}` is missing"),
        );
    }
    let (_, bundle) = docker();
    assert_refused(
        &bundle.clone().without("0-1/layer.tar"),
        "`0-1/layer.tar` is missing",
    );
    assert_refused(&bundle.clone().without("manifest.json"), "older than 1.10");
    let neither = bundle.without("manifest.json").without("repositories");
    assert_refused(&neither, "neither an OCI layout");
}

#[test]
fn malformed_documents_are_refused() {
    let (image, bundle) = docker();
    for (document, part) in [
        ("", "malformed"),
        ("{}", "malformed"),
        ("[]", "names no image"),
        ("[{}]", "malformed"),
        (
            r#"[{"Config": "nothing.json"}]"#,
            "`nothing.json` is missing",
        ),
        (r#"[{"Config": "\u001b[2J/x"}]"#, "is missing"),
        (
            r#"[{"Config": "manifest.json", "Layers": null}]"#,
            "malformed",
        ),
    ] {
        assert_refused(&bundle.clone().with("manifest.json", document), part);
    }
    let config = format!("{}.json", Digest::of(&image.config).hex());
    let uneven = json!([{"Config": config, "Layers": ["0-0/layer.tar"]}]).to_string();
    assert_refused(
        &bundle.clone().with("manifest.json", uneven),
        "1 layers, its config 2",
    );
    let large = vec![b' '; (4 << 20) + 1];
    assert_refused(
        &bundle.with("manifest.json", large),
        "larger than 4194304 bytes",
    );

    let (image, bundle) = oci();
    for (document, part) in [
        ("{", "malformed"),
        (r#"{"schemaVersion": 2, "manifests": []}"#, "names no image"),
        (r#"{"schemaVersion": 1, "fsLayers": []}"#, "schema 1"),
        (
            r#"{"schemaVersion": 2, "manifests": [{"mediaType": "x", "size": 1, "digest": "sha256:../../x"}]}"#,
            "bad digest",
        ),
        (
            r#"{"schemaVersion": 2, "manifests": [{"mediaType": "x", "size": 1, "digest": "md5:../../x"}]}"#,
            "bad digest",
        ),
    ] {
        assert_refused(&bundle.clone().with("index.json", document), part);
    }
    let manifest = String::from_utf8(image.manifest.clone()).unwrap();
    assert_refused(&bundle.with("index.json", manifest), "it is a manifest");
}

#[test]
fn bytes_that_are_not_an_archive_are_refused() {
    let (_, bundle) = oci();
    let archive = bundle.archive();
    let mut flipped = archive.clone();
    flipped[100] ^= 1;
    let directory = tempfile::tempdir().unwrap();
    for (bytes, part) in [
        (Vec::new(), "it is empty"),
        (b"\n<!DOCTYPE html>".to_vec(), "it is HTML"),
        (gzip(b"<html>"), "it is HTML"),
        (b"{\"errors\":[]}".to_vec(), "it is JSON"),
        (b"PK\x03\x04".to_vec(), "it is a zip archive"),
        (vec![0; 10240], "no image"),
        (b"hello".to_vec(), "not a readable tar archive"),
        (vec![b'x'; 10_000], "not a readable tar archive"),
        (flipped, "checksum"),
        (
            archive[..archive.len() / 2].to_vec(),
            "not a readable tar archive",
        ),
        (b"\xfd7zXZ\0and so on".to_vec(), "`xz -dc FILE | mica load`"),
        (b"BZh91AY&SYand so on".to_vec(), "compressed with bzip2"),
        (gzip(b"hello"), "not a readable tar archive"),
        (gzip(&archive)[..1000].to_vec(), "the compressed archive"),
        (
            b"\x28\xb5\x2f\xfd\xff\xff\xff\xff\xff".to_vec(),
            "the compressed archive",
        ),
    ] {
        let message = Loader::new().refusal(&write(directory.path(), bytes));
        assert!(message.contains(part), "{message}");
    }
    for (path, part) in [
        ("/proc/none/x.tar", "No such file"),
        ("/dev/zero", "device"),
    ] {
        let message = Loader::new().refusal(Path::new(path));
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn a_decompression_bomb_is_stopped() {
    let directory = tempfile::tempdir().unwrap();
    let bomb = gzip(&vec![0; 32 << 20]);
    let path = write(directory.path(), bomb);
    let loader = Loader::new().edit_settings(|settings| settings.limits.layer_size = 1 << 20);
    let message = loader.refusal(&path);
    assert!(message.contains("limits.layer-size"), "{message}");
    let loader = Loader::new().edit_settings(|settings| {
        settings.limits.compression_ratio = 10;
        settings.limits.compression_ratio_from = 1 << 20;
    });
    let message = loader.refusal(&path);
    assert!(message.contains("limits.compression-ratio"), "{message}");
}

#[test]
fn a_member_of_any_size_is_checked_against_the_archive() {
    // A header that claims more bytes than there are, or than a number can hold.
    for size in ["77777777777\0", "\u{0}"] {
        let archive = crate::layer::archive::Archive::new()
            .header(124, size.as_bytes())
            .file("manifest.json", "[]")
            .finish();
        let directory = tempfile::tempdir().unwrap();
        let message = Loader::new().refusal(&write(directory.path(), archive));
        assert!(message.contains("images.tar"), "{message}");
    }
    let mut huge = vec![0x80; 1];
    huge.extend([
        0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
    ]);
    let archive = crate::layer::archive::Archive::new()
        .header(124, huge)
        .file("manifest.json", "[]")
        .finish();
    let directory = tempfile::tempdir().unwrap();
    Loader::new().refusal(&write(directory.path(), archive));
}

#[test]
fn a_blob_is_checked_though_its_layer_is_here_already() {
    let (image, bundle) = oci();
    let directory = tempfile::tempdir().unwrap();
    let loader = Loader::new();
    loader.load(&bundle.write_archive(directory.path()), None);
    let refusal = |bundle: &Bundle| {
        let path = bundle.write_archive(directory.path());
        loader.try_load(&path, None).unwrap_err().to_string()
    };
    let layer = blob(&image.layers[0].digest());
    let bytes = bundle.bytes(&layer);
    let mut altered = bytes.clone();
    altered[bytes.len() / 2] ^= 1;
    let message = refusal(&bundle.clone().with(&layer, altered));
    assert!(message.contains("damaged"), "{message}");
    let message = refusal(&bundle.clone().with(&layer, &bytes[1..]));
    assert!(message.contains("bytes long instead of"), "{message}");

    let changed = |edit: &dyn Fn(&mut serde_json::Value)| {
        let mut image = image.clone();
        image.edit_manifest(|manifest| edit(&mut manifest["layers"][0]));
        layout(&[named(&image, REF_NAME, "x:1")], &[&image])
    };
    let message = refusal(&changed(&|layer| layer["mediaType"] = json!("text/plain")));
    assert!(message.contains("media type `text/plain`"), "{message}");
    // Another blob, with another diff ID.
    let other = TestImage::new(vec![crate::image::TestLayer::noise(77, 100)]);
    let lie = changed(&|layer| {
        layer["digest"] = json!(other.layers[0].digest());
        layer["size"] = json!(other.layers[0].blob.len());
    });
    let lie = lie.with(
        &blob(&other.layers[0].digest()),
        other.layers[0].blob.clone(),
    );
    let message = refusal(&lie);
    assert!(message.contains("has the diff ID"), "{message}");
    assert!(
        loader
            .try_load(&bundle.write_archive(directory.path()), None)
            .is_ok()
    );
}

#[test]
fn messages_show_a_bounded_part_of_what_is_foreign() {
    let long = "x".repeat(100_000);
    let (_, bundle) = oci();
    let directory = tempfile::tempdir().unwrap();
    for index in [
        json!(long).to_string(),
        json!({"schemaVersion": 2, "manifests": long}).to_string(),
        json!({"schemaVersion": 2, "mediaType": long, "manifests": []}).to_string(),
        json!({"schemaVersion": 2, "manifests": [{"mediaType": "x", "size": 1, "digest": long}]})
            .to_string(),
    ] {
        let path = bundle
            .clone()
            .with("index.json", index)
            .write_archive(directory.path());
        let message = Loader::new().refusal(&path);
        assert!(message.len() < 1000, "{} bytes", message.len());
    }
    let mut image = TestImage::small();
    image.edit_manifest(|manifest| manifest["layers"][0]["mediaType"] = json!(long));
    let bundle = layout(&[named(&image, REF_NAME, "x:1")], &[&image]);
    let path = bundle.write_archive(directory.path());
    let message = Loader::new().try_load(&path, None).unwrap_err().to_string();
    assert!(message.len() < 1500, "{} bytes", message.len());
    let config = json!({"architecture": long, "os": long, "rootfs": {"type": "layers"}});
    let image = TestImage::with_config(Vec::new(), &config);
    let bundle = layout(&[named(&image, REF_NAME, "x:1")], &[&image]);
    let message = Loader::new().refusal(&bundle.write_archive(directory.path()));
    assert!(message.len() < 2000, "{} bytes", message.len());
}

#[test]
fn a_zstd_window_that_is_too_large_names_its_setting() {
    let (_, bundle) = oci();
    let archive = bundle.archive();
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
    encoder.long_distance_matching(true).unwrap();
    encoder.window_log(24).unwrap();
    encoder.include_contentsize(false).unwrap();
    std::io::Write::write_all(&mut encoder, &archive).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = write(directory.path(), encoder.finish().unwrap());
    let small = || Loader::new().edit_settings(|settings| settings.limits.zstd_window = 1 << 20);
    let message = small().refusal(&path);
    assert!(message.contains("`zstd-window` of 1048576"), "{message}");
    assert!(Loader::new().try_load(&path, None).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever an archive contains, loading ends in an image or an error, and an error leaves
    /// only complete layers behind.
    #[test]
    fn damaged_archives_are_refused_or_harmless(
        shape in 0..2,
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let bundle = match shape {
            0 => docker().1,
            _ => layout(&[named(&docker().0, REF_NAME, "x:1")], &[&docker().0]),
        };
        let mut bytes = bundle.archive();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let directory = tempfile::tempdir().unwrap();
        let loader = Loader::new();
        let _ = loader.try_load(&write(directory.path(), bytes), None);
        prop_assert!(loader.store.fsck(false).unwrap().is_clean());
    }
}
