//! kill -9 at any moment of a pull leaves a sound store, in which the same pull succeeds.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use micabox_image::Store;
use micabox_image::convert::Place;
use micabox_image::progress::Silent;
use micabox_testing::{kills, wait_until_none};
use micabox_transfer::{Credentials, PullOptions, pull_blocking};

use crate::image::{TestImage, TestLayer};
use crate::server::Registry;
use crate::{assert_has, layer, settings};

const STORE: &str = "TEST_PULL_INTO";
const REFERENCE: &str = "TEST_PULL_REFERENCE";
const KEEPS: &str = "TEST_PULL_KEEPS_BLOBS";

pub fn pull(store: &Store, reference: &str) -> micabox_image::store::Image {
    pull_with(store, reference, env::var_os(KEEPS).is_some())
}

fn pull_with(store: &Store, reference: &str, keep_blobs: bool) -> micabox_image::store::Image {
    let mut settings = settings();
    settings.keep_blobs = keep_blobs;
    if env::var_os(STORE).is_none() {
        // Hundreds of workers would take long, and are tested elsewhere.
        settings.conversion = Place::Here;
    }
    let mut options = PullOptions::new(Arc::new(settings));
    options.credentials = Credentials::none();
    let reference = reference.parse().unwrap();
    pull_blocking(store, &reference, &options, Arc::new(Silent)).unwrap()
}

/// Pulls in a separate process: this test again, directed by environment variables.
fn pulling(root: &Path, reference: &str, keep_blobs: bool) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    if keep_blobs {
        command.env(KEEPS, "1");
    }
    command
        .args(["--exact", "killed::a_killed_pull_leaves_a_sound_store"])
        .env(STORE, root)
        .env(REFERENCE, reference)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn a_killed_pull_leaves_a_sound_store() {
    if let (Some(root), Ok(reference)) = (env::var_os(STORE), env::var(REFERENCE)) {
        pull(&Store::open(&PathBuf::from(root)).unwrap(), &reference);
        return;
    }
    let sizes = [400_000, 1000, 200_000, 0, 70_000, 300_000];
    let layers = sizes
        .iter()
        .enumerate()
        .map(|(seed, size)| TestLayer::noise(seed as u64, *size));
    let image = TestImage::new(layers.collect());
    let registry = Registry::with(&image);
    let reference = registry.reference("x:1").to_string();

    // Duration of an undisturbed pull, so that the kills are spread over all of it.
    let directory = tempfile::tempdir().unwrap();
    let started = Instant::now();
    assert!(
        pulling(&directory.path().join("store"), &reference, true)
            .wait()
            .unwrap()
            .success()
    );
    let whole = started.elapsed();

    let mut interrupted = 0;
    let rounds = u32::try_from(kills(100)).unwrap();
    for round in 0..rounds {
        let test = layer::store();
        let root = test.store.root().to_owned();
        // Every other one keeps its blobs as they came.
        let keep_blobs = round % 2 == 1;
        let mut process = pulling(&root, &reference, keep_blobs);
        // Sleep: the kill may come at any moment of a pull; rounds are evenly spread, so that no part is left out.
        std::thread::sleep(whole.mul_f64(f64::from(round) / f64::from(rounds)));
        process.kill().unwrap();
        let status = process.wait().unwrap();
        interrupted += u32::from(!status.success());

        // The next command after the kill.
        let store = Store::open(&root).unwrap();
        let report = store.fsck(false).unwrap();
        assert!(report.is_clean(), "round {round}: {report:?}");
        assert_has(&store, &pull_with(&store, &reference, keep_blobs), &image);
        for layer in image.layers.iter().filter(|_| keep_blobs) {
            // An image is published last, and so never without its blobs.
            let blob = store.kept_blob(&layer.digest()).unwrap().unwrap();
            blob.check().unwrap();
        }
        // A worker that was just being started may hold the killed process's locks a moment longer:
        // a command after that removes the files under those locks.
        wait_until_none("files of the killed pull", || {
            let report = Store::open(&root).unwrap().fsck(false).unwrap();
            assert!(report.is_clean(), "round {round}: {report:?}");
            let litter = report.leftovers + report.strangers.len();
            Vec::from_iter((litter > 0).then_some(report))
        });
    }
    println!(
        "kills: {rounds} of pull, {} of them when it was done",
        rounds - interrupted
    );
    assert!(interrupted > 0, "no pull was interrupted");
}
