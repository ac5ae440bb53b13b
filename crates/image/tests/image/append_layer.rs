//! New images on top of others.

use std::fs;
use std::io::{self, Read};

use micabox_erofs::Reader;
use micabox_image::ArchiveFormat;
use micabox_image::convert::Place;
use micabox_image::progress::Silent;
use micabox_image::store::{FsckOptions, Image};
use micabox_image::{
    AppendLayerError, Digest, DockerConfig, ImageEdit, Limits, SaveOptions, append_layer, save,
};
use serde_json::{Value, json};

use crate::layer::archive::Archive;
use crate::layer::image::publish;
use crate::layer::{self, TestStore, archive_of, fast_store, refusal as archive_refusal};

fn base(store: &TestStore) -> Image {
    let archives = [
        Archive::new()
            .file("etc/passwd", "root")
            .file("gone", "x")
            .finish(),
        Archive::new().file("d/a", "1").file("d/b", "2").finish(),
    ];
    publish(store, &archives, "base")
}

/// A layer like a commit's: changed, new and removed files, an opaque directory, a hard link to a
/// lower layer's file.
fn changes() -> Vec<u8> {
    Archive::new()
        .directory("./")
        .file("etc/passwd", "root and others")
        .whiteout(".wh.gone")
        .directory("d/")
        .whiteout("d/.wh..wh..opq")
        .file("d/new", vec![7; 10_000])
        .hard_link("linked", "etc/passwd")
        .finish()
}

fn extended(store: &TestStore, base: &Image, changes_to: &ImageEdit) -> Image {
    let names = ["new:1".parse().unwrap()];
    let limits = Limits::default();
    append_layer(
        store,
        base,
        &changes()[..],
        changes_to,
        &names,
        &limits,
        Place::Here,
    )
    .unwrap()
}

/// Returns the paths of the merged image.
fn paths(image: &Image) -> Vec<String> {
    let mut bytes = fs::read(&image.fsmeta).unwrap();
    for layer in &image.layers {
        bytes.extend(fs::read(&layer.path).unwrap());
    }
    let reader = Reader::open(bytes).unwrap();
    let mut paths = Vec::new();
    reader
        .walk(|path, _| {
            paths.push(String::from_utf8(path.to_vec()).unwrap());
            Ok(())
        })
        .unwrap();
    paths.sort();
    paths
}

#[test]
fn an_appended_image_is_its_base_and_one_more_layer() {
    let store = fast_store();
    let base = base(&store);
    let image = extended(&store, &base, &ImageEdit::default());
    assert_eq!(image.reference.as_ref().unwrap().familiar(), "new:1");
    assert_eq!(image.layers[..2], base.layers);
    assert_eq!(image.layers[2].diff_id, Digest::of(&changes()));
    assert_eq!(
        paths(&image),
        ["/", "/d", "/d/new", "/etc", "/etc/passwd", "/linked"]
    );
    // The base is unchanged, and the store is sound up to the last archive.
    assert_eq!(store.image("base").unwrap().layers, base.layers);
    let thorough = FsckOptions {
        archives: true,
        ..FsckOptions::default()
    };
    let report = store.fsck_with(&thorough).unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!((report.leftovers, report.strangers.len()), (0, 0));
    assert!(archive_of(&store, &image.layers[2]) == changes());

    // More layers can be added on top; the same changes are the same layer.
    let again = extended(&store, &image, &ImageEdit::default());
    assert_eq!(again.layers.len(), 4);
    assert_eq!(again.layers[3], again.layers[2]);
}

#[test]
fn the_config_is_the_bases_but_for_the_edits() {
    let store = fast_store();
    let base = base(&store);
    let was: Value = serde_json::from_slice(&store.config(&base.manifest_digest).unwrap()).unwrap();
    let text = |text: &str| Some(text.to_owned());
    let mut run = base.config.config().clone().unwrap();
    run.set_cmd(Some(vec!["serve".to_owned()]));
    let changes = ImageEdit {
        created: text("2026-01-02T03:04:05Z"),
        author: text("an author"),
        created_by: text("mica commit"),
        comment: text("why"),
        config: Some(run),
        docker: DockerConfig {
            healthcheck: Some(json!({"Test": ["NONE"]})),
            on_build: vec!["RUN make".to_owned()],
            shell: Some(vec!["/bin/bash".to_owned(), "-c".to_owned()]),
        },
    };
    let image = extended(&store, &base, &changes);
    assert_eq!(
        image.config.config().as_ref().unwrap().cmd(),
        &Some(vec!["serve".to_owned()])
    );
    let is: Value = serde_json::from_slice(&store.config(&image.manifest_digest).unwrap()).unwrap();
    assert_eq!(is["created"], "2026-01-02T03:04:05Z");
    assert_eq!(is["author"], "an author");
    assert_eq!(is["config"]["Healthcheck"]["Test"], json!(["NONE"]));
    assert_eq!(is["config"]["Shell"], json!(["/bin/bash", "-c"]));
    assert_eq!(is["config"]["OnBuild"], json!(["RUN make"]));
    assert_eq!(is["architecture"], was["architecture"]);
    // The base has no history of its two layers, so a history of only the third would be wrong.
    assert_eq!(is["history"], Value::Null);

    // On top of an image without layers there is a complete history.
    let empty = publish(&store, &[], "empty");
    let image = extended(&store, &empty, &changes);
    let is: Value = serde_json::from_slice(&store.config(&image.manifest_digest).unwrap()).unwrap();
    assert_eq!(is["history"].as_array().unwrap().len(), 1);
    assert_eq!(is["history"][0]["created_by"], "mica commit");
    assert_eq!(is["history"][0]["comment"], "why");
    let twice = ImageEdit {
        docker: changes.docker.clone(),
        ..ImageEdit::default()
    };
    let more = extended(&store, &image, &twice);
    let is: Value = serde_json::from_slice(&store.config(&more.manifest_digest).unwrap()).unwrap();
    assert_eq!(is["history"].as_array().unwrap().len(), 2);
    // Instructions for builds are added to those of the base.
    assert_eq!(is["config"]["OnBuild"], json!(["RUN make", "RUN make"]));
    assert_eq!(is["config"]["Cmd"], json!(["serve"]));
}

#[test]
fn a_config_of_another_spelling_gets_the_layer_where_it_has_its_own() {
    let store = fast_store();
    let layer = Archive::new().file("a", "").finish();
    layer::convert(&store, &layer).unwrap();
    let (manifest, config) = layer::image::documents(std::slice::from_ref(&layer));
    let odd = String::from_utf8(config.clone()).unwrap();
    let odd = odd
        .replace("rootfs", "RootFS")
        .replace("\"config\"", "\"Config\"");
    let manifest = String::from_utf8(manifest).unwrap();
    let manifest = manifest.replace(
        &Digest::of(&config).hex(),
        &Digest::of(odd.as_bytes()).hex(),
    );
    let base = store
        .publish_image(manifest.as_bytes(), odd.as_bytes(), &[])
        .unwrap();
    let edit = ImageEdit {
        config: base.config.config().clone(),
        ..ImageEdit::default()
    };
    let image = extended(&store, &base, &edit);
    assert_eq!(image.layers.len(), 2);
    let is: Value = serde_json::from_slice(&store.config(&image.manifest_digest).unwrap()).unwrap();
    assert_eq!((&is["RootFS"], &is["Config"]), (&Value::Null, &Value::Null));
    assert_eq!(is["config"]["Cmd"], json!(["sh"]));
}

#[test]
fn an_appended_image_can_be_saved() {
    let store = fast_store();
    let image = extended(&store, &base(&store), &ImageEdit::default());
    let options = SaveOptions {
        format: ArchiveFormat::Oci,
        compression: None,
        settings: std::sync::Arc::new(micabox_image::Settings {
            conversion: Place::Here,
            ..Default::default()
        }),
    };
    let mut bytes = Vec::new();
    let names = [image.manifest_digest.to_string()];
    save(&store, &names, &mut bytes, &options, &Silent).unwrap();
    assert!(bytes.len() > 1000);
}

fn failure(
    store: &TestStore,
    base: &Image,
    source: impl Read,
    limits: &Limits,
) -> AppendLayerError {
    append_layer(
        store,
        base,
        source,
        &ImageEdit::default(),
        &[],
        limits,
        Place::Here,
    )
    .unwrap_err()
}

#[test]
fn an_invalid_layer_is_refused_and_leaves_nothing() {
    let store = fast_store();
    let base = base(&store);
    let before = store.usage().unwrap();
    let escaping = Archive::new().file("../x", "").finish();
    archive_refusal(&escaping);
    let error = failure(&store, &base, &escaping[..], &Limits::default());
    assert!(matches!(error, AppendLayerError::Layer(_)), "{error}");
    assert!(
        error.to_string().starts_with("the new layer sha256:"),
        "{error}"
    );

    struct Fails;
    impl Read for Fails {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("no more"))
        }
    }
    let error = failure(&store, &base, Fails, &Limits::default());
    assert!(matches!(error, AppendLayerError::Read(_)), "{error}");

    let small = Limits {
        layer_size: 1000,
        ..Limits::default()
    };
    let error = failure(&store, &base, &changes()[..], &small);
    assert!(error.to_string().contains("layer-size"), "{error}");
    assert_eq!(store.usage().unwrap(), before);
}
