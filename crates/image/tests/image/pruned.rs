//! Pruning that is killed at any moment: what has a name keeps its bytes, and the next pruning removes all else.

use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use micabox_image::progress::Silent;
use micabox_image::store::{Image, PackChoice, Patience, PruneOptions, Pruned};
use micabox_image::{Digest, Store};
use micabox_testing::{kills, run};

use crate::files::{self, noise};
use crate::layer::archive::Archive;
use crate::layer::image::publish;
use crate::layer::{TestStore, archive_of, fast_store};
use crate::processes::{Process, assert_clean};

/// Images that stay: one whose layers are packed or were, one that is whole again.
const NAMED: [&str; 2] = ["kept", "whole"];

/// A layer that no other one shares a chunk with.
fn archive(seed: u64) -> Vec<u8> {
    let mut archive = Archive::new();
    for number in 0..8 {
        let bytes = noise(seed * 100 + number, 60_000);
        archive = archive.file(&format!("d{}/{number}", number % 3), &bytes);
    }
    archive.finish()
}

/// A store with all that pruning removes, which each round has a copy of.
struct Littered {
    store: TestStore,
    /// Merged metadata of the images that stay.
    metadata: Vec<Vec<u8>>,
    /// Contents of the disk that stays.
    disk: Vec<u8>,
}

impl Littered {
    fn new() -> Self {
        let store = fast_store();
        publish(&store, &[archive(1), archive(2)], "kept");
        publish(&store, &[archive(1), archive(3)], "whole");
        publish(&store, &[archive(1), archive(4), archive(5)], "packed");
        let all = PackChoice::UnusedFor(Duration::ZERO);
        store.pack(&all, Patience::Wait, &Silent).unwrap();
        // Its lists stay, of which the next packing would make use.
        store
            .unpack(&store.image("whole").unwrap(), &Silent)
            .unwrap();
        publish(&store, &[archive(6)], "plain");
        let shared = store.shared().unwrap();
        for name in ["packed", "plain"] {
            // While another process uses the store, its name alone goes.
            assert_eq!(store.remove(name).unwrap().pruned, None);
        }
        drop(shared);

        // Two disks in one pack, of which one is removed.
        let contents = [noise(7, 200_000), noise(8, 400_000)];
        let [disk, gone] = ["data", "gone"];
        let path = files::disk(&store, disk, &[(0, &contents[0])]);
        let removed = files::disk(&store, gone, &[(0, &contents[1])]);
        let bytes = fs::read(&path).unwrap();
        let mut packing = files::packing(&store);
        files::pack(&mut packing, &path);
        files::pack(&mut packing, &removed);
        drop(packing);
        fs::remove_dir_all(removed.parent().unwrap()).unwrap();

        let kept = store.image("kept").unwrap();
        store.trimmed(&kept, &"/d0".parse().unwrap()).unwrap();
        let template = store.root().join("templates/template");
        fs::create_dir(&template).unwrap();
        fs::write(template.join("memory"), [1; 10_000]).unwrap();
        let partial = format!("tmp/{}.blob", Digest::of(b"a blob").hex());
        fs::write(store.root().join(partial), [1; 10_000]).unwrap();
        let metadata = NAMED.map(|name| fs::read(&store.image(name).unwrap().fsmeta).unwrap());
        Self {
            metadata: metadata.to_vec(),
            disk: bytes,
            store,
        }
    }

    /// Makes a copy of it.
    fn copy(&self) -> TestStore {
        let copy = fast_store();
        let (from, to) = (self.store.root().join("."), copy.root());
        run(Command::new("cp").arg("-a").args([&*from, to]));
        copy
    }

    /// Fails unless all that has a name is as it was, but for how it is kept.
    fn assert_kept(&self, store: &TestStore) {
        assert_clean(store);
        for (name, metadata) in NAMED.iter().zip(&self.metadata) {
            let image: Image = store.image(name).unwrap();
            // It checks the archive's digest.
            let archives = image.layers.iter().map(|layer| archive_of(store, layer));
            assert_eq!(archives.count(), 2);
            assert!(fs::read(&image.fsmeta).unwrap() == *metadata);
        }
    }

    /// Unpacks the disk, and fails unless it is as it was.
    fn assert_disk(&self, store: &TestStore) {
        let mut found = Vec::new();
        let mut file = store.open_file(&disk_of(store)).unwrap();
        file.read_to_end(&mut found).unwrap();
        assert!(found == self.disk, "other bytes");
    }
}

fn disk_of(store: &Store) -> PathBuf {
    store.root().join("volumes/data/disk.ext4")
}

/// Returns whether there is nothing to prune.
fn is_pruned(store: &Store) -> bool {
    let options = PruneOptions {
        dry_run: true,
        ..PruneOptions::default()
    };
    store.prune(&options).unwrap() == Pruned::default()
}

#[test]
fn killed_at_any_moment_pruning_leaves_what_has_a_name_and_the_next_one_ends() {
    let littered = Littered::new();
    let nothing = Digest::of(b"");
    let first = littered.copy();
    let would = PruneOptions {
        dry_run: true,
        ..PruneOptions::default()
    };
    let would = first.prune(&would).unwrap();
    let counts = (would.images.len(), would.layers.len(), would.leftovers);
    assert_eq!((counts, would.views, would.templates), ((2, 3, 1), 1, 1));
    let process = Process::start("prune", &first, &nothing);
    let started = Instant::now();
    process.succeed();
    let mut whole = started.elapsed();
    assert!(is_pruned(&first));
    littered.assert_kept(&first);

    let (mut moment, mut done, kills) = (0.0f64, 0, kills(40));
    for _ in 0..kills {
        let store = littered.copy();
        moment = (moment + 0.618_033_988_75).fract();
        let process = Process::start("prune", &store, &nothing);
        let lasted = process.kill_after(whole.mul_f64(moment));
        littered.assert_kept(&store);
        if is_pruned(&store) {
            done += 1;
            whole = whole.min(lasted);
        }
        Process::start("prune", &store, &nothing).succeed();
        assert!(is_pruned(&store));
        littered.assert_kept(&store);
        let usage = store.usage().unwrap();
        assert_eq!((usage.images.len(), usage.layers), (2, 3));
        littered.assert_disk(&store);
    }
    println!("kills: {kills} of prune, {done} of them when it was done");
    assert!(done < kills, "it was never killed in time");
}
