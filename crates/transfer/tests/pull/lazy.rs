//! Images that are used before all of their layers are here.

mod answers;
mod lies;
mod manifests;
mod order;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::Arc;

use micabox_erofs::ReadAt;
use micabox_image::Reference;
use micabox_image::progress::Silent;
use micabox_image::store::{Image, Layer, PruneOptions};
use micabox_testing::image::layers;
use micabox_testing::wait_until;
use micabox_transfer::{LazyLayers, PullPolicy, complete_blocking};

use crate::Puller;
use crate::erofs::{Converted, puller, reference, served};
use crate::image::{TestImage, TestLayer};
use crate::server::Registry;

/// An image with a layer of 6 MiB that can't be compressed.
pub fn converted() -> Converted {
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

pub fn lazy() -> Puller {
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

pub fn whole(converted: &Converted) -> (Puller, Image) {
    let puller = puller();
    let image = puller.pull(&reference(&converted.registry, "app:1"));
    (puller, image)
}

/// Reads a layer through what fetches it.
pub fn read(puller: &Puller, layer: &Layer) -> std::io::Result<Vec<u8>> {
    let image = fetcher(puller).open(&puller.store, layer).unwrap();
    let mut bytes = vec![0; image.size()? as usize];
    image.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

fn image_served(converted: &Converted) -> (Registry, Reference) {
    served(converted, |_| {})
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
    let report = puller.store.fsck(false).unwrap();
    assert_eq!((report.findings, report.lost_chunks), (vec![], 0));
    assert!(report.bytes > 6 << 20, "{}", report.bytes);
    let blobs = files(&puller, ".blob");
    let largest = blobs
        .iter()
        .max_by_key(|blob| fs::metadata(blob).unwrap().len());
    let file = OpenOptions::new()
        .write(true)
        .open(largest.unwrap())
        .unwrap();
    file.write_all_at(&[0x5a; 16], 100_000).unwrap();
    let report = puller.store.fsck(false).unwrap();
    assert_eq!((report.findings, report.lost_chunks), (vec![], 1));
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

#[test]
fn an_image_that_is_whole_stays_while_its_name_means_it() {
    let converted = converted();
    let name = reference(&converted.registry, "app:1");
    let mut puller = Puller::new()
        .platform("linux/amd64")
        .policy(PullPolicy::Always);
    let whole = puller.pull(&name);
    puller.options.lazy = true;
    let again = puller.pull(&name);
    assert_eq!(again.manifest_digest, whole.manifest_digest);
    assert!(!again.is_lazy());

    // Its name meant something else here.
    let amd64 = "linux/amd64".parse().unwrap();
    let other = TestImage::for_platform(vec![TestLayer::noise(3, 3000)], &amd64);
    let registry = Registry::with(&other);
    puller.pull(&registry.reference("x:1"));
    puller.store.tag(&name, &other.digest()).unwrap();
    let new = puller.pull(&name);
    assert!(new.is_lazy());
    assert_ne!(new.manifest_digest, whole.manifest_digest);
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
    // The rest of the answer comes behind the reader's back.
    let index = opened.blob().index();
    let size = index.range(index.len() - 1).unwrap().end as usize;
    let asked = registry.requests().last().unwrap().range(size).unwrap();
    wait_until("all that was asked for is here", || {
        (0..index.len()).all(|number| {
            let range = index.range(number).unwrap();
            let is_asked = asked.contains(&(range.start as usize));
            !is_asked || opened.blob().is_here(number)
        })
    });
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
