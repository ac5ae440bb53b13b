//! Layers give back the archives that they were made from. The other tests assert this for all
//! archives that they convert; these tests are for what else may fail.

use std::fs;
use std::io::{self, Read};
use std::path::PathBuf;

use micabox_image::store::{Error, FsckOptions, Layer, Repair};
use proptest::prelude::*;

use crate::layer::archive::Archive;
use crate::layer::{self, TestStore, archive_of, convert, fast_store, store};

/// Every relation of an archive's bytes to the image: in it, not in it, and in another order.
fn everything() -> Vec<u8> {
    let body = |seed: u8, length: usize| -> Vec<u8> {
        (0..length)
            .map(|at| (at as u8).wrapping_mul(seed))
            .collect()
    };
    let mut bytes = Archive::new()
        .directory("./")
        .pax(&[
            ("path", b"long/name"),
            ("mtime", b"1.5"),
            ("comment", &[b'x'; 3000]),
        ])
        .file("x", body(3, 70_000))
        .file("replaced", body(5, 10_000))
        .file("replaced", body(7, 4096))
        .file("empty", "")
        .file("zeros", vec![0; 100_000])
        .file(
            "mostly-zeros",
            [vec![0; 65_536], vec![1], vec![0; 65_535]].concat(),
        )
        // Bodies without a file: ignored ones, a directory's, a whiteout's, a device's.
        .file(".wh..wh.aufs", body(11, 5000))
        .file(".wh.gone", body(13, 600))
        .file("directory/", body(17, 1000))
        .file(".wh..wh.plnk/1", body(19, 9000))
        .hard_link("linked", ".wh..wh.plnk/1")
        .hard_link("again", "linked")
        .pax(&[
            ("GNU.sparse.major", b"1"),
            ("GNU.sparse.minor", b"0"),
            ("GNU.sparse.name", b"sparse"),
            ("GNU.sparse.realsize", b"10000000"),
        ])
        .file("GNUSparseFile.0/sparse", sparse_body())
        .symlink("s", "x")
        .fifo("p")
        .finish();
    bytes.extend(body(23, 12_345));
    bytes
}

/// A sparse file's map and its three parts; one of them crosses pieces of the image.
fn sparse_body() -> Vec<u8> {
    let map = b"3\n512\n700\n1000000\n300001\n9999990\n10\n";
    let mut body = map.to_vec();
    body.resize(512, 0);
    body.extend((0..700 + 300_001 + 10).map(|at| (at % 251) as u8));
    body
}

fn recipe(layer: &Layer) -> PathBuf {
    layer.path.with_extension("recipe")
}

fn one_layer() -> (TestStore, Layer) {
    let store = fast_store();
    let layer = convert(&store, &everything()).unwrap();
    (store, layer)
}

/// Returns the message of a failed read of an archive.
fn refusal(store: &TestStore, layer: &Layer) -> String {
    let read = store.archive(layer).map_err(io::Error::other);
    let copied = read.and_then(|mut archive| io::copy(&mut archive, &mut io::sink()));
    let error = copied.expect_err("the archive came back");
    let inner = error.get_ref().unwrap().downcast_ref::<Error>().unwrap();
    assert!(matches!(inner, Error::Damaged { .. }), "{inner}");
    inner.to_string()
}

#[test]
fn archives_come_back_whole_however_they_are_read() {
    let (store, layer) = one_layer();
    let expected = everything();
    for step in [1, 511, 4096, 1 << 20] {
        let mut source = store.archive(&layer).unwrap();
        assert_eq!(source.size(), expected.len() as u64);
        let (mut archive, mut buffer) = (Vec::<u8>::new(), vec![0; step]);
        loop {
            let count = source.read(&mut buffer).unwrap();
            if count == 0 {
                break;
            }
            archive.extend(&buffer[..count]);
        }
        assert!(archive == expected, "in steps of {step}");
        assert_eq!(source.read(&mut buffer).unwrap(), 0);
    }
}

#[test]
fn a_recipe_is_small_and_holds_no_bodies() {
    let store = store();
    let files = (0..2000u32).fold(Archive::new(), |archive, number| {
        let contents: Vec<u8> = (0..300).map(|at| (at * number) as u8).collect();
        archive.file(&format!("some/directory/file-{number}"), contents)
    });
    let archive = files.finish();
    let layer = convert(&store, &archive).unwrap();
    let size = layer.record.recipe.unwrap().size;
    assert_eq!(
        fs::metadata(layer.path.with_extension("recipe"))
            .unwrap()
            .len(),
        size
    );
    assert!(size < 30 * 2000, "{size}");
}

#[test]
fn a_layer_that_was_altered_gives_no_archive() {
    let (store, layer) = one_layer();
    let mut image = fs::read(&layer.path).unwrap();
    image[8192] ^= 1; // in the first body
    fs::write(&layer.path, image).unwrap();
    let message = refusal(&store, &layer);
    assert!(
        message.contains("makes an archive of the digest"),
        "{message}"
    );
}

#[test]
fn a_recipe_that_is_gone_or_damaged_is_named_and_removed_with_its_layer() {
    type Harm = fn(&Layer);
    let harms: [(&str, Harm); 4] = [
        ("No such file", |layer| {
            fs::remove_file(recipe(layer)).unwrap()
        }),
        ("", |layer| fs::write(recipe(layer), "").unwrap()),
        ("", |layer| {
            fs::write(recipe(layer), "no zstd at all").unwrap()
        }),
        ("", |layer| {
            let bytes = fs::read(recipe(layer)).unwrap();
            fs::write(recipe(layer), &bytes[..bytes.len() - 10]).unwrap();
        }),
    ];
    for (part, harm) in harms {
        let (store, layer) = one_layer();
        harm(&layer);
        let message = refusal(&store, &layer);
        assert!(
            message.contains(part) && message.contains(".recipe"),
            "{message}"
        );
        assert!(message.contains("mica store fsck"), "{message}");
        let report = store.fsck(false).unwrap();
        assert_eq!(report.findings.len(), 1, "{report:?}");
        assert_eq!(report.findings[0].repair, Repair::RemoveLayer);
        assert!(report.findings[0].problem.contains("recipe"), "{report:?}");
        assert!(store.fsck(true).unwrap().is_clean());
        layer::assert_no_trace_of_layers(&store);
        convert(&store, &everything()).unwrap();
    }
}

/// An attacker who changes a recipe can change its record, too.
#[test]
fn a_thorough_fsck_makes_the_archives_again() {
    let (store, layer) = one_layer();
    let thorough = FsckOptions {
        archives: true,
        ..FsckOptions::default()
    };
    let plain = store.fsck(false).unwrap();
    let report = store.fsck_with(&thorough).unwrap();
    assert!(report.is_clean());
    assert_eq!(report.bytes, plain.bytes + everything().len() as u64);

    let other = convert(&store, &Archive::new().file("x", "y").finish()).unwrap();
    fs::copy(recipe(&other), recipe(&layer)).unwrap();
    let record = layer.path.with_extension("json");
    let text = fs::read_to_string(&record).unwrap();
    let (was, is) = (layer.record.recipe.unwrap(), other.record.recipe.unwrap());
    fs::write(&record, text.replace(&was.digest.hex(), &is.digest.hex())).unwrap();
    assert!(store.fsck(false).unwrap().is_clean());
    let report = store.fsck_with(&thorough).unwrap();
    assert_eq!(report.findings.len(), 1);
    assert!(report.findings[0].problem.contains("recipe"), "{report:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever a recipe contains, reading ends, with no more bytes than the layer has.
    #[test]
    fn damaged_recipes_are_read_to_an_end(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        inside in any::<bool>(),
    ) {
        let (store, layer) = one_layer();
        let mut bytes = fs::read(recipe(&layer)).unwrap();
        if inside {
            bytes = zstd::decode_all(&bytes[..]).unwrap();
        }
        for (at, byte) in changes {
            *at.get_mut(&mut bytes) = byte;
        }
        if inside {
            bytes = zstd::encode_all(&bytes[..], 1).unwrap();
        }
        fs::write(recipe(&layer), bytes).unwrap();
        if let Ok(mut archive) = store.archive(&layer) {
            let mut got = Vec::new();
            let whole = archive.read_to_end(&mut got);
            prop_assert!(got.len() as u64 <= layer.record.uncompressed_size);
            prop_assert!(whole.is_err() || got == everything());
        }
    }
}

#[test]
fn usage_and_prune_know_recipes() {
    let (store, layer) = one_layer();
    let usage = store.usage().unwrap();
    assert_eq!(usage.layers, 1);
    assert_eq!(archive_of(&store, &layer), everything());
    store.prune(&Default::default()).unwrap();
    layer::assert_no_trace_of_layers(&store);
}
