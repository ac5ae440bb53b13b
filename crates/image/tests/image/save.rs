//! Saves images: the archives contain the same images, as read by us, by skopeo and, as far as its
//! format allows, by Docker.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use micabox_image::ArchiveFormat;
use micabox_image::progress::Silent;
use micabox_image::store::{Error, Image};
use micabox_image::{
    Compression, Digest, LoadOptions, SaveError, SaveOptions, Settings, load, save,
};

use crate::image::{TestImage, TestLayer};
use crate::layer::archive::Archive;
use crate::layer::{TestStore, store};

fn options(format: ArchiveFormat, compression: Option<Compression>) -> SaveOptions {
    SaveOptions {
        format,
        compression,
        settings: Arc::new(Settings::default()),
    }
}

fn saved(store: &TestStore, names: &[&str], options: &SaveOptions) -> Vec<u8> {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut bytes = Vec::new();
    save(store, &names, &mut bytes, options, &Silent).unwrap();
    bytes
}

/// Two images that share a layer; one has a layer twice.
fn images() -> [TestImage; 2] {
    let shared = TestLayer::noise(1, 300_000);
    let rules = TestLayer::gzip(
        &Archive::new()
            .whiteout("d/.wh.x")
            .hard_link("other", "noise-1")
            .pax(&[("SCHILY.xattr.user.a", b"b")])
            .file("+page.svelte", "text")
            .finish(),
    );
    [
        TestImage::new(vec![shared.clone(), rules.clone(), rules]),
        TestImage::new(vec![shared, TestLayer::noise(2, 1000)]),
    ]
}

/// A store with both images.
fn filled() -> TestStore {
    let store = store();
    for (image, name) in images().iter().zip(["first:1", "registry.example/second"]) {
        for layer in &image.layers {
            let expect = micabox_image::convert::Expect {
                blob: Some(micabox_image::Descriptor {
                    media_type: layer.media_type.to_owned(),
                    digest: layer.digest(),
                    size: layer.blob.len() as u64,
                }),
                diff_id: layer.diff_id,
                archive: None,
                checksum: None,
            };
            let limits = micabox_image::Limits::default();
            micabox_image::convert::convert_layer(&store, &layer.blob[..], &expect, &limits)
                .unwrap();
        }
        store
            .publish_image(&image.manifest, &image.config, &[name.parse().unwrap()])
            .unwrap();
    }
    store
}

/// Loads an archive into an empty store.
fn loaded(archive: &[u8]) -> (TestStore, Vec<Image>) {
    let store = store();
    let path = store.directory.path().join("archive.tar");
    fs::write(&path, archive).unwrap();
    let options = LoadOptions {
        platform: None,
        settings: Arc::new(Settings::default()),
    };
    let images = load(&store, &path, None, &options, &Silent).unwrap();
    (store, images)
}

fn diff_ids(image: &Image) -> Vec<Digest> {
    image.layers.iter().map(|layer| layer.diff_id).collect()
}

#[test]
fn saved_images_load_as_the_same() {
    let store = filled();
    let names = ["first:1", "registry.example/second:latest"];
    let mut every = vec![options(ArchiveFormat::Docker, None)];
    every.extend(
        [None, Some(Compression::Zstd), Some(Compression::None)]
            .map(|compression| options(ArchiveFormat::Oci, compression)),
    );
    for options in every {
        let archive = saved(&store, &names, &options);
        assert!(archive == saved(&store, &names, &options), "{options:?}");
        let (copy, images) = loaded(&archive);
        assert_eq!(images.len(), 2, "{options:?}");
        for name in names {
            let (was, is) = (store.image(name).unwrap(), copy.image(name).unwrap());
            assert_eq!(diff_ids(&was), diff_ids(&is));
            assert_eq!(was.config_digest, is.config_digest);
            for (was, is) in was.layers.iter().zip(&is.layers) {
                assert_eq!(was.record.checksum, is.record.checksum);
            }
        }
        // The copy saves the same archive.
        assert!(archive == saved(&copy, &names, &options), "{options:?}");
    }
}

#[test]
fn an_image_is_saved_under_the_names_that_it_was_asked_for_by() {
    let store = filled();
    let image = store.image("first:1").unwrap();
    store
        .tag(&"again:2".parse().unwrap(), &image.manifest_digest)
        .unwrap();
    for format in [ArchiveFormat::Oci, ArchiveFormat::Docker] {
        let options = options(format, None);
        let (copy, images) = loaded(&saved(&store, &["first:1", "again:2"], &options));
        assert_eq!(images.len(), 1);
        copy.image("first:1").unwrap();
        copy.image("again:2").unwrap();
        let digest = image.manifest_digest.to_string();
        let (copy, images) = loaded(&saved(&store, &[&digest], &options));
        assert_eq!(images.len(), 1);
        assert!(copy.image("first:1").is_err());
    }
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program} is needed: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Copies an image to a layout with skopeo, and returns the diff IDs and the names of files.
fn through_skopeo(source: &str, directory: &Path) -> Vec<String> {
    let layout = format!("oci:{}:x", directory.display());
    run(
        "skopeo",
        &["copy", "--quiet", "--insecure-policy", source, &layout],
    );
    let config = run("skopeo", &["inspect", "--config", &layout]);
    let config: serde_json::Value = serde_json::from_str(&config).unwrap();
    let diff_ids = config["rootfs"]["diff_ids"].as_array().unwrap();
    diff_ids
        .iter()
        .map(|id| id.as_str().unwrap().to_owned())
        .collect()
}

/// skopeo checks every digest, including diff IDs where it has to compress anew.
#[test]
fn skopeo_reads_every_shape() {
    let store = filled();
    let expected: Vec<_> = diff_ids(&store.image("first:1").unwrap())
        .iter()
        .map(Digest::to_string)
        .collect();
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| -> PathBuf { directory.path().join(name) };
    for (number, (format, compression, transport)) in [
        (ArchiveFormat::Oci, None, "oci-archive"),
        (ArchiveFormat::Oci, Some(Compression::Zstd), "oci-archive"),
        (ArchiveFormat::Oci, Some(Compression::None), "oci-archive"),
        // As `docker load` reads it.
        (ArchiveFormat::Oci, None, "docker-archive"),
        (ArchiveFormat::Docker, None, "docker-archive"),
    ]
    .into_iter()
    .enumerate()
    {
        let archive = path(&format!("{number}.tar"));
        let bytes = saved(&store, &["first:1"], &options(format, compression));
        fs::write(&archive, bytes).unwrap();
        let source = format!("{transport}:{}", archive.display());
        let found = through_skopeo(&source, &path(&number.to_string()));
        assert_eq!(found, expected, "{format} {compression:?} as {transport}");
    }
    // One of several images, by its name.
    let archive = path("both.tar");
    let names = ["first:1", "registry.example/second"];
    let bytes = saved(&store, &names, &options(ArchiveFormat::Oci, None));
    fs::write(&archive, bytes).unwrap();
    for transport in ["oci-archive", "docker-archive"] {
        let source = format!(
            "{transport}:{}:registry.example/second:latest",
            archive.display()
        );
        let found = through_skopeo(&source, &path(&format!("named-{transport}")));
        assert_eq!(found.len(), 2);
    }
}

fn refusal(store: &TestStore, names: &[&str], options: &SaveOptions) -> (SaveError, Vec<u8>) {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut bytes = Vec::new();
    let error = save(store, &names, &mut bytes, options, &Silent).unwrap_err();
    let litter = fs::read_dir(store.root().join("tmp")).unwrap().count();
    assert_eq!(litter, 0);
    (error, bytes)
}

#[test]
fn images_that_cannot_be_saved_are_named() {
    let store = filled();
    let oci = options(ArchiveFormat::Oci, None);
    let (error, bytes) = refusal(&store, &["first:1", "missing"], &oci);
    assert!(matches!(error, SaveError::Store(Error::NoImage { .. })));
    assert!(bytes.is_empty());
    let gzip = options(ArchiveFormat::Docker, Some(Compression::Gzip));
    let (error, _) = refusal(&store, &["first:1"], &gzip);
    assert!(error.to_string().contains("never compressed"), "{error}");

    // An altered layer: there is no archive, or one without the file that names its images.
    let layer = store.image("first:1").unwrap().layers[0].clone();
    let mut image = fs::read(&layer.path).unwrap();
    image[100_000] ^= 1;
    fs::write(&layer.path, image).unwrap();
    for format in [ArchiveFormat::Oci, ArchiveFormat::Docker] {
        let (error, bytes) = refusal(&store, &["first:1"], &options(format, None));
        let text = error.to_string();
        assert!(
            text.contains("fsck") && text.contains(&layer.diff_id.hex()),
            "{text}"
        );
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains("manifest.json") && !text.contains("index.json"));
    }
    fs::remove_file(layer.path.with_extension("recipe")).unwrap();
    let (error, bytes) = refusal(&store, &["first:1"], &oci);
    assert!(error.to_string().contains(".recipe"), "{error}");
    assert!(bytes.is_empty());
}

#[test]
fn an_error_of_the_output_is_reported() {
    struct Full(usize);
    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.0);
            self.0 -= count;
            match count {
                0 => Err(io::ErrorKind::StorageFull.into()),
                _ => Ok(count),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let store = filled();
    let options = options(ArchiveFormat::Oci, None);
    let whole = saved(&store, &["first:1"], &options).len();
    for room in [0, 1000, whole / 2, whole - 1] {
        let names = ["first:1".to_owned()];
        let error = save(&store, &names, &mut Full(room), &options, &Silent).unwrap_err();
        assert!(matches!(error, SaveError::Write(_)), "{error}");
    }
}
