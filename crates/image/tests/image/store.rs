//! Maintenance of the store: usage, prune, remove, leases, fsck and its repairs.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use micabox_image::Digest;
use micabox_image::store::{Error, FsckReport, Image, PruneOptions, Repair};

use crate::layer::archive::Archive;
use crate::layer::image::publish;
use crate::layer::{TestStore, convert, store};

/// Layers that several images share: a common base, and a top layer for each name.
fn layers(name: &str) -> Vec<Vec<u8>> {
    vec![
        Archive::new()
            .directory("./")
            .file("base", "b".repeat(500_000))
            .finish(),
        Archive::new().file(name, name.repeat(20_000)).finish(),
    ]
}

fn image(store: &TestStore, name: &str) -> Image {
    publish(store, &layers(name), name)
}

fn disk_usage(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let below: u64 = if path.is_dir() {
        fs::read_dir(path)
            .unwrap()
            .map(|entry| disk_usage(&entry.unwrap().path()))
            .sum()
    } else {
        0
    };
    fs::symlink_metadata(path).unwrap().blocks() * 512 + below
}

#[test]
fn usage_of_the_store_adds_up() {
    let store = store();
    let (one, two) = (image(&store, "one"), image(&store, "two"));
    convert(&store, &Archive::new().file("nobody's", "x").finish()).unwrap();
    let usage = store.usage().unwrap();
    assert_eq!((usage.images.len(), usage.layers), (2, 4));
    let of = |image: &Image| {
        usage
            .images
            .iter()
            .find(|u| u.manifest_digest == image.manifest_digest)
            .unwrap()
            .clone()
    };
    for image in [&one, &two] {
        let usage = of(image);
        assert_eq!(usage.size, usage.shared_size + usage.unique_size);
        assert_eq!(
            usage.references[0].familiar(),
            image.reference.as_ref().unwrap().familiar()
        );
        let base = disk_usage(&image.layers[0].path);
        assert!(base >= 500_000 && usage.shared_size >= base);
    }
    assert_eq!(of(&one).shared_size, usage.shared_size);
    assert!(usage.reclaimable_size > 0);
    let before = disk_usage(store.root());
    let pruned = store.prune(&PruneOptions::default()).unwrap();
    assert_eq!(pruned.size, usage.reclaimable_size);
    assert!(before - disk_usage(store.root()) >= pruned.size);
    assert_eq!(store.usage().unwrap().reclaimable_size, 0);
    serde_json::to_string(&usage).unwrap();
}

#[test]
fn prune_removes_what_has_neither_name_nor_sandbox() {
    let store = store();
    let (kept, leased, gone) = (
        image(&store, "kept"),
        image(&store, "leased"),
        image(&store, "gone"),
    );
    store.lease("box", &[leased.manifest_digest]).unwrap();
    fs::write(store.sandboxes().join("no-sandbox"), "").unwrap();
    for name in ["leased", "gone"] {
        store.untag(&name.parse().unwrap()).unwrap();
    }
    let dry = store
        .prune(&PruneOptions {
            dry_run: true,
            ..PruneOptions::default()
        })
        .unwrap();
    assert!(gone.layers[1].path.exists());
    let pruned = store.prune(&PruneOptions::default()).unwrap();
    assert_eq!(dry, pruned);
    assert_eq!(pruned.images, [gone.manifest_digest]);
    // The base is still in use.
    assert_eq!(pruned.layers, [gone.layers[1].diff_id]);
    assert!(!gone.layers[1].path.exists());
    for image in [&kept, &leased] {
        store.image_by_digest(&image.manifest_digest).unwrap();
    }
    let all = store
        .prune(&PruneOptions {
            all: true,
            ..PruneOptions::default()
        })
        .unwrap();
    assert_eq!(all.images, [kept.manifest_digest]);
    assert_eq!(all.references, [kept.reference.unwrap()]);
    fs::remove_dir_all(store.sandboxes().join("box")).unwrap();
    store.prune(&PruneOptions::default()).unwrap();
    let usage = store.usage().unwrap();
    assert_eq!((usage.images.len(), usage.layers), (0, 0));
    assert!(store.fsck(false).unwrap().is_clean());
}

#[test]
fn a_lease_until_a_crash_keeps_its_image_and_one_that_a_crash_emptied_is_none() {
    let store = store();
    let image = image(&store, "image");
    let digests = [image.manifest_digest];
    store.lease_until_crash("box", &digests).unwrap();
    store.untag(&"image".parse().unwrap()).unwrap();
    assert!(
        store
            .prune(&PruneOptions::default())
            .unwrap()
            .images
            .is_empty()
    );
    let lease = store.sandboxes().join("box/lease.json");
    assert_eq!(fs::read_dir(lease.parent().unwrap()).unwrap().count(), 1);
    fs::write(lease, "").unwrap();
    assert_eq!(
        store.prune(&PruneOptions::default()).unwrap().images,
        digests
    );
}

#[test]
fn prune_touches_nothing_while_a_lease_cannot_be_read() {
    let store = store();
    let image = image(&store, "image");
    store.lease("box", &[image.manifest_digest]).unwrap();
    store.untag(&"image".parse().unwrap()).unwrap();
    fs::write(store.sandboxes().join("box/lease.json"), "{").unwrap();
    assert!(matches!(
        store.prune(&PruneOptions::default()),
        Err(Error::Damaged { .. })
    ));
    store.image_by_digest(&image.manifest_digest).unwrap();
}

#[test]
fn leases_are_only_given_on_images_that_are_there() {
    let store = store();
    let image = image(&store, "image");
    assert!(matches!(
        store.lease("box", &[Digest::of(b"")]),
        Err(Error::NoImage { .. })
    ));
    for id in ["", ".", "..", "a/b", "/a"] {
        assert!(store.lease(id, &[image.manifest_digest]).is_err(), "{id}");
    }
}

#[test]
fn removing_the_last_name_removes_the_image_and_its_own_layers() {
    let store = store();
    let (one, two) = (image(&store, "one"), image(&store, "two"));
    store
        .tag(&"alias".parse().unwrap(), &one.manifest_digest)
        .unwrap();
    let removed = store.remove("one").unwrap();
    assert_eq!(removed.pruned, None);
    store.image("alias").unwrap();
    let pruned = store.remove("alias").unwrap().pruned.unwrap();
    assert_eq!(pruned.images, [one.manifest_digest]);
    assert_eq!(pruned.layers, [one.layers[1].diff_id]);
    store.image("two").unwrap();
    assert!(matches!(store.remove("one"), Err(Error::NoImage { .. })));

    // By digest all names are removed.
    store
        .tag(&"alias".parse().unwrap(), &two.manifest_digest)
        .unwrap();
    let removed = store.remove(&two.manifest_digest.hex()[..12]).unwrap();
    assert_eq!(removed.references.len(), 2);
    assert_eq!(store.usage().unwrap().layers, 0);
    assert!(store.fsck(false).unwrap().is_clean());
}

#[test]
fn an_image_in_use_keeps_its_last_name() {
    let store = store();
    let image = image(&store, "image");
    store
        .tag(&"alias".parse().unwrap(), &image.manifest_digest)
        .unwrap();
    store.lease("box", &[image.manifest_digest]).unwrap();
    store.remove("image").unwrap();
    match store.remove("alias") {
        Err(Error::InUse { sandbox, .. }) => assert_eq!(sandbox, "box"),
        other => panic!("{other:?}"),
    }
    store.image("alias").unwrap();
}

#[test]
fn while_the_store_is_in_use_removing_takes_only_the_name() {
    let store = store();
    let image = image(&store, "image");
    let shared = store.shared().unwrap();
    assert_eq!(store.remove("image").unwrap().pruned, None);
    assert!(image.layers[0].path.exists());
    assert!(store.image("image").is_err());
    drop(shared);
    assert_eq!(
        store.prune(&PruneOptions::default()).unwrap().images.len(),
        1
    );
}

/// Checks that fsck finds one problem without changing anything, that a repair removes it, and
/// that the store is sound once the image is imported again.
fn damage(what: &str, repair: Repair, harm: impl Fn(&Image, &Path)) -> FsckReport {
    let store = store();
    let victim = image(&store, "victim");
    let bystander = publish(
        &store,
        &[Archive::new().file("x", "y").finish()],
        "bystander",
    );
    assert!(store.fsck(false).unwrap().is_clean());
    harm(&victim, store.root());

    let found = store.fsck(false).unwrap();
    assert!(!found.is_clean(), "{what} was not noticed");
    assert!(
        found.findings.iter().any(|f| f.repair == repair),
        "{what}: {found:#?}"
    );
    assert_eq!(
        store.fsck(false).unwrap(),
        found,
        "looking changed something"
    );
    let repaired = store.fsck(true).unwrap();
    assert!(
        repaired.is_clean() && repaired.findings.iter().all(|f| f.repaired),
        "{repaired:#?}"
    );
    assert_eq!(repaired.findings.len(), found.findings.len());
    let after = store.fsck(false).unwrap();
    assert_eq!(after.findings, [], "{what}");

    store.image_by_digest(&bystander.manifest_digest).unwrap();
    let again = image(&store, "victim");
    assert_eq!(again.manifest_digest, victim.manifest_digest);
    assert!(store.fsck(false).unwrap().is_clean());
    serde_json::to_string(&found).unwrap();
    found
}

fn flip(path: &Path, at: u64) {
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

fn sidecar(image: &Image) -> PathBuf {
    image.layers[0].path.with_extension("json")
}

#[test]
fn fsck_notices_an_altered_layer_wherever_it_was_altered() {
    for at in [1024, 1030, 4096, 300_000] {
        let report = damage("an altered layer", Repair::RemoveLayer, |image, _| {
            flip(&image.layers[0].path, at);
        });
        // The layer, and the image that needs it.
        assert_eq!(report.findings.len(), 2);
        assert!(report.findings[0].problem.contains("checksum"));
        assert!(report.findings[1].problem.contains("is bad"));
    }
}

#[test]
fn fsck_notices_missing_and_cut_layers() {
    damage("a missing layer", Repair::RemoveLayer, |image, _| {
        fs::remove_file(&image.layers[0].path).unwrap();
    });
    damage("a cut layer", Repair::RemoveLayer, |image, _| {
        let file = fs::File::options()
            .write(true)
            .open(&image.layers[0].path)
            .unwrap();
        file.set_len(4096).unwrap();
    });
    damage(
        "a layer that is missing altogether",
        Repair::RemoveImage,
        |image, _| {
            fs::remove_file(&image.layers[0].path).unwrap();
            fs::remove_file(sidecar(image)).unwrap();
        },
    );
}

#[test]
fn fsck_notices_records_that_are_damaged_or_of_another_format() {
    damage("a damaged record", Repair::RemoveLayer, |image, _| {
        fs::write(sidecar(image), "{").unwrap();
    });
    let report = damage("another format", Repair::RemoveLayer, |image, _| {
        let text = fs::read_to_string(sidecar(image)).unwrap();
        fs::write(
            sidecar(image),
            text.replace("\"format\": ", "\"format\": 9"),
        )
        .unwrap();
    });
    assert!(report.findings[0].problem.contains("format 9"));
    damage("another layer's record", Repair::RemoveLayer, |image, _| {
        let other = image.layers[1].path.with_extension("json");
        fs::copy(other, sidecar(image)).unwrap();
    });
    damage("a damaged image record", Repair::RemoveImage, |image, _| {
        fs::write(image.fsmeta.with_file_name("image.json"), "").unwrap();
    });
    damage("no image record", Repair::RemoveImage, |image, _| {
        fs::remove_file(image.fsmeta.with_file_name("image.json")).unwrap();
    });
}

#[test]
fn fsck_notices_a_structure_that_its_checksum_vouches_for() {
    // An attacker who alters a layer can alter its record, too; structures that could crash the
    // kernel are still found.
    let report = damage("a wrong structure", Repair::RemoveLayer, |image, root| {
        let layer = &image.layers[0];
        flip(&layer.path, 1024);
        let store = micabox_image::Store::open(root).unwrap();
        let report = store.fsck(false).unwrap();
        let problem = &report.findings[0].problem;
        let actual = problem
            .split_whitespace()
            .find(|word| word.starts_with("blake3:"))
            .unwrap();
        let text = fs::read_to_string(sidecar(image)).unwrap();
        let recorded = layer.record.checksum.to_string();
        assert!(text.contains(&recorded));
        fs::write(sidecar(image), text.replace(&recorded, actual)).unwrap();
    });
    assert!(
        !report.findings[0].problem.contains("checksum"),
        "{report:#?}"
    );
}

#[test]
fn fsck_notices_altered_image_files() {
    for name in ["manifest.json", "config.json", "fsmeta.erofs", "disk.vmdk"] {
        damage(name, Repair::RemoveImage, |image, _| {
            flip(&image.fsmeta.with_file_name(name), 1)
        });
        damage(name, Repair::RemoveImage, |image, _| {
            fs::remove_file(image.fsmeta.with_file_name(name)).unwrap();
        });
    }
}

#[test]
fn fsck_notices_names_and_leases_without_an_image() {
    damage("a damaged name", Repair::RemoveName, |_, root| {
        let name = root.join("refs/docker.io%2Flibrary%2Fvictim%3Alatest");
        assert!(name.exists());
        fs::write(name, "?").unwrap();
    });
    damage(
        "a name in another's place",
        Repair::RemoveName,
        |_, root| {
            let refs = root.join("refs");
            fs::copy(
                refs.join("docker.io%2Flibrary%2Fvictim%3Alatest"),
                refs.join("docker.io%2Flibrary%2Fother%3Alatest"),
            )
            .unwrap();
        },
    );
    damage("an image that is gone", Repair::RemoveName, |image, _| {
        fs::remove_dir_all(image.fsmeta.parent().unwrap()).unwrap();
    });
    damage(
        "a lease without an image",
        Repair::RemoveLease,
        |_, root| {
            let sandbox = root.join("sandboxes/box");
            fs::create_dir(&sandbox).unwrap();
            let lease = format!("{{\"manifest\": \"{}\"}}", Digest::of(b""));
            fs::write(sandbox.join("lease.json"), lease).unwrap();
        },
    );
}

#[test]
fn fsck_does_not_report_unfinished_imports() {
    let store = store();
    let image = image(&store, "image");
    // Killed between the two renames of a layer, and in the middle of an import.
    let half = store.root().join("layers/sha256/ab");
    fs::create_dir(&half).unwrap();
    let half = half.join(format!("ab{}.erofs", "0".repeat(62)));
    fs::write(&half, "not yet").unwrap();
    let tmp = store.root().join("tmp");
    fs::create_dir(tmp.join("killed")).unwrap();
    fs::write(tmp.join("killed/layer.erofs"), "half").unwrap();
    fs::write(tmp.join("killed.lock"), "").unwrap();
    let report = store.fsck(false).unwrap();
    assert_eq!((report.findings.len(), report.leftovers), (0, 2));
    assert!(half.exists());
    store.fsck(true).unwrap();
    assert!(!half.exists() && fs::read_dir(&tmp).unwrap().count() == 0);
    assert_eq!(store.fsck(false).unwrap().leftovers, 0);
    store.image_by_digest(&image.manifest_digest).unwrap();
}

#[test]
fn files_of_others_are_named_and_left_alone() {
    let store = store();
    image(&store, "image");
    let strangers = [
        "layers/sha256/notes.txt",
        "images/sha256/notes",
        "layers/sha256/ab.erofs",
    ];
    for stranger in strangers {
        fs::write(store.root().join(stranger), "").unwrap();
    }
    let report = store.fsck(true).unwrap();
    assert!(report.is_clean());
    let mut found = report.strangers;
    found.sort();
    let mut expected = strangers.map(PathBuf::from);
    expected.sort();
    assert_eq!(found, expected);
    store
        .prune(&PruneOptions {
            all: true,
            ..PruneOptions::default()
        })
        .unwrap();
    assert!(
        strangers
            .iter()
            .all(|stranger| store.root().join(stranger).exists())
    );
}
