//! Pruning that is killed at any moment: what has a name keeps its bytes, and the next pruning removes all else.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use micabox_image::progress::Silent;
use micabox_image::store::{Image, PackChoice, Patience, PruneOptions, Pruned};
use micabox_image::{Digest, Store};
use micabox_testing::{kills, run};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, pidfd_open};

use crate::files::{self, noise};
use crate::layer::archive::Archive;
use crate::layer::image::publish;
use crate::layer::{TestStore, archive_of, fast_store};
use crate::processes::{Process, assert_clean};

/// Images that stay: one whose layers are packed or were, one that is whole again.
const NAMED: [&str; 2] = ["kept", "whole"];

/// A layer with a file for each seed.
fn archive(seeds: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let files = seeds.into_iter().map(|seed| (seed, noise(seed, 60_000)));
    let add =
        |archive: Archive, (seed, bytes)| archive.file(&format!("d{}/{seed}", seed % 3), bytes);
    files.fold(Archive::new(), add).finish()
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
        let all = PackChoice::UnusedFor(Duration::ZERO);
        let pack = || drop(store.pack(&all, Patience::Wait, &Silent).unwrap());
        // Of this pack, a layer and a disk that stay have some chunks.
        let large = 100..170;
        publish(&store, &[archive(0..6), archive(large.clone())], "packed");
        pack();
        let shared = large.clone().take(2);
        publish(
            &store,
            &[archive(0..6), archive(shared.chain(10..16))],
            "kept",
        );
        publish(&store, &[archive(0..6), archive(20..26)], "whole");
        pack();
        // Its lists stay, of which the next packing would make use.
        store
            .unpack(&store.image("whole").unwrap(), &Silent)
            .unwrap();
        publish(&store, &[archive(30..36)], "plain");
        let shared = store.shared().unwrap();
        for name in ["packed", "plain"] {
            // While another process uses the store, its name alone goes.
            assert_eq!(store.remove(name).unwrap().pruned, None);
        }
        drop(shared);

        let contents = [noise(large.start + 35, 60_000), noise(200, 200_000)];
        let path = files::disk(&store, "data", &[(0, &contents[0]), (100, &contents[1])]);
        let removed = files::disk(&store, "gone", &[(0, &noise(300, 400_000))]);
        let disk = fs::read(&path).unwrap();
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
            disk,
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

/// The changes of names below a store's root, as the kernel counts them.
struct Changes(OwnedFd);

impl Changes {
    /// Counts from now on.
    fn of(store: &Store) -> Self {
        let changes = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
        let names = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE;
        let find = run(Command::new("find").arg(store.root()).args(["-type", "d"]));
        for directory in find.lines() {
            inotify::add_watch(&changes, directory, names).unwrap();
        }
        Self(changes)
    }

    /// Waits until there were so many, or until a process has ended. Returns how many there were.
    fn wait(&self, wanted: usize, process: &Process) -> usize {
        let ended = pidfd_open(process.pid(), PidfdFlags::empty()).unwrap();
        let (mut count, mut has_ended) = (0, false);
        loop {
            let mut buffer = [MaybeUninit::uninit(); 4096];
            let mut events = inotify::Reader::new(&self.0, &mut buffer);
            while count < wanted {
                match events.next() {
                    Ok(_) => count += 1,
                    Err(Errno::AGAIN) => break,
                    Err(error) => panic!("inotify: {error}"),
                }
            }
            if count == wanted || has_ended {
                return count;
            }
            let mut ready = [&self.0, &ended].map(|file| PollFd::new(file, PollFlags::IN));
            poll(&mut ready, None).unwrap();
            has_ended = ready[1].revents().contains(PollFlags::IN);
        }
    }
}

fn disk_of(store: &Store) -> PathBuf {
    store.root().join("volumes/data/disk.ext4")
}

/// Returns the names of packs.
fn packs(store: &Store) -> BTreeSet<String> {
    let packs = store.root().join("packs");
    let find = run(Command::new("find").arg(packs).args(["-type", "f"]));
    let name = |path: &str| path.rsplit('/').next().unwrap().to_owned();
    find.lines().map(name).collect()
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
    assert_eq!((counts, would.views, would.templates), ((2, 2, 1), 1, 1));
    let changes = Changes::of(&first);
    let process = Process::start("prune", &first, &nothing);
    let all = changes.wait(usize::MAX, &process);
    process.succeed();
    assert!(is_pruned(&first));
    littered.assert_kept(&first);
    let (before, after) = (packs(&littered.store), packs(&first));
    assert!(after.len() < before.len());
    assert!(!after.is_subset(&before), "no pack was written anew");

    let (mut moment, mut done, kills) = (0.0f64, 0, kills(40));
    for _ in 0..kills {
        let store = littered.copy();
        moment = (moment + 0.618_033_988_75).fract();
        let changes = Changes::of(&store);
        let process = Process::start("prune", &store, &nothing);
        changes.wait((all as f64 * moment) as usize + 1, &process);
        process.kill();
        littered.assert_kept(&store);
        done += usize::from(is_pruned(&store));
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
