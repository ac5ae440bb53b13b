//! Layers that are packed into chunks: the same bytes afterwards, shared chunks, removal, damage.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use micabox_image::progress::Silent;
use micabox_image::store::{Error, Image, PackChoice, PackReport, Patience, PruneOptions, Repair};
use micabox_image::{Digest, Store};
use micabox_testing::run;

use crate::files::noise;
use crate::layer::archive::Archive;
use crate::layer::image::publish;
use crate::layer::{TestStore, convert, store};

const ALL: PackChoice = PackChoice::UnusedFor(Duration::ZERO);

/// A layer with a file that all have, and one that only this one has.
fn layer(name: &str) -> Vec<u8> {
    let seed = name
        .bytes()
        .fold(0, |seed, byte| seed * 31 + u64::from(byte));
    Archive::new()
        .directory("./")
        .file("shared", noise(1, 900_000))
        .file(&format!("own-{name}"), noise(seed + 7, 300_000))
        .file("zeros", vec![0; 2_000_000])
        .file("small", name)
        .finish()
}

fn image(store: &TestStore, name: &str) -> Image {
    publish(store, &[layer(name)], name)
}

fn pack(store: &Store, choice: &PackChoice) -> PackReport {
    store.pack(choice, Patience::Wait, &Silent).unwrap()
}

/// Returns all files below a directory with this suffix.
fn files(directory: &Path, suffix: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, suffix));
        } else if path.to_string_lossy().ends_with(suffix) {
            found.push(path);
        }
    }
    found
}

fn packs(store: &Store) -> Vec<PathBuf> {
    files(&store.root().join("packs"), ".pack")
}

fn packs_size(store: &Store) -> u64 {
    packs(store)
        .iter()
        .map(|path| fs::metadata(path).unwrap().len())
        .sum()
}

fn assert_clean(store: &Store) {
    let report = store.fsck(false).unwrap();
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    assert_eq!(report.strangers, [] as [&Path; 0]);
}

#[test]
fn a_packed_layer_has_its_bytes_and_takes_less() {
    let store = store();
    let image = image(&store, "one");
    let path = &image.layers[0].path;
    let (before, blocks) = (
        fs::read(path).unwrap(),
        fs::metadata(path).unwrap().blocks(),
    );
    let report = pack(&store, &ALL);
    assert_eq!(report.packed, [image.layers[0].diff_id]);
    assert!(!path.exists());
    assert!(report.added < report.before * 3 / 4, "{report:?}");

    // It is there as before: its image, its archive, other images of it.
    let found = store.image("one").unwrap();
    assert!(store.is_packed(&found.layers[0]));
    let mut archive = Vec::new();
    let mut reader = store.archive(&found.layers[0]).unwrap();
    reader.read_to_end(&mut archive).unwrap();
    assert!(archive == layer("one"));
    let above = Archive::new().file("above", "x").finish();
    let other = publish(&store, &[layer("one"), above], "other");
    assert!(store.is_packed(&other.layers[0]));
    assert_clean(&store);
    let usage = store.usage().unwrap();
    assert_eq!(usage.packed_layers, 1);
    assert!(usage.saved_size > 500_000, "{usage:?}");

    store.unpack(&found, &Silent).unwrap();
    assert_eq!(fs::read(path).unwrap(), before);
    assert!(
        fs::metadata(path).unwrap().blocks() <= blocks,
        "it has holes again"
    );
    assert_clean(&store);
    // Its chunks are still there.
    let report = pack(&store, &PackChoice::Images(vec![image.manifest_digest]));
    assert_eq!((report.packed.len(), report.added), (1, 0));
}

#[test]
fn chunks_are_zstd_frames() {
    let store = store();
    image(&store, "one");
    pack(&store, &ALL);
    let [pack] = &packs(&store)[..] else {
        panic!("one layer has one pack");
    };
    assert!(
        pack.to_string_lossy()
            .contains(&Digest::of(&fs::read(pack).unwrap()).hex())
    );
    let frames = pack.with_extension("zst");
    let bytes = fs::read(pack).unwrap();
    assert_eq!(bytes[..8], *b"mica-pk\x01");
    fs::write(&frames, &bytes[8..]).unwrap();
    let inflated = run(Command::new("zstd").arg("-dc").arg(&frames));
    let shared = String::from_utf8(noise(1, 900_000)).unwrap();
    // Its chunks follow each other, as all of them are new.
    assert!(inflated.contains(&shared));
}

#[test]
fn equal_files_of_different_layers_are_kept_once() {
    let store = store();
    image(&store, "one");
    pack(&store, &ALL);
    let one = packs_size(&store);
    image(&store, "two");
    image(&store, "three");
    pack(&store, &ALL);
    let own = packs_size(&store) - one;
    assert!(
        own < one,
        "two more take {own} bytes in place of {}",
        2 * one
    );
    assert_clean(&store);
}

#[test]
fn an_image_that_a_sandbox_uses_stays_as_it_is() {
    let store = store();
    let (idle, used) = (image(&store, "idle"), image(&store, "used"));
    store.lease("sandbox", &[used.manifest_digest]).unwrap();
    let report = pack(&store, &ALL);
    assert_eq!(report.packed, [idle.layers[0].diff_id]);
    assert_eq!(report.in_use, [used.layers[0].diff_id]);
    assert!(used.layers[0].path.exists());
    store.lease("another", &[idle.manifest_digest]).unwrap();
    assert!(!idle.layers[0].path.exists());
    let before = packs_size(&store);
    store.prune(&PruneOptions::default()).unwrap();
    assert_eq!(packs_size(&store), before);
    store.unpack(&idle, &Silent).unwrap();
    assert!(idle.layers[0].path.exists());
}

#[test]
fn images_that_were_not_used_for_long_are_packed() {
    let store = store();
    let (old, new) = (image(&store, "old"), image(&store, "new"));
    let used = |image: &Image, ago: Duration| {
        let record = image.fsmeta.with_file_name("image.json");
        let file = fs::File::options().write(true).open(record).unwrap();
        file.set_modified(SystemTime::now() - ago).unwrap();
    };
    let week = Duration::from_secs(7 * 86_400);
    used(&old, 2 * week);
    used(&new, week / 2);
    let report = pack(&store, &PackChoice::UnusedFor(week));
    assert_eq!(report.packed, [old.layers[0].diff_id]);
    // Its lease is a use.
    store.lease("sandbox", &[old.manifest_digest]).unwrap();
    fs::remove_dir_all(store.root().join("sandboxes/sandbox")).unwrap();
    assert_eq!(pack(&store, &PackChoice::UnusedFor(week)).packed, []);
    // A layer that an image has which is used is not packed for another one.
    used(&old, 2 * week);
    let above = Archive::new().file("above", "x").finish();
    publish(&store, &[layer("old"), above], "above");
    assert_eq!(pack(&store, &PackChoice::UnusedFor(week)).packed, []);
}

#[test]
fn what_would_hardly_become_smaller_stays_whole() {
    let store = store();
    let random: Vec<u8> = (0..10_000_u32)
        .flat_map(|block| *Digest::of(&block.to_le_bytes()).as_bytes())
        .collect();
    let archive = Archive::new().file("random", random).finish();
    let image = publish(&store, &[archive], "random");
    let report = pack(&store, &ALL);
    assert_eq!(report.incompressible, [image.layers[0].diff_id]);
    assert!(image.layers[0].path.exists());
    assert_eq!(packs(&store), [] as [&Path; 0]);
}

#[test]
fn chunks_of_images_that_are_removed_are_removed() {
    let store = store();
    let kept = image(&store, "kept");
    let bytes = fs::read(&kept.layers[0].path).unwrap();
    // The first pack has the chunk that both have.
    for gone in ["gone", "also-gone"] {
        let more = Archive::new().file("large", noise(99, 4_000_000)).finish();
        publish(&store, &[layer(gone), more], gone);
        let digest = store.image(gone).unwrap().manifest_digest;
        pack(&store, &PackChoice::Images(vec![digest]));
    }
    pack(&store, &ALL);
    let before = packs_size(&store);
    store.untag(&"gone".parse().unwrap()).unwrap();
    let planned = store.usage().unwrap().reclaimable_size;
    let dry = PruneOptions {
        dry_run: true,
        ..PruneOptions::default()
    };
    assert_eq!(store.prune(&dry).unwrap().size, planned);
    assert_eq!(store.prune(&PruneOptions::default()).unwrap().size, planned);
    assert_clean(&store);
    store.remove("also-gone").unwrap();
    assert_clean(&store);
    store.prune(&PruneOptions::default()).unwrap();
    assert_clean(&store);
    let after = packs_size(&store);
    assert!(after < before / 2, "{after} bytes of {before}");
    let found = store.image("kept").unwrap();
    store.unpack(&found, &Silent).unwrap();
    assert_eq!(fs::read(&kept.layers[0].path).unwrap(), bytes);

    store.remove("kept").unwrap();
    assert_eq!(packs(&store), [] as [&Path; 0]);
    assert_eq!(files(&store.root().join("layers"), ""), [] as [&Path; 0]);
}

#[test]
fn a_chunk_that_is_damaged_is_never_used() {
    let store = store();
    let image = image(&store, "one");
    pack(&store, &ALL);
    let [pack_path] = &packs(&store)[..] else {
        panic!("one layer has one pack");
    };
    let sound = fs::read(pack_path).unwrap();
    for at in [8, 500, sound.len() / 2, sound.len() - 1] {
        let mut changed = sound.clone();
        changed[at] ^= 1;
        fs::write(pack_path, &changed).unwrap();
        let refused = store.unpack(&image, &Silent);
        assert!(
            matches!(refused, Err(Error::Damaged { .. })),
            "{at}: {refused:?}"
        );
        assert!(!image.layers[0].path.exists());
        let report = store.fsck(false).unwrap();
        let repairs: Vec<_> = report
            .findings
            .iter()
            .map(|finding| finding.repair)
            .collect();
        assert_eq!(
            repairs[0],
            Repair::RemoveLayer,
            "{at}: {:?}",
            report.findings
        );
    }
    for shorter in [0, 8, sound.len() - 1] {
        fs::write(pack_path, &sound[..shorter]).unwrap();
        assert!(!store.fsck(false).unwrap().is_clean(), "{shorter}");
    }
    fs::remove_file(pack_path).unwrap();
    let problem = store.unpack(&image, &Silent).unwrap_err().to_string();
    assert!(problem.contains("is missing"), "{problem}");
    fs::write(pack_path, &sound).unwrap();
    assert_clean(&store);

    // A list whose pack is gone is no layer's.
    fs::remove_file(pack_path).unwrap();
    assert!(matches!(store.image("one"), Err(Error::Unusable { .. })));
    fs::write(pack_path, &sound).unwrap();

    // Of a layer that is whole, only the packed form goes.
    store.unpack(&image, &Silent).unwrap();
    fs::write(pack_path, &sound[..100]).unwrap();
    let report = store.fsck(true).unwrap();
    assert_eq!(report.findings.len(), 1);
    assert_eq!(report.findings[0].repair, Repair::RemoveList);
    assert_clean(&store);
    store.image("one").unwrap();
}

#[test]
fn a_list_that_lies_is_never_used() {
    let store = store();
    let image = image(&store, "one");
    pack(&store, &ALL);
    let [list] = &files(&store.root().join("layers"), ".chunks")[..] else {
        panic!("one layer has one list");
    };
    let sound = fs::read(list).unwrap();
    for at in 0..sound.len() {
        let mut changed = sound.clone();
        changed[at] ^= 1;
        fs::write(list, &changed).unwrap();
        let found = store.image("one");
        let used = found.and_then(|found| store.unpack(&found, &Silent));
        assert!(used.is_err(), "{at}");
        assert!(!image.layers[0].path.exists(), "{at}");
    }
    fs::remove_file(list).unwrap();
    assert!(matches!(store.image("one"), Err(Error::Unusable { .. })));
    // It is made anew, from its archive.
    convert(&store, &layer("one")).unwrap();
    fs::write(list, &sound).unwrap();
    assert_clean(&store);
}

#[test]
fn a_list_of_an_earlier_image_goes_when_the_layer_is_made_anew() {
    let store = store();
    let image = image(&store, "one");
    pack(&store, &ALL);
    let record = image.layers[0].path.with_extension("json");
    let text = fs::read_to_string(&record).unwrap();
    fs::write(&record, text.replace("\"format\": ", "\"format\": 9")).unwrap();
    assert!(store.layer(&image.layers[0].diff_id).unwrap().is_none());
    convert(&store, &layer("one")).unwrap();
    assert_eq!(
        files(&store.root().join("layers"), ".chunks"),
        [] as [&Path; 0]
    );
    assert!(image.layers[0].path.exists());
}

#[test]
fn a_pack_with_little_is_kept_while_it_is_in_use() {
    let store = store();
    image(&store, "one");
    pack(&store, &ALL);
    // All but one small file is in packs already.
    let above = Archive::new()
        .directory("./")
        .file("shared", noise(1, 900_000))
        .file("small", "little")
        .finish();
    publish(&store, &[above], "two");
    pack(&store, &ALL);
    let small = packs(&store).into_iter();
    let small = small
        .filter(|path| fs::metadata(path).unwrap().len() < 2048)
        .count();
    assert_eq!(small, 1);
    for _ in 0..2 {
        assert_eq!(store.prune(&PruneOptions::default()).unwrap().size, 0);
        assert_clean(&store);
    }
    store.unpack(&store.image("two").unwrap(), &Silent).unwrap();
}

#[test]
fn chunks_are_read_back_before_an_image_is_removed() {
    let store = store();
    let image = image(&store, "one");
    let path = &image.layers[0].path;
    let bytes = fs::read(path).unwrap();
    let unpack = || store.unpack(&store.image("one").unwrap(), &Silent).unwrap();
    // What is damaged, shorter or gone by the second time is written anew.
    for damage in [
        |pack: &Path| {
            let mut bytes = fs::read(pack).unwrap();
            bytes[5000] ^= 1;
            fs::write(pack, bytes).unwrap();
        },
        |pack: &Path| fs::write(pack, b"mica-pk").unwrap(),
        |pack: &Path| fs::remove_file(pack).unwrap(),
    ] {
        assert_eq!(pack(&store, &ALL).packed.len(), 1);
        unpack();
        packs(&store).iter().for_each(|pack| damage(pack));
        let report = pack(&store, &ALL);
        assert!(report.packed.len() == 1 && report.added > 0, "{report:?}");
        unpack();
        assert_eq!(fs::read(path).unwrap(), bytes);
        store.prune(&PruneOptions::default()).unwrap();
    }

    // A layer does not take over a chunk that another one has lost.
    pack(&store, &ALL);
    packs(&store)
        .iter()
        .for_each(|pack| fs::remove_file(pack).unwrap());
    publish(&store, &[layer("two")], "two");
    assert_eq!(pack(&store, &ALL).packed.len(), 1);
    store.unpack(&store.image("two").unwrap(), &Silent).unwrap();
    // The one that was lost is made anew from its archive.
    assert!(matches!(store.image("one"), Err(Error::Unusable { .. })));
    convert(&store, &layer("one")).unwrap();
    store.image("one").unwrap();

    // An image that is damaged itself is not packed.
    let mut changed = bytes;
    let middle = changed.len() / 4;
    changed[middle] ^= 1;
    fs::write(path, &changed).unwrap();
    let report = pack(&store, &ALL);
    assert_eq!(report.damaged, [image.layers[0].diff_id]);
    assert!(path.exists());
}

#[test]
fn packs_stay_while_a_list_can_not_be_read() {
    let store = store();
    image(&store, "one");
    image(&store, "two");
    pack(&store, &ALL);
    let before = packs(&store);
    let list = &files(&store.root().join("layers"), ".chunks")[0];
    let sound = fs::read(list).unwrap();
    fs::write(list, b"mica-cl\x02 of a later version").unwrap();
    assert_eq!(store.prune(&PruneOptions::default()).unwrap().size, 0);
    store.remove("two").unwrap();
    assert_eq!(packs(&store), before);
    fs::write(list, sound).unwrap();
    assert_eq!(store.usage().unwrap().images.len(), 1);
}

#[test]
fn lists_of_layers_that_are_whole_are_pruned() {
    let store = store();
    image(&store, "one");
    pack(&store, &ALL);
    store.unpack(&store.image("one").unwrap(), &Silent).unwrap();
    let planned = store.usage().unwrap().reclaimable_size;
    assert!(planned > 100_000, "{planned}");
    assert_eq!(store.prune(&PruneOptions::default()).unwrap().size, planned);
    assert_eq!(packs(&store), [] as [&Path; 0]);
    assert_clean(&store);
    store.image("one").unwrap();
}

#[test]
fn packing_does_not_wait_for_others_unless_it_is_to() {
    let store = store();
    let image = image(&store, "one");
    let shared = store.shared().unwrap();
    let report = store.pack(&ALL, Patience::Leave, &Silent).unwrap();
    assert_eq!(report.packed, []);
    assert!(image.layers[0].path.exists());
    drop(shared);
    let report = store.pack(&ALL, Patience::Leave, &Silent).unwrap();
    assert_eq!((report.packed.len(), report.added), (1, 0));
}

#[test]
fn an_archive_is_read_on_after_its_layer_is_removed() {
    let store = store();
    image(&store, "one");
    pack(&store, &ALL);
    let found = store.image("one").unwrap();
    let mut reader = store.archive(&found.layers[0]).unwrap();
    let mut archive = vec![0; 1000];
    reader.read_exact(&mut archive).unwrap();
    store.remove("one").unwrap();
    assert_eq!(packs(&store), [] as [&Path; 0]);
    reader.read_to_end(&mut archive).unwrap();
    assert!(archive == layer("one"));
}

#[test]
fn an_image_that_is_damaged_is_made_of_its_chunks() {
    let store = store();
    let image = image(&store, "one");
    pack(&store, &ALL);
    let found = || store.image("one").unwrap();
    store.unpack(&found(), &Silent).unwrap();
    let path = &image.layers[0].path;
    let bytes = fs::read(path).unwrap();
    let mut changed = bytes.clone();
    changed[bytes.len() / 4] ^= 1;
    fs::write(path, changed).unwrap();
    let report = store.fsck(true).unwrap();
    assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
    assert_eq!(report.findings[0].repair, Repair::RemoveFile);
    assert_clean(&store);
    store.unpack(&found(), &Silent).unwrap();
    assert!(fs::read(path).unwrap() == bytes);
}

#[test]
fn whoever_names_an_image_uses_it() {
    let store = store();
    let image = image(&store, "one");
    let record = image.fsmeta.with_file_name("image.json");
    let file = fs::File::options().write(true).open(record).unwrap();
    let week = Duration::from_secs(7 * 86_400);
    file.set_modified(SystemTime::now() - 2 * week).unwrap();
    // As a pull does that finds it here.
    publish(&store, &[layer("one")], "one");
    assert_eq!(pack(&store, &PackChoice::UnusedFor(week)).packed, []);
}
