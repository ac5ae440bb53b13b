//! Several processes with one store: killed at any moment, working on the same layer, pruning at
//! the same time.
//!
//! The other processes are this test binary again, directed by environment variables.

use std::env;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use micabox_erofs::ReadAt;
use micabox_image::convert::{Expect, convert_layer};
use micabox_image::progress::Silent;
use micabox_image::store::{Claim, PackChoice, Patience, PruneOptions, is_packed_file};
use micabox_image::{Digest, Limits, Store};
use micabox_testing::kills;
use rustix::process::Pid;

use crate::files;
use crate::layer::archive::Archive;
use crate::layer::image::publish;
use crate::layer::{TestStore, expect, fast_store, gzip, store};

const ACTION: &str = "MICABOX_TEST_ACTION";
const STORE: &str = "MICABOX_TEST_STORE";
const DIFF_ID: &str = "MICABOX_TEST_DIFF_ID";

/// Where the parent puts the blob for its children: making it takes longer than converting it.
fn blob_path(store: &Store) -> PathBuf {
    store.root().with_file_name("blob")
}

/// Writes the blob for the children, and returns the layer's diff ID.
fn prepare(store: &Store) -> Digest {
    let archive = archive();
    std::fs::write(blob_path(store), gzip(&archive)).unwrap();
    Digest::of(&archive)
}

/// A layer that takes some time: files of every size, gzip'd.
fn archive() -> Vec<u8> {
    let noise: Vec<u8> = (0..400_000u64)
        .map(|i| (i.wrapping_mul(i ^ 0x9e37_79b9) >> 7) as u8)
        .collect();
    let mut archive = Archive::new();
    for i in 0..60 {
        archive = archive.file(&format!("d{}/{i}", i % 7), &noise[i * 6000..]);
    }
    archive.whiteout("d1/.wh.x").finish()
}

/// Runs in a child; without the environment variables, this test does nothing.
#[test]
fn child() {
    let Ok(action) = env::var(ACTION) else { return };
    let store = Store::open(Path::new(&env::var_os(STORE).unwrap())).unwrap();
    println!("ready");
    match &*action {
        "convert" => {
            let blob = std::fs::read(blob_path(&store)).unwrap();
            let honest = Expect {
                diff_id: env::var(DIFF_ID).unwrap().parse().unwrap(),
                ..expect(&blob, &blob)
            };
            convert_layer(&store, &blob[..], &honest, &Limits::default()).unwrap();
        }
        // Keeps the claim until the parent releases it, which for a killed child is never.
        "claim" => {
            let diff_id = env::var(DIFF_ID).unwrap().parse().unwrap();
            let claim = store.claim_layer(&diff_id, None).unwrap();
            println!(
                "{}",
                if matches!(claim, Claim::Missing(_)) {
                    "missing"
                } else {
                    "present"
                }
            );
            io::stdin().read_line(&mut String::new()).unwrap();
        }
        "pack" => {
            let all = PackChoice::UnusedFor(Duration::ZERO);
            store.pack(&all, Patience::Wait, &Silent).unwrap();
        }
        "unpack" => {
            let image = store.image("image").unwrap();
            store.unpack(&image, &Silent).unwrap();
        }
        "prune" => {
            store.prune(&PruneOptions::default()).unwrap();
        }
        "pack-file" => drop(files::pack(&mut files::packing(&store), &disk_of(&store))),
        "unpack-file" => drop(store.open_file(&disk_of(&store)).unwrap()),
        _ => panic!("{action}"),
    }
}

/// This test program again, at work in a store.
pub struct Process {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Process {
    pub fn start(action: &str, store: &Store, diff_id: &Digest) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["processes::child", "--exact", "--nocapture"])
            .env(ACTION, action)
            .env(STORE, store.root())
            .env(DIFF_ID, diff_id.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut process = Self { child, output };
        process.wait_for("ready");
        process
    }

    /// Reads up to a line that ends in `text`; the test harness writes some of its own.
    fn wait_for(&mut self, text: &str) {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(
                self.output.read_line(&mut line).unwrap(),
                0,
                "`{text}` never came"
            );
            if line.trim_end().ends_with(text) {
                return;
            }
        }
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub fn succeed(mut self) {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success(), "{rest}");
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Returns how long the process really ran: longer than `time`, on a busy machine. What it has
    /// done by then takes no longer than that.
    fn kill_after(self, time: Duration) -> Duration {
        let started = Instant::now();
        // Sleep: the kill may come at any moment.
        std::thread::sleep(time);
        self.kill();
        started.elapsed()
    }
}

pub fn assert_clean(store: &TestStore) {
    let report = store.fsck(false).unwrap();
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    assert_eq!(report.strangers, [] as [&Path; 0]);
}

#[test]
fn killed_at_any_moment_a_conversion_leaves_a_sound_store() {
    // A kill loses no written bytes, so a store in memory is sufficient.
    let store = fast_store();
    let diff_id = prepare(&store);
    let started = Instant::now();
    Process::start("convert", &store, &diff_id).succeed();
    let mut whole = started.elapsed();

    // A different moment each time, by the golden ratio: spread evenly, never the same.
    let mut moment = 0.0f64;
    let mut done = 0;
    let kills = kills(100);
    for _ in 0..kills {
        store.prune(&PruneOptions::default()).unwrap();
        assert!(store.layer(&diff_id).unwrap().is_none());
        moment = (moment + 0.618_033_988_75).fract();
        let process = Process::start("convert", &store, &diff_id);
        let lasted = process.kill_after(whole.mul_f64(moment));

        assert_clean(&store);
        // The next process that opens the store removes the leftovers.
        let reopened = Store::open(store.root()).unwrap();
        assert_eq!(
            std::fs::read_dir(store.root().join("tmp")).unwrap().count(),
            0
        );
        if reopened.layer(&diff_id).unwrap().is_some() {
            done += 1;
            whole = whole.min(lasted);
        }
        Process::start("convert", &store, &diff_id).succeed();
        assert_clean(&store);
        assert!(store.layer(&diff_id).unwrap().is_some());
    }
    println!("kills: {kills} of convert, {done} of them when it was done");
    assert!(done < kills, "no conversion was killed in time");
}

/// Kills an action at many moments, and returns in how many cases `is_done` was true then. Afterwards the image has its
/// bytes, whether it is packed or not.
fn killed_often(action: &str, before: &dyn Fn(&Store), is_done: &dyn Fn(&Store) -> bool) -> usize {
    let store = fast_store();
    let image = publish(&store, &[archive()], "image");
    let mut bytes = std::fs::read(&image.layers[0].path).unwrap();
    bytes.truncate(image.layers[0].image_size() as usize);
    let read = |store: &Store| {
        let image = store.image("image").unwrap();
        let layer = store.open_layer(&image.layers[0]).unwrap();
        let mut bytes = vec![0; image.layers[0].image_size() as usize];
        layer.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    };
    before(&store);
    let started = Instant::now();
    Process::start(action, &store, &image.layers[0].diff_id).succeed();
    let mut whole = started.elapsed();
    let (mut moment, mut done, kills) = (0.0f64, 0, kills(40));
    for _ in 0..kills {
        before(&store);
        moment = (moment + 0.618_033_988_75).fract();
        let process = Process::start(action, &store, &image.layers[0].diff_id);
        let lasted = process.kill_after(whole.mul_f64(moment));
        assert_clean(&store);
        assert!(read(&store) == bytes);
        if is_done(&store) {
            done += 1;
            whole = whole.min(lasted);
        }
        store.prune(&PruneOptions::default()).unwrap();
        assert_clean(&store);
        assert!(read(&store) == bytes);
    }
    before(&store);
    Process::start(action, &store, &image.layers[0].diff_id).succeed();
    assert!(is_done(&store));
    println!("kills: {kills} of {action}, {done} of them when it was done");
    done
}

#[test]
fn killed_at_any_moment_packing_leaves_a_layer_whole_or_packed() {
    let image = |store: &Store| store.image("image").unwrap();
    let is_packed = |store: &Store| store.is_packed(&image(store).layers[0]);
    let unpack = |store: &Store| {
        store.unpack(&image(store), &Silent).unwrap();
        let list = image(store).layers[0].path.with_extension("chunks");
        let _ = std::fs::remove_file(list);
        store.prune(&PruneOptions::default()).unwrap();
    };
    let done = killed_often("pack", &unpack, &is_packed);
    assert!(done < kills(40), "it was never killed in time");
}

#[test]
fn killed_at_any_moment_unpacking_leaves_a_layer_whole_or_packed() {
    let all = PackChoice::UnusedFor(Duration::ZERO);
    let pack = |store: &Store| drop(store.pack(&all, Patience::Wait, &Silent).unwrap());
    let is_whole = |store: &Store| !store.is_packed(&store.image("image").unwrap().layers[0]);
    let done = killed_often("unpack", &pack, &is_whole);
    assert!(done < kills(40), "it was never killed in time");
}

/// Returns the path of the disk that children pack.
fn disk_of(store: &Store) -> PathBuf {
    store.root().join("volumes/data/disk.ext4")
}

/// Kills the packing or unpacking of a disk at many moments. Each leaves its bytes, and no litter.
fn disk_killed_often(action: &str, is_packed_before: bool) {
    let store = fast_store();
    let parts: Vec<_> = (0..40).map(|seed| files::noise(seed, 100_000)).collect();
    let parts: Vec<_> = (0..)
        .step_by(300)
        .zip(parts.iter().map(Vec::as_slice))
        .collect();
    let path = files::disk(&store, "data", &parts);
    let bytes = std::fs::read(&path).unwrap();
    let nothing = Digest::of(b"");
    let before = || {
        if is_packed_before && !is_packed_file(&path) {
            files::pack(&mut files::packing(&store), &path);
        } else if !is_packed_before {
            store.open_file(&path).unwrap();
            // Also a list that a killed process has left, and then its chunks.
            store.prune(&PruneOptions::default()).unwrap();
        }
    };
    before();
    let started = Instant::now();
    Process::start(action, &store, &nothing).succeed();
    let mut whole = started.elapsed();
    let (mut moment, mut done, kills) = (0.0f64, 0, kills(40));
    for _ in 0..kills {
        before();
        moment = (moment + 0.618_033_988_75).fract();
        let process = Process::start(action, &store, &nothing);
        let lasted = process.kill_after(whole.mul_f64(moment));
        assert_clean(&store);
        if is_packed_file(&path) != is_packed_before {
            done += 1;
            whole = whole.min(lasted);
        }
        store.prune(&PruneOptions::default()).unwrap();
        let reopened = Store::open(store.root()).unwrap();
        assert_eq!(
            std::fs::read_dir(store.root().join("tmp")).unwrap().count(),
            0
        );
        assert_clean(&store);
        let mut found = Vec::new();
        let mut file = reopened.open_file(&path).unwrap();
        file.read_to_end(&mut found).unwrap();
        assert!(found == bytes, "other bytes");
    }
    println!("kills: {kills} of {action}, {done} of them when it was done");
    assert!(done < kills, "it was never killed in time");
    store.prune(&PruneOptions::default()).unwrap();
    assert_eq!(store.usage().unwrap().packs_size, 0);
}

#[test]
fn killed_at_any_moment_packing_leaves_a_disk_whole_or_packed() {
    disk_killed_often("pack-file", false);
}

#[test]
fn killed_at_any_moment_unpacking_leaves_a_disk_whole_or_packed() {
    disk_killed_often("unpack-file", true);
}

#[test]
fn processes_that_pack_and_prune_at_once_wait_for_each_other_and_no_longer() {
    let store = fast_store();
    let image = publish(&store, &[archive()], "image");
    let bytes = std::fs::read(&image.layers[0].path).unwrap();
    for _ in 0..5 {
        let actions = ["pack", "prune", "pack", "unpack", "pack", "prune"];
        let start = |action| Process::start(action, &store, &image.layers[0].diff_id);
        let all: Vec<_> = actions.into_iter().map(start).collect();
        all.into_iter().for_each(Process::succeed);
        assert_clean(&store);
    }
    store
        .unpack(&store.image("image").unwrap(), &Silent)
        .unwrap();
    assert_eq!(std::fs::read(&image.layers[0].path).unwrap(), bytes);
}

#[test]
fn two_processes_make_one_layer_once() {
    let store = store();
    let diff_id = prepare(&store);
    let mut first = Process::start("claim", &store, &diff_id);
    first.wait_for("missing");
    // The second process waits for the first, as all the others here do.
    let others: Vec<_> = (0..3)
        .map(|_| Process::start("convert", &store, &diff_id))
        .collect();
    first.kill();
    others.into_iter().for_each(Process::succeed);
    assert_clean(&store);
    let mut last = Process::start("claim", &store, &diff_id);
    last.wait_for("present");
    last.succeed();
}

#[test]
fn threads_of_one_process_make_one_layer_once() {
    let store = store();
    let archive = archive();
    let honest = expect(&archive, &archive);
    let layers: Vec<_> = std::thread::scope(|scope| {
        let convert = || convert_layer(&store, &archive[..], &honest, &Limits::default());
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(convert)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap().unwrap())
            .collect()
    });
    assert!(layers.windows(2).all(|pair| pair[0] == pair[1]));
    assert_clean(&store);
}

#[test]
fn prune_waits_for_processes_that_use_the_store() {
    let store = store();
    let archive = archive();
    let shared = store.shared().unwrap();
    let honest = expect(&archive, &archive);
    let diff_id = honest.diff_id;
    let layer = convert_layer(&store, &archive[..], &honest, &Limits::default()).unwrap();
    let prune = Process::start("prune", &store, &diff_id);
    // A prune is about to run, and the layer has no image yet: only the lock keeps it.
    let mut another = Process::start("claim", &store, &diff_id);
    another.wait_for("present");
    another.succeed();
    assert!(layer.path.exists());
    drop(shared);
    prune.succeed();
    assert!(!layer.path.exists());
    assert_clean(&store);
}

#[test]
fn files_of_a_running_import_are_kept() {
    let store = store();
    let diff_id = prepare(&store);
    let mut claim = Process::start("claim", &store, &diff_id);
    claim.wait_for("missing");
    // An import in this process, half done: its source stops to inspect the store.
    struct LookingAround<'a>(&'a [u8], &'a Store);
    impl Read for LookingAround<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let tmp = self.1.root().join("tmp");
            let before = std::fs::read_dir(&tmp)?.count();
            Store::open(self.1.root()).map_err(io::Error::other)?;
            assert!(before > 0 && std::fs::read_dir(&tmp)?.count() == before);
            self.0.read(buffer)
        }
    }
    let archive = Archive::new().file("f", "x").finish();
    let source = LookingAround(&archive, &store);
    convert_layer(
        &store,
        source,
        &expect(&archive, &archive),
        &Limits::default(),
    )
    .unwrap();
    claim.kill();
    assert_clean(&store);
}
