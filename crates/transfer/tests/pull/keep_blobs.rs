//! Blobs that are kept as they came (`keep-blobs`), and what a store can pass on of them.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::thread;

use micabox_image::store::{Error, PruneOptions};
use micabox_image::{Compression, Digest, Store};
use micabox_testing::mounts::Mount;
use micabox_testing::run;
use micabox_transfer::{
    Credentials, PullError, PullPolicy, PushOptions, pull_blocking, push_blocking,
};

use crate::image::{TestImage, TestLayer, index};
use crate::layer;
use crate::server::{Registry, Request};
use crate::uploads::accept;
use crate::{Puller, assert_has};

fn keeping() -> Puller {
    Puller::new()
        .edit_settings(|settings| settings.keep_blobs = true)
        .policy(PullPolicy::Always)
}

fn kept(store: &Store, digest: &Digest) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut blob = store.kept_blob(digest).unwrap()?;
    blob.read_to_end(&mut bytes).unwrap();
    Some(bytes)
}

/// Asserts that the store has an image with all of its blobs.
fn assert_keeps(puller: &Puller, image: &TestImage) {
    let stored = puller.store.image_by_digest(&image.digest()).unwrap();
    assert_has(&puller.store, &stored, image);
    for layer in &image.layers {
        assert!(kept(&puller.store, &layer.digest()).as_ref() == Some(&layer.blob));
    }
    let report = puller.store.fsck(false).unwrap();
    assert!(report.is_clean() && report.leftovers == 0, "{report:?}");
}

/// Returns how often each of an image's layers was asked for.
fn asked(registry: &Registry, image: &TestImage) -> Vec<usize> {
    let requests = registry.layer_requests(image);
    let count = |layer: &TestLayer| {
        let digest = layer.digest().to_string();
        let of = |request: &&Request| request.path().ends_with(&digest);
        requests.iter().filter(of).count()
    };
    image.layers.iter().map(count).collect()
}

fn partial(store: &Store, digest: &Digest) -> std::path::PathBuf {
    store.root().join("tmp").join(digest.hex() + ".blob")
}

fn place(store: &Store, digest: &Digest) -> std::path::PathBuf {
    let hex = digest.hex();
    let shard = store.root().join("blobs/sha256").join(&hex[..2]);
    shard.join(hex + ".blob")
}

#[test]
fn each_blob_is_fetched_once_and_kept_with_the_indexes_that_led_to_it() {
    let image = TestImage::small();
    let other = TestImage::for_platform(
        vec![TestLayer::noise(8, 3000)],
        &"linux/riscv64".parse().unwrap(),
    );
    let registry = Registry::with(&image);
    registry.push("x", "other", &other);
    let inner = index(&[
        other.entry(Some("linux/riscv64")),
        image.entry(Some("linux/amd64")),
    ]);
    registry.put_manifest("x", "inner", inner.clone());
    let empty = index(&[]);
    registry.put_manifest("x", "empty", empty.clone());
    let entry = |index: &[u8]| {
        serde_json::json!({
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "digest": Digest::of(index), "size": index.len(),
        })
    };
    // The first one leads to nothing.
    let outer = index(&[entry(&empty), entry(&inner)]);
    registry.put_manifest("x", "multi", outer.clone());

    let puller = keeping();
    let name = registry.reference("x:multi");
    puller.pull(&name);
    assert_keeps(&puller, &image);
    assert_eq!(asked(&registry, &image), [1, 1]);
    let indexes = [&outer, &inner].map(|index| Digest::of(index));
    assert_eq!(puller.store.indexes(&name).unwrap(), indexes);
    for index in [outer, inner] {
        let kept = puller.store.kept_index(&Digest::of(&index)).unwrap();
        assert_eq!(kept, Some(index));
    }
    assert_eq!(kept(&puller.store, &Digest::of(&empty)), None);
    // Another name of it has them as well.
    let copy = "copy:1".parse().unwrap();
    let found = puller.store.image(&name.to_string()).unwrap();
    puller.store.tag_as(&copy, &found).unwrap();
    assert_eq!(puller.store.indexes(&copy).unwrap(), indexes);
    // A layer is no index.
    let layer = image.layers[0].digest();
    assert_eq!(puller.store.kept_index(&layer).unwrap(), None);

    let usage = puller.store.usage().unwrap();
    assert_eq!(usage.kept_blobs, 4);
    assert!(usage.kept_blobs_size > 12_000 && usage.images[0].size > usage.kept_blobs_size);
    // Nothing is fetched again, and one who keeps nothing forgets nothing.
    puller.pull(&name);
    let plain = puller.edit_settings(|settings| settings.keep_blobs = false);
    plain.pull(&name);
    assert_eq!(asked(&registry, &image), [1, 1]);
    assert_eq!(plain.store.indexes(&name).unwrap(), indexes);
    assert_keeps(&plain, &image);
}

#[test]
fn a_layer_that_was_converted_before_is_fetched_and_not_converted() {
    let image = TestImage::small();
    let registry = Registry::with(&image);
    let puller = Puller::new().policy(PullPolicy::Always);
    let name = registry.reference("x:1");
    let before = puller.pull(&name);
    assert_eq!(kept(&puller.store, &image.layers[0].digest()), None);
    let inode =
        |image: &micabox_image::store::Image| fs::metadata(&image.layers[0].path).unwrap().ino();
    let puller = puller.edit_settings(|settings| settings.keep_blobs = true);
    let after = puller.pull(&name);
    assert_keeps(&puller, &image);
    assert_eq!(asked(&registry, &image), [2, 2]);
    assert_eq!(inode(&before), inode(&after));
}

#[test]
fn two_blobs_of_one_layer_are_kept_and_what_can_be_rebuilt_is_not() {
    let archive = layer::archive::Archive::new()
        .file("plain", "text")
        .finish();
    let compressed = TestLayer::gzip(&archive);
    let mut other = compressed.clone();
    // The time in gzip's header.
    other.blob[4] ^= 1;
    let image = TestImage::new(vec![TestLayer::noise(1, 5000), compressed, other]);
    let registry = Registry::with(&image);
    let puller = keeping();
    for _ in 0..2 {
        puller.pull(&registry.reference("x:1"));
        assert_keeps(&puller, &image);
        assert_eq!(asked(&registry, &image), [1, 1, 1]);
    }

    let plain = TestLayer {
        diff_id: Digest::of(&archive),
        blob: archive,
        media_type: "application/vnd.oci.image.layer.v1.tar",
    };
    let (digest, size) = (plain.digest(), plain.blob.len() as u64);
    let image = TestImage::new(vec![plain]);
    for puller in [puller, keeping()] {
        let registry = Registry::with(&image);
        for _ in 0..2 {
            puller.pull(&registry.reference("x:1"));
            assert!(puller.store.has_blob(&digest, size));
            assert!(kept(&puller.store, &digest).is_none());
        }
        assert!(asked(&registry, &image)[0] <= 1);
    }
}

#[test]
fn a_blob_that_is_not_what_its_digest_says_is_not_kept() {
    let image = TestImage::small();
    let lies: [fn(&mut Vec<u8>); 4] = [
        |blob| blob[100] ^= 1,
        |blob| blob.push(0),
        |blob| blob.truncate(blob.len() - 1),
        |blob| blob.clear(),
    ];
    for lie in lies {
        for was_here in [false, true] {
            let registry = Registry::with(&image);
            let name = registry.reference("x:1");
            let puller = Puller::new().policy(PullPolicy::Always);
            if was_here {
                puller.pull(&name);
            }
            let puller = puller.edit_settings(|settings| settings.keep_blobs = true);
            registry.blob_fault(&image, usize::MAX, move |_, mut reply| {
                lie(&mut reply.body);
                reply.length = Some(reply.body.len());
                reply
            });
            puller.try_pull(&name).expect_err("the registry lies");
            for layer in &image.layers {
                assert_eq!(kept(&puller.store, &layer.digest()), None);
            }
            if !was_here {
                assert!(puller.store.images().unwrap().is_empty());
            }
            let report = puller.store.fsck(false).unwrap();
            assert!(report.is_clean(), "{report:?}");
            // An honest one is believed all the same.
            let honest = Registry::with(&image);
            puller.pull(&honest.reference("x:1"));
            assert_keeps(&puller, &image);
        }
    }
}

#[test]
fn an_image_that_lies_about_a_blob_takes_it_from_no_other_one() {
    let image = TestImage::small();
    let puller = keeping();
    puller.pull(&Registry::with(&image).reference("x:1"));
    let mut layers = image.layers.clone();
    layers[0].diff_id = Digest::of(b"another layer");
    let liar = TestImage::new(layers);
    for _ in 0..2 {
        let registry = Registry::with(&liar);
        let error = puller.try_pull(&registry.reference("x:1")).unwrap_err();
        assert!(matches!(error, PullError::Layer { .. }), "{error}");
        assert_eq!(asked(&registry, &liar)[0], 0);
        assert_keeps(&puller, &image);
    }
}

#[test]
fn two_pulls_at_once_fetch_each_blob_once() {
    let image = TestImage::small();
    for was_here in [false, true] {
        let registry = Registry::with(&image);
        let puller = Puller::new().policy(PullPolicy::Always);
        let first = registry.reference("x:1");
        let mut expected = [1, 1];
        if was_here {
            puller.pull(&first);
            expected = [2, 2];
        }
        let puller = puller.edit_settings(|settings| settings.keep_blobs = true);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| puller.pull(&first));
            }
        });
        assert_eq!(asked(&registry, &image), expected);
        assert_keeps(&puller, &image);
    }
}

#[test]
fn a_pull_that_was_killed_goes_on_with_what_is_here() {
    let image = TestImage::small();
    let (first, second) = (&image.layers[0], &image.layers[1]);
    let registry = Registry::with(&image);
    let name = registry.reference("x:1");
    // Of one layer it had a part, of the other all, but neither had its place.
    let puller = keeping();
    fs::write(partial(&puller.store, &first.digest()), &first.blob[..1000]).unwrap();
    fs::write(partial(&puller.store, &second.digest()), &second.blob).unwrap();
    puller.pull(&name);
    assert_keeps(&puller, &image);
    assert_eq!(asked(&registry, &image), [1, 0]);
    let requests = registry.layer_requests(&image);
    assert_eq!(requests[0].range_start(), Some(1000));

    // It had kept the blobs, and published nothing of them. One is damaged since.
    let puller = keeping();
    for layer in &image.layers {
        let place = place(&puller.store, &layer.digest());
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::write(place, &layer.blob).unwrap();
    }
    let mut damaged = first.blob.clone();
    damaged[100] ^= 1;
    fs::write(place(&puller.store, &first.digest()), damaged).unwrap();
    assert!(puller.store.images().unwrap().is_empty());
    puller.pull(&name);
    assert_keeps(&puller, &image);
    assert_eq!(asked(&registry, &image), [2, 0]);

    // What is left of one that does not go on is removed by prune.
    let puller = keeping();
    let orphan = place(&puller.store, &first.digest());
    fs::create_dir_all(orphan.parent().unwrap()).unwrap();
    fs::write(&orphan, &first.blob).unwrap();
    let pruned = puller.store.prune(&PruneOptions::default()).unwrap();
    assert_eq!(pruned.blobs, [first.digest()]);
    assert!(!orphan.exists() && pruned.size > 0);
}

#[test]
fn a_kept_blob_lives_as_long_as_an_image_or_a_name_has_it() {
    let shared = TestLayer::noise(1, 5000);
    let images =
        [2, 3].map(|seed| TestImage::new(vec![shared.clone(), TestLayer::noise(seed, 4000)]));
    let registry = Registry::new();
    let puller = keeping();
    let [one, two] = [0, 1].map(|number| {
        let image = &images[number];
        registry.push("x", "image", image);
        let tag = format!("x:{number}");
        let multi = index(&[image.entry(Some("linux/amd64"))]);
        registry.put_manifest("x", &number.to_string(), multi.clone());
        let name = registry.reference(&tag);
        puller.pull(&name);
        (name, Digest::of(&multi), image.layers[1].digest())
    });
    let has = |digest: &Digest| puller.store.kept_blob(digest).unwrap().is_some();
    let dry = PruneOptions {
        dry_run: true,
        ..PruneOptions::default()
    };
    assert!(puller.store.prune(&dry).unwrap().blobs.is_empty());
    let usage = puller.store.usage().unwrap();
    assert!(usage.images.iter().all(|image| image.shared_size > 5000));

    let removed = puller.store.remove(&one.0.to_string()).unwrap();
    let mut blobs = removed.pruned.unwrap().blobs;
    let mut expected = [one.1, one.2];
    blobs.sort_unstable();
    expected.sort_unstable();
    assert_eq!(blobs, expected);
    assert!(!has(&one.1) && !has(&one.2) && has(&shared.digest()) && has(&two.1) && has(&two.2));

    // The name means another index by now.
    let wider = index(&[
        images[1].entry(Some("linux/amd64")),
        images[1].entry(Some("linux/riscv64")),
    ]);
    registry.put_manifest("x", "1", wider.clone());
    puller.pull(&two.0);
    let pruned = puller.store.prune(&PruneOptions::default()).unwrap();
    assert_eq!(pruned.blobs, [two.1]);
    assert!(has(&Digest::of(&wider)) && has(&two.2));
    assert_keeps(&puller, &images[1]);
    let all = PruneOptions {
        all: true,
        ..PruneOptions::default()
    };
    assert_eq!(puller.store.prune(&all).unwrap().blobs.len(), 3);
    layer::assert_no_trace(&puller.store);
}

#[test]
fn a_damaged_blob_is_found_removed_and_brought_again() {
    let image = TestImage::small();
    let registry = Registry::with(&image);
    let puller = keeping();
    let name = registry.reference("x:1");
    puller.pull(&name);
    let digest = image.layers[0].digest();
    let path = place(&puller.store, &digest);
    let mut bytes = image.layers[0].blob.clone();
    bytes[50] ^= 1;
    fs::write(&path, bytes).unwrap();
    let report = puller.store.fsck(false).unwrap();
    assert_eq!((report.findings.len(), report.blobs), (1, 2));
    assert!(path.ends_with(&report.findings[0].path), "{report:?}");
    assert!(path.exists());
    assert!(puller.store.fsck(true).unwrap().is_clean());
    assert!(!path.exists());
    // The image needs none of it.
    puller.store.image(&name.to_string()).unwrap();
    assert_eq!(puller.store.fsck(false).unwrap().findings.len(), 0);
    puller.pull(&name);
    assert_keeps(&puller, &image);
    assert_eq!(asked(&registry, &image), [2, 1]);
}

#[test]
fn a_digest_names_an_image_of_any_platform_if_that_is_asked_for() {
    let platform = "linux/riscv64";
    let other =
        TestImage::for_platform(vec![TestLayer::noise(8, 3000)], &platform.parse().unwrap());
    let registry = Registry::with(&other);
    let by_digest = registry.reference(&format!("x@{}", other.digest()));
    let mut puller = keeping();
    puller
        .try_pull(&by_digest)
        .expect_err("of another platform");
    puller.options.any_platform = true;
    puller.pull(&by_digest);
    assert_keeps(&puller, &other);
    // It is stored by now.
    puller.pull(&by_digest);
    assert_eq!(asked(&registry, &other), [1]);
    let by_tag = registry.reference("x:1");
    puller
        .try_pull(&by_tag)
        .expect_err("a tag is this machine's");
}

#[test]
fn a_push_to_another_registry_sends_the_blobs_that_came() {
    let image = TestImage::small();
    let origin = Registry::with(&image);
    let puller = keeping();
    let name = origin.reference("x:1");
    puller.pull(&name);
    let options = PushOptions {
        // What was kept is not packed again.
        compression: Compression::Zstd,
        erofs: false,
        containerd: None,
        settings: puller.options.settings.clone(),
        credentials: Credentials::none(),
    };
    let push = || {
        let registry = Registry::new();
        accept(&registry);
        let to = registry.reference("y:1");
        let progress = puller.progress.clone();
        push_blocking(
            &puller.store,
            &name.to_string(),
            Some(&to),
            &options,
            progress,
        )
    };
    assert_eq!(push().unwrap().manifest_digest, image.digest());
    let digest = image.layers[0].digest();
    let mut bytes = image.layers[0].blob.clone();
    bytes[50] ^= 1;
    fs::write(place(&puller.store, &digest), bytes).unwrap();
    // It is packed anew.
    assert_ne!(push().unwrap().manifest_digest, image.digest());
}

#[test]
#[ignore = "needs root"]
fn a_full_disk_is_an_error_that_names_it_and_leaves_no_half_of_an_image() {
    let image = TestImage::new(vec![
        TestLayer::noise(1, 3 << 20),
        TestLayer::noise(2, 3 << 20),
    ]);
    let registry = Registry::with(&image);
    let name = registry.reference("x:1");
    let puller = keeping();
    let disk = Mount::tmpfs("size=1m");
    let store = Store::open(&disk.path().join("store")).unwrap();
    let mut failures = 0;
    // Retry: each time with a larger disk, until the image fits.
    for mebibytes in 1.. {
        let size = format!("remount,size={mebibytes}m");
        run(Command::new("mount").args(["-o", &size]).arg(disk.path()));
        let pulled = pull_blocking(&store, &name, &puller.options, puller.progress.clone());
        let report = Store::open(store.root()).unwrap().fsck(false).unwrap();
        assert!(report.is_clean(), "at {mebibytes} MiB: {report:?}");
        match pulled {
            Ok(_) => break,
            Err(error) => {
                let text = error.to_string();
                let is_full = match error {
                    PullError::Store(Error::Full { .. }) => true,
                    PullError::Layer { .. } => text.contains("no space left"),
                    _ => false,
                };
                assert!(is_full, "at {mebibytes} MiB: {text}");
                assert!(store.images().unwrap().is_empty());
                failures += 1;
            }
        }
    }
    // The layers, and their blobs.
    assert!(failures > 10, "{failures}");
    for layer in &image.layers {
        assert!(kept(&store, &layer.digest()).as_ref() == Some(&layer.blob));
    }
}
