//! kill -9 at any moment while a layer is filled that was here in part: by reads, and from end to end behind them.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use micabox_erofs::ReadAt;
use micabox_image::Store;
use micabox_image::progress::Silent;
use micabox_image::store::PruneOptions;
use micabox_testing::{kills, wait_until};
use micabox_transfer::{LazyLayers, complete_blocking};

use crate::Puller;
use crate::erofs::reference;
use crate::lazy::{converted, lazy, read, whole};

const STORE: &str = "TEST_FILL_STORE";
const REFERENCE: &str = "TEST_FILL_REFERENCE";

/// The layer of the image that is large.
const LARGE: usize = 3;

/// Fills the store's image in a separate process: this test again, directed by environment variables.
fn filling(puller: &Puller, reference: &str) -> Child {
    Command::new(env::current_exe().unwrap())
        .args([
            "--exact",
            "killed_fill::a_killed_fill_leaves_a_layer_of_the_same_bytes",
        ])
        .env(STORE, puller.store.root())
        .env(REFERENCE, reference)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Reads a part of the image here and there, and then fetches what is left.
fn fill(root: &Path, reference: &str) {
    let store = Store::open(root).unwrap();
    let image = store.image(reference).unwrap();
    let options = lazy().options;
    if image.is_lazy() {
        let layers = LazyLayers::new(options.clone()).unwrap();
        let layer = layers.open(&store, &image.layers[LARGE]).unwrap();
        let size = layer.size().unwrap();
        for part in [7, 1, 4] {
            layer
                .read_exact_at(&mut [0; 100_000], size / 10 * part)
                .unwrap();
        }
    }
    complete_blocking(&image, &options, Arc::new(Silent)).unwrap();
}

#[test]
fn a_killed_fill_leaves_a_layer_of_the_same_bytes() {
    if let (Some(root), Ok(reference)) = (env::var_os(STORE), env::var(REFERENCE)) {
        fill(Path::new(&root), &reference);
        return;
    }
    let converted = converted();
    let (_there, whole) = whole(&converted);
    let bytes: Vec<_> = whole
        .layers
        .iter()
        .map(|layer| {
            let mut bytes = fs::read(&layer.path).unwrap();
            bytes.truncate(layer.image_size() as usize);
            bytes
        })
        .collect();
    let name = reference(&converted.registry, "app:1");
    let text = name.to_string();
    let puller = lazy();
    puller.pull(&name);
    let started = Instant::now();
    assert!(filling(&puller, &text).wait().unwrap().success());
    let mut lasts = started.elapsed();
    assert!(!puller.store.image(&text).unwrap().is_lazy());

    // A different moment each time, by the golden ratio: spread evenly, never the same.
    let (mut moment, mut done, kills) = (0.0f64, 0, kills(20));
    for round in 0..kills {
        let puller = lazy();
        assert!(puller.pull(&name).is_lazy());
        moment = (moment + 0.618_033_988_75).fract();
        let started = Instant::now();
        let mut process = filling(&puller, &text);
        // Sleep: the kill may come at any moment.
        std::thread::sleep(lasts.mul_f64(moment));
        process.kill().unwrap();
        process.wait().unwrap();

        let store = Store::open(puller.store.root()).unwrap();
        let report = store.fsck(false).unwrap();
        assert_eq!(report.findings, [], "round {round}");
        assert_eq!(report.strangers, [] as [&Path; 0], "round {round}");
        let image = store.image(&text).unwrap();
        if !image.is_lazy() {
            done += 1;
            lasts = lasts.min(started.elapsed());
        }
        for (layer, bytes) in image.layers.iter().zip(&bytes) {
            let found = if store.is_lazy(layer) {
                read(&puller, layer).unwrap()
            } else {
                let mut found = fs::read(&layer.path).unwrap();
                found.truncate(layer.image_size() as usize);
                found
            };
            assert!(found == *bytes, "round {round}: {}", layer.diff_id);
        }
        // A worker of the killed process may hold its files a moment longer.
        wait_until("nothing is left behind", || {
            let store = Store::open(puller.store.root()).unwrap();
            store.prune(&PruneOptions::default()).unwrap();
            store.fsck(false).unwrap().leftovers == 0
        });
        assert!(!store.image(&text).unwrap().layers.is_empty());
    }
    println!("kills: {kills} of fill, {done} of them when it was done");
    assert!(done < kills, "it was never killed in time");
}
