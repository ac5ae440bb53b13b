//! Images that are used before all of their layers are here.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::panic;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use micabox_erofs::ReadAt;
use micabox_image::progress::Silent;
use micabox_image::store::{Image, Layer, PruneOptions};
use micabox_image::{Digest, Reference};
use micabox_lazy::Recorder;
use micabox_testing::image::layers;
use micabox_testing::wait_until;
use micabox_transfer::{LazyLayers, PushOptions, complete_blocking, push_start_order_blocking};
use serde_json::{Value, json};

use crate::Puller;
use crate::erofs::{Converted, puller, reference, served};
use crate::image::{TestImage, TestLayer};
use crate::server::{End, Registry, Reply, Request};

/// An image with a layer of 6 MiB that can't be compressed.
fn converted() -> Converted {
    let mut all: Vec<_> = layers()
        .iter()
        .map(|layer| TestLayer::gzip(layer))
        .collect();
    all.push(TestLayer::noise(7, 6 << 20));
    Converted::of(TestImage::for_platform(
        all,
        &"linux/amd64".parse().unwrap(),
    ))
}

fn lazy() -> Puller {
    let mut puller = Puller::new().platform("linux/amd64");
    puller.options.lazy = true;
    puller
}

fn fetcher(puller: &Puller) -> LazyLayers {
    LazyLayers::new(puller.options.clone()).unwrap()
}

/// Files of the store, below `layers`, that end like this.
fn files(puller: &Puller, suffix: &str) -> Vec<PathBuf> {
    let shards = fs::read_dir(puller.store.root().join("layers/sha256")).unwrap();
    let files = shards.flat_map(|shard| fs::read_dir(shard.unwrap().path()).unwrap());
    let paths = files.map(|file| file.unwrap().path());
    let mut paths: Vec<_> = paths
        .filter(|path| path.to_str().unwrap().ends_with(suffix))
        .collect();
    paths.sort();
    paths
}

/// Bytes of the blobs that are here.
fn here(puller: &Puller) -> u64 {
    let blobs = files(puller, ".blob");
    blobs
        .iter()
        .map(|blob| fs::metadata(blob).unwrap().blocks() * 512)
        .sum()
}

fn whole(converted: &Converted) -> (Puller, Image) {
    let puller = puller();
    let image = puller.pull(&reference(&converted.registry, "app:1"));
    (puller, image)
}

/// Reads a layer through what fetches it.
fn read(puller: &Puller, layer: &Layer) -> std::io::Result<Vec<u8>> {
    let image = fetcher(puller).open(&puller.store, layer).unwrap();
    let mut bytes = vec![0; image.size()? as usize];
    image.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

#[test]
fn an_image_is_there_before_its_layers_which_come_when_they_are_read() {
    let converted = converted();
    let (_there, whole) = whole(&converted);
    let puller = lazy();
    let name = reference(&converted.registry, "app:1");
    let image = puller.pull(&name);
    assert!(image.is_lazy());
    assert_eq!(image.manifest_digest, whole.manifest_digest);
    // The same merged metadata, of the same layers' metadata.
    assert!(fs::read(&image.fsmeta).unwrap() == fs::read(&whole.fsmeta).unwrap());
    let before = here(&puller);
    assert!(before < 2 << 20, "{before}");
    assert_eq!(puller.store.fsck(false).unwrap().findings, []);
    // Once more, and nothing is fetched.
    assert!(puller.pull(&name).is_lazy());

    for (layer, whole) in image.layers.iter().zip(&whole.layers) {
        assert_eq!(layer.record, whole.record);
        assert!(puller.store.is_lazy(layer) && !puller.store.is_packed(layer));
        let mut all = fs::read(&whole.path).unwrap();
        all.truncate(whole.image_size() as usize);
        assert!(read(&puller, layer).unwrap() == all);
    }
    assert!(here(&puller) > 6 << 20);
    assert!(image.is_lazy());
    // A pull without it needs no more than what is left.
    let mut puller = puller;
    puller.options.lazy = false;
    let complete = puller.pull(&name);
    assert!(!complete.is_lazy());
    assert_same(&complete, &whole);
    for suffix in [".lazy", ".blob", ".metadata"] {
        assert_eq!(files(&puller, suffix), [] as [PathBuf; 0]);
    }
    assert_eq!(puller.store.fsck(false).unwrap().findings, []);
}

fn assert_same(image: &Image, other: &Image) {
    assert_eq!(image.manifest_digest, other.manifest_digest);
    assert_eq!(image.layers.len(), other.layers.len());
    for (layer, other) in image.layers.iter().zip(&other.layers) {
        assert!(fs::read(&layer.path).unwrap() == fs::read(&other.path).unwrap());
    }
}

#[test]
fn the_rest_is_fetched_once_also_if_all_that_was_here_is_damaged() {
    let converted = converted();
    let (_there, whole) = whole(&converted);
    for is_damaged in [false, true] {
        let puller = lazy();
        let image = puller.pull(&reference(&converted.registry, "app:1"));
        read(&puller, &image.layers[3]).unwrap();
        if is_damaged {
            for blob in files(&puller, ".blob") {
                let file = OpenOptions::new().write(true).open(&blob).unwrap();
                let middle = fs::metadata(&blob).unwrap().len() / 2;
                file.write_all_at(&[0x5a; 16], middle).unwrap();
            }
        }
        complete_blocking(&image, &puller.options, Arc::new(Silent)).unwrap();
        assert_same(
            &puller.pull(&reference(&converted.registry, "app:1")),
            &whole,
        );
        assert_eq!(puller.store.fsck(false).unwrap().findings, []);
    }
}

#[test]
fn what_needs_all_of_a_layer_says_so_and_prune_and_fsck_know_its_files() {
    let converted = converted();
    let puller = lazy();
    let name = reference(&converted.registry, "app:1");
    let image = puller.pull(&name);
    let opened = puller.store.open_layer(&image.layers[0]);
    let said = opened.unwrap_err().to_string();
    assert!(said.contains("`mica pull` the image"), "{said}");
    // Nothing is packed, and nothing of it removed while it has a name.
    puller.store.prune(&PruneOptions::default()).unwrap();
    assert!(puller.store.image(&name.to_string()).unwrap().is_lazy());

    let metadata = &files(&puller, ".metadata")[0];
    let file = OpenOptions::new().write(true).open(metadata).unwrap();
    file.write_all_at(b"x", 5000).unwrap();
    let found = puller.store.fsck(true).unwrap().findings;
    assert!(!found.is_empty() && found.iter().all(|one| one.repaired));
    assert!(puller.pull(&name).is_lazy());
    assert_eq!(puller.store.fsck(false).unwrap().findings, []);

    puller.store.untag(&name).unwrap();
    puller.store.prune(&PruneOptions::default()).unwrap();
    for suffix in [".lazy", ".blob", ".metadata", ".json"] {
        assert_eq!(files(&puller, suffix), [] as [PathBuf; 0]);
    }
}

/// Answers requests for parts of blobs that begin like this otherwise than a registry.
fn part_fault(
    registry: &Registry,
    begins: impl Fn(usize) -> bool + Send + 'static,
    fault: impl Fn(&Request) -> Reply + Send + 'static,
) {
    registry.rule(move |request| {
        let start = request.range_start().filter(|_| request.is_blob())?;
        begins(start).then(|| fault(request))
    });
}

fn other_range(request: &Request) -> Reply {
    let range = request.range(usize::MAX).unwrap();
    let length = range.end - range.start;
    let header = format!("bytes {}-{}/*", range.start + 1, range.end);
    Reply::new(206, vec![0; length]).header("content-range", header)
}

fn other_bytes(request: &Request) -> Reply {
    let range = request.range(usize::MAX).unwrap();
    let length = range.end - range.start;
    let header = format!("bytes {}-{}/*", range.start, range.end - 1);
    Reply::new(206, vec![0x5a; length]).header("content-range", header)
}

fn image_served(converted: &Converted) -> (Registry, Reference) {
    served(converted, |_| {})
}

#[test]
fn a_registry_that_has_no_ranges_gives_the_whole_image() {
    let converted = converted();
    let (registry, name) = image_served(&converted);
    registry.ignore_ranges();
    let puller = lazy();
    assert!(!puller.pull(&name).is_lazy());
    let notices = puller.progress.notices.lock().unwrap().join("\n");
    assert!(notices.contains("it sends no parts of layers"), "{notices}");
}

#[test]
fn other_bytes_than_the_index_says_are_never_read() {
    let converted = converted();
    // While the image is pulled.
    type Begins = fn(usize) -> bool;
    type Fault = fn(&Request) -> Reply;
    let parts: [(Begins, &str); 2] = [
        (|start| start > 0, "its chunk index has the digest"),
        (
            |start| start == 0,
            "chunk 0 has another checksum than its index says",
        ),
    ];
    for (begins, part) in parts {
        let (registry, name) = image_served(&converted);
        part_fault(&registry, begins, other_bytes);
        let said = lazy().try_pull(&name).unwrap_err().to_string();
        assert!(said.contains(part), "{part}: {said}");
    }
    // Later, in each way.
    let faults: [(Fault, &str); 5] = [
        (other_bytes, "another checksum than its index says"),
        (other_range, "it sends no parts of layers"),
        (
            |_| Reply::new(200, vec![0x5a; 1 << 20]),
            "it sends no parts of layers",
        ),
        (|_| Reply::error(404, "gone"), "it lacks this part"),
        (|_| Reply::error(403, "expired"), "access denied"),
    ];
    for (fault, part) in faults {
        let (registry, name) = image_served(&converted);
        let puller = lazy();
        let image = puller.pull(&name);
        part_fault(&registry, |_| true, fault);
        let said = read(&puller, &image.layers[3]).unwrap_err().to_string();
        assert!(said.contains(part), "{part}: {said}");
        let completed = complete_blocking(&image, &puller.options, Arc::new(Silent));
        let said = completed.unwrap_err().to_string();
        assert!(said.contains(part), "{part}: {said}");
        assert_eq!(puller.store.fsck(false).unwrap().findings, []);
    }
}

#[test]
fn a_part_that_fails_ends_those_that_are_fetched_beside_it() {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |panicked| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        print(panicked);
    }));
    let converted = converted();
    let (registry, name) = image_served(&converted);
    let puller = lazy();
    let image = puller.pull(&name);
    let mut large = 0;
    registry.rule(move |request| {
        let range = request
            .range(usize::MAX)
            .filter(|range| range.len() > 1 << 20)?;
        large += 1;
        // The first one is still waited for when the second one lies.
        let reply = other_bytes(request);
        Some(if large == 1 {
            reply.cut(range.len() / 2, End::Stall)
        } else {
            reply
        })
    });
    let completed = complete_blocking(&image, &puller.options, Arc::new(Silent));
    let said = completed.unwrap_err().to_string();
    assert!(said.contains("another checksum"), "{said}");
    wait_until("no thread fetches", || {
        let threads = fs::read_dir("/proc/self/task").unwrap();
        let mut names =
            threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("comm")).ok());
        !names.any(|name| name.starts_with("mica-pull"))
    });
    assert_eq!(PANICS.load(Ordering::SeqCst), 0);
}

#[test]
fn a_manifest_that_lies_about_parts_gives_no_image_or_a_whole_one() {
    type Change = fn(&mut Value);
    fn set(manifest: &mut Value, name: &str, value: Value) {
        for layer in manifest["layers"].as_array_mut().unwrap() {
            layer["annotations"][name] = value.clone();
        }
    }
    let refused: [(Change, &str); 5] = [
        (
            |m| {
                m["layers"][3]["annotations"]["org.erofs.chunk-index.digest"] =
                    json!(Digest::of(b""));
            },
            "its chunk index has the digest",
        ),
        (
            |m| {
                let range = &mut m["layers"][3]["annotations"]["org.erofs.chunk-index.range"];
                let (start, end) = range.as_str().unwrap().split_once(':').unwrap();
                let start: u64 = start.parse().unwrap();
                *range = json!(format!("{}:{end}", start - 4));
            },
            "its chunk index has the digest",
        ),
        (
            |m| m["layers"][3]["annotations"]["org.micabox.metadata"] = json!("4096"),
            "another place of its metadata",
        ),
        (
            |m| {
                let length = &mut m["layers"][3]["annotations"]["org.erofs.dmverity.hash_offset"];
                let number: u64 = length.as_str().unwrap().parse().unwrap();
                *length = json!((number + 4096).to_string());
            },
            "EROFS image",
        ),
        (
            |m| m["layers"][3]["annotations"]["org.micabox.archive"] = json!(Digest::of(b"")),
            "its UUID is not that of the archive",
        ),
    ];
    let converted = converted();
    for (change, part) in refused {
        let (_registry, name) = served(&converted, change);
        let puller = lazy();
        let said = puller.try_pull(&name).unwrap_err().to_string();
        assert!(said.contains(part), "{part}: {said}");
        assert_eq!(puller.store.images().unwrap(), []);
        assert_eq!(puller.store.fsck(false).unwrap().findings, []);
    }
    // What is not said, or not in words of this version.
    for (name, value) in [
        ("org.micabox.metadata", json!("x")),
        ("org.micabox.metadata", json!("4095")),
        ("org.micabox.metadata", Value::Null),
        ("org.micabox.checksum", json!("sha256:00")),
        ("org.erofs.chunk-index.range", json!("7")),
        (
            "org.erofs.chunk-index.range",
            json!("18446744073709551615:5"),
        ),
        ("org.erofs.chunk-index.mediaType", json!("another")),
        (
            "org.erofs.dmverity.hash_offset",
            json!("18446744073709551615"),
        ),
    ] {
        let (_registry, reference) = served(&converted, |m| set(m, name, value.clone()));
        assert!(!lazy().pull(&reference).is_lazy(), "{name}: {value}");
    }
}

#[test]
fn a_checksum_that_lies_is_found_when_the_layer_is_whole() {
    let converted = converted();
    let (_registry, name) = served(&converted, |manifest| {
        let of =
            |layer: usize| manifest["layers"][layer]["annotations"]["org.micabox.checksum"].clone();
        let other = of(1);
        manifest["layers"][3]["annotations"]["org.micabox.checksum"] = other;
    });
    let mut puller = lazy();
    let image = puller.pull(&name);
    assert!(image.is_lazy());
    // It is of no other image: with the right one, the layer is fetched.
    let right = puller.pull(&reference(&converted.registry, "app:1"));
    assert_ne!(right.manifest_digest, image.manifest_digest);
    let layer = &right.layers[3];
    assert!(puller.store.is_whole(layer));
    assert!(puller.store.image(&name.to_string()).is_err());
    // The image that lies becomes one that says the truth, or none: its layer is here now.
    puller.options.lazy = false;
    let again = puller.pull(&name);
    assert_eq!(again.layers[3].record, layer.record);
    assert_eq!(puller.store.fsck(false).unwrap().findings, []);
}

#[test]
fn a_file_that_is_cut_counts_as_missing() {
    let converted = converted();
    let puller = lazy();
    let name = reference(&converted.registry, "app:1");
    puller.pull(&name);
    for suffix in [".metadata", ".blob"] {
        let file = &files(&puller, suffix)[0];
        File::options()
            .write(true)
            .open(file)
            .unwrap()
            .set_len(4096)
            .unwrap();
        assert!(puller.store.image(&name.to_string()).is_err());
        assert!(puller.pull(&name).is_lazy());
    }
}

#[test]
fn the_order_of_a_start_travels_beside_the_image() {
    let converted = converted();
    let name = reference(&converted.registry, "app:1");
    let puller = lazy();
    let image = puller.pull(&name);
    let manifest = &image.manifest_digest;
    assert_eq!(puller.store.start_order(manifest), None);
    let options = PushOptions::new(Arc::clone(&puller.options.settings));
    let pushed = push_start_order_blocking(&puller.store, &name.to_string(), &options);
    let said = pushed.unwrap_err().to_string();
    assert!(said.contains("there is no order to push"), "{said}");

    let recorder = Arc::new(Recorder::default());
    let opened = fetcher(&puller)
        .open(&puller.store, &image.layers[3])
        .unwrap();
    let opened = opened.recorded(3, &recorder);
    let end = opened.size().unwrap();
    for offset in [0, end / 2, 0, end - 1] {
        opened.read_exact_at(&mut [0], offset).unwrap();
    }
    let order = recorder.order();
    assert_eq!(
        order
            .runs()
            .map(|(layer, run)| (layer, run.len()))
            .collect::<Vec<_>>(),
        [(3, 1); 3]
    );
    puller.store.keep_start_order(manifest, &order).unwrap();
    let pushed = push_start_order_blocking(&puller.store, &name.to_string(), &options).unwrap();

    let other = lazy();
    other.pull(&name);
    assert_eq!(other.store.start_order(manifest).as_ref(), Some(&order));
    assert_eq!(other.store.fsck(false).unwrap().findings, []);
    // It is no image.
    let said = lazy().try_pull(&pushed).unwrap_err().to_string();
    assert!(said.contains("vnd.micabox.start-order"), "{said}");

    // One that is no order, or of chunks that there are not, is not used.
    let tag = pushed.tag().unwrap().to_owned();
    for text in [
        r#"{"runs":[[9,9,9],[3,4294967295,4294967295]]}"#,
        "{",
        "[]",
        r#"{"runs":[[-1,0,0]]}"#,
    ] {
        let (registry, name) = image_served(&converted);
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {"mediaType": "application/vnd.oci.empty.v1+json", "digest": Digest::of(b"{}"), "size": 2},
            "layers": [],
            "annotations": {"org.micabox.start-order": text},
        });
        registry.put_manifest("app", &tag, manifest.to_string().into_bytes());
        assert!(lazy().pull(&name).is_lazy(), "{text}");
    }
}

#[test]
fn no_byte_of_a_layer_is_asked_for_twice() {
    let converted = converted();
    let (registry, name) = image_served(&converted);
    let puller = lazy();
    let image = puller.pull(&name);
    // Some of it is read before the rest is fetched.
    let opened = fetcher(&puller)
        .open(&puller.store, &image.layers[3])
        .unwrap();
    opened.read_exact_at(&mut [0; 10_000], 2 << 20).unwrap();
    complete_blocking(&image, &puller.options, Arc::new(Silent)).unwrap();
    assert!(!image.is_lazy());

    let manifest = converted.manifest();
    for layer in manifest["layers"].as_array().unwrap() {
        if layer["annotations"]["org.erofs.role"] != "device" {
            continue;
        }
        let size = layer["size"].as_u64().unwrap() as usize;
        let digest = layer["digest"].as_str().unwrap();
        let requests = registry.requests();
        let asked = requests
            .iter()
            .filter(|request| request.path().ends_with(digest));
        let mut ranges: Vec<_> = asked.map(|request| request.range(size).unwrap()).collect();
        ranges.sort_by_key(|range| range.start);
        let mut end = 0;
        for range in &ranges {
            assert_eq!(range.start, end, "{ranges:?}");
            end = range.end;
        }
        assert_eq!(end, size);
    }
    let tmp = fs::read_dir(puller.store.root().join("tmp")).unwrap();
    assert_eq!(tmp.count(), 0);
}
