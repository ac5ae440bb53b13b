//! A snapshot's memory of which only a part is here, as the process serves it that machines have it from. Its registry is
//! a real one, behind a proxy that stalls and refuses.

use std::env;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use micabox::image::progress::Silent;
use micabox::{Error, Sandboxes, Store};
use micabox_disks::snapshot::open_unpacked;
use micabox_image::Reference;
use micabox_lazy::Order;
use micabox_spec::Spec;
use micabox_state::{SavedMachine, Stamp, Written};
use micabox_testing::{Answers, DockerRegistry, Proxy, kills, wait_until};
use micabox_transfer::snapshot::{
    Cargo, Part, Source, SparseFile, Target, offer_blocking, push_snapshot_blocking,
};
use micabox_transfer::{PullOptions, PushOptions, Settings};
use rustix::fs::SeekFrom;
use rustix::process::Pid;
use serde_json::json;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::servers::{kill_servers, servers};

const PAGE: usize = 4096;
const SIZE: usize = 40 << 20;
const NAME: &str = "work-1";
const SERVER: &[u8] = b"mica-memory";

/// A store with a snapshot of whose memory nothing is here but the map.
struct Fixture {
    directory: TempDir,
    _registry: DockerRegistry,
    proxy: Proxy,
    store: Store,
    memory: Vec<u8>,
    machine: SavedMachine,
}

/// Makes a memory: bytes that nothing compresses, text, and holes.
fn memory() -> Vec<u8> {
    let mut state = 11_u64;
    let mut memory = vec![0; SIZE];
    for (number, page) in memory.chunks_mut(PAGE).enumerate() {
        match number / 32 % 4 {
            0 => {}
            1 => page.fill(number as u8),
            _ => {
                for word in page.chunks_exact_mut(8) {
                    state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                    let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                    word.copy_from_slice(&(mixed ^ mixed >> 27).to_le_bytes());
                }
            }
        }
    }
    memory
}

/// Returns the digest that a snapshot's record has of a memory.
fn digest(memory: &[u8]) -> String {
    let mut hash = Sha256::new();
    hash.update((memory.len() as u64).to_le_bytes());
    for (number, page) in memory.chunks(PAGE).enumerate() {
        if page.iter().any(|byte| *byte != 0) {
            hash.update(((number * PAGE) as u64).to_le_bytes());
            hash.update(page);
        }
    }
    hash.finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

impl Fixture {
    fn new() -> Self {
        Self::with_digest(|digest| digest)
    }

    /// Has a registry with a memory, and a snapshot whose config says that it has this digest.
    fn with_digest(change: impl FnOnce(String) -> String) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let registry = DockerRegistry::start(directory.path(), "");
        let proxy = Proxy::start(registry.host());
        let memory = memory();
        let origin = Store::open(&directory.path().join("origin")).unwrap();
        let path = directory.path().join("memory");
        fs::write(&path, &memory).unwrap();
        let settings = Arc::new(Settings::default());
        let reference: Reference = format!("{}/work:1", proxy.address()).parse().unwrap();
        let source = Source {
            store: &origin,
            name: "origin",
            others: &[],
        };
        let cargo = Cargo {
            config: b"{}".to_vec(),
            parts: vec![SparseFile {
                part: Part::Memory,
                file: File::open(&path).unwrap(),
                path,
            }],
            machine: None,
        };
        let options = PushOptions::new(Arc::clone(&settings));
        let pushed =
            push_snapshot_blocking(&source, cargo, &reference, &options, Arc::new(Silent)).unwrap();

        let store = Store::open(&directory.path().join("store")).unwrap();
        let sandboxes = Sandboxes::open(&store).unwrap();
        assert!(sandboxes.snapshots().unwrap().is_empty());
        let snapshot = store.root().join(format!("sandboxes/snapshot-{NAME}"));
        fs::create_dir(&snapshot).unwrap();
        let offer =
            offer_blocking(&reference, &PullOptions::new(settings), Arc::new(Silent)).unwrap();
        fs::write(snapshot.join("memory.manifest"), offer.manifest()).unwrap();
        let part = snapshot.join("memory.part");
        let target = Target {
            file: SparseFile {
                part: Part::Memory,
                file: File::create(&part).unwrap(),
                path: part.clone(),
            },
            size: SIZE as u64,
            map: snapshot.join("memory.map"),
            is_lazy: true,
        };
        offer.fetch(&store, vec![target], Vec::new()).unwrap();
        fs::write(snapshot.join("machine"), b"a machine's state").unwrap();
        let mut machine = SavedMachine::new(Spec::default(), None, None);
        machine.set_written(Written {
            stamp: Stamp::of(&part).unwrap(),
            sha256: change(digest(&memory)),
        });
        let record = json!({
            "name": NAME,
            "image": {"reference": "docker.io/library/box:latest", "digest": format!("sha256:{}", "1".repeat(64))},
            "sandbox": "it",
            "created": 1_700_000_000,
            "size": 0,
            "memory": machine,
            "places": [{"reference": reference.to_string(), "manifest": pushed.manifest_digest.to_string(),
                "pulled": true}],
        });
        fs::write(snapshot.join("snapshot.json"), record.to_string()).unwrap();
        Self {
            directory,
            _registry: registry,
            proxy,
            store,
            memory,
            machine,
        }
    }

    fn snapshot(&self) -> PathBuf {
        self.store.root().join(format!("sandboxes/snapshot-{NAME}"))
    }

    /// Opens the memory as a start does.
    fn open(&self) -> Result<Arc<File>, Error> {
        // The record, which the server changes once the memory is whole.
        let record = fs::read(self.snapshot().join("snapshot.json"));
        let machine = record.ok().and_then(|record| {
            let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
            serde_json::from_value(record["memory"].clone()).ok()
        });
        let machine = machine.unwrap_or_else(|| self.machine.clone());
        let opened = open_unpacked(&self.store, NAME, &self.snapshot(), &machine)?;
        Ok(opened.memory)
    }

    /// Returns the servers of this store's memory: those of other tests have other files.
    fn servers(&self) -> Vec<Pid> {
        servers(SERVER, self.store.root())
    }

    fn kill_servers(&self) {
        kill_servers(SERVER, self.store.root());
    }

    /// Returns the order that is kept.
    fn order(&self) -> Option<Order> {
        let sandboxes = Sandboxes::open(&self.store).unwrap();
        sandboxes.snapshot(NAME).unwrap().memory_order()
    }

    /// Returns the events so far.
    fn events(&self) -> String {
        fs::read_to_string(self.store.root().join("events/log")).unwrap_or_default()
    }

    fn check(&self, file: &File, offset: usize, length: usize) -> io::Result<()> {
        let mut read = vec![0x77; length];
        file.read_exact_at(&mut read, offset as u64)?;
        assert!(read == self.memory[offset..offset + length], "{offset}");
        Ok(())
    }

    fn check_all(&self, file: &File) {
        for offset in (0..SIZE).step_by(1 << 20) {
            self.check(file, offset, 1 << 20).unwrap();
        }
    }

    fn wait_until_whole(&self) {
        wait_until("the memory is whole", || {
            self.snapshot().join("memory").exists()
        });
        wait_until("the server ends", || self.servers().is_empty());
        let held = || {
            let all = fs::read_dir(self.store.root().join("sandboxes")).unwrap();
            let names = all.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.filter(|name| name.starts_with("lower-")).count()
        };
        wait_until("nothing is held", || held() == 0);
        assert!(fs::read(self.snapshot().join("memory")).unwrap() == self.memory);
        let files = ["memory.part", "memory.manifest"];
        assert!(!files.iter().any(|file| self.snapshot().join(file).exists()));
        let snapshot = Sandboxes::open(&self.store)
            .unwrap()
            .snapshot(NAME)
            .unwrap();
        assert_eq!(snapshot.memory_part(), None);
    }
}

#[test]
#[ignore = "needs root: it mounts FUSE filesystems"]
fn every_byte_of_a_memory_is_read_as_it_was_although_its_server_is_killed_at_random() {
    let fixture = Fixture::new();
    let part = Sandboxes::open(&fixture.store)
        .unwrap()
        .snapshot(NAME)
        .unwrap()
        .memory_part();
    let part = part.unwrap();
    assert_eq!(part.all, (SIZE / 4 * 3) as u64);
    assert!(part.here < 1 << 20, "{part:?}");
    let (mut state, mut kills) = (3_usize, 0);
    let mut file = fixture.open().unwrap();
    let mut offset = 0;
    while offset < SIZE {
        // It is killed before some pages, at places that have nothing to do with chunks.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        if (state >> 40) & 3 == 0 && kills < 6 {
            fixture.kill_servers();
            kills += 1;
        }
        let length = (1 << 20) - PAGE.min(offset);
        let length = length.min(SIZE - offset);
        match fixture.check(&file, offset, length) {
            Ok(()) => offset += length,
            // Never other bytes: a later start goes on with what is here.
            Err(_) => file = fixture.open().unwrap(),
        }
    }
    assert!(kills > 2, "{kills}");
    drop(file);
    drop(fixture.open().unwrap());
    fixture.wait_until_whole();
    let before = fixture.proxy.passed();
    fixture.check_all(&fixture.open().unwrap());
    assert_eq!(fixture.proxy.passed(), before);
}

#[test]
#[ignore = "needs root: it mounts FUSE filesystems"]
fn starts_share_a_server_and_where_there_is_data_is_known_without_a_registry() {
    let fixture = Fixture::new();
    fixture.proxy.set(Answers::Refuse);
    let files: Vec<_> = (0..3).map(|_| fixture.open().unwrap()).collect();
    assert_eq!(fixture.servers().len(), 1);
    let (first, length) = (32 * PAGE as u64, 96 * PAGE as u64);
    let seek = |to| rustix::fs::seek(&*files[0], to);
    assert_eq!(seek(SeekFrom::Data(0)), Ok(first));
    assert_eq!(seek(SeekFrom::Data(first + 5)), Ok(first + 5));
    assert_eq!(seek(SeekFrom::Hole(first + 5)), Ok(first + length));
    assert_eq!(seek(SeekFrom::Hole(0)), Ok(0));
    assert_eq!(
        seek(SeekFrom::Data(SIZE as u64)),
        Err(rustix::io::Errno::NXIO)
    );
    // Holes are zeros, and need no registry.
    fixture.check(&files[1], 0, 32 * PAGE).unwrap();
    fixture.proxy.set(Answers::Pass);
    for file in &files {
        fixture.check_all(file);
    }
    assert_eq!(fixture.servers().len(), 1);
    drop(files);
    fixture.wait_until_whole();
}

#[test]
#[ignore = "needs root: it mounts FUSE filesystems"]
fn a_later_server_fetches_what_an_earlier_one_has_read_before_that_is_read() {
    let fixture = Fixture::new();
    let file = fixture.open().unwrap();
    for offset in [30 << 20, 10 << 20] {
        fixture.check(&file, offset + (256 << 10), PAGE).unwrap();
    }
    let order = || fixture.order();
    wait_until("the order is kept", || order().is_some());
    // Of each half mebibyte, 24 chunks are no zeros.
    let runs: Vec<_> = order().unwrap().runs().collect();
    let places = [60 * 24 + 8, 20 * 24 + 8];
    let found = places.map(|place| runs.iter().position(|(_, run)| run.contains(&place)));
    assert!(found[0].is_some() && found[0] < found[1], "{runs:?}");
    drop(file);
    fixture.wait_until_whole();
    assert!(order().is_some());

    // The last chunks, of which nothing but an order says that they are wanted.
    let other = Fixture::new();
    let text = format!("{{\"runs\":[[0,{},8]]}}", SIZE / (512 << 10) * 24 - 8);
    fs::write(other.snapshot().join("memory.order"), text).unwrap();
    let file = other.open().unwrap();
    let part = || {
        let sandboxes = Sandboxes::open(&other.store).unwrap();
        sandboxes.snapshot(NAME).unwrap().memory_part()
    };
    wait_until("something has come", || {
        part().is_none_or(|part| part.here > 0)
    });
    other.proxy.set(Answers::Refuse);
    other.check(&file, SIZE - (128 << 10), 128 << 10).unwrap();
}

#[test]
#[ignore = "needs root: it mounts FUSE filesystems"]
fn an_order_has_what_is_read_after_a_pause_too() {
    let fixture = Fixture::new();
    let file = fixture.open().unwrap();
    let order = || fixture.order();
    fixture.check(&file, 30 << 20 | 256 << 10, PAGE).unwrap();
    wait_until("the order is kept", || order().is_some());
    let first: Vec<_> = order().unwrap().runs().collect();
    fixture.check(&file, 10 << 20 | 256 << 10, PAGE).unwrap();
    drop(file);
    wait_until("what was read last is in it", || {
        let runs: Vec<_> = order().unwrap().runs().collect();
        let later = &runs[first.len().min(runs.len())..];
        runs.starts_with(&first) && later.iter().any(|(_, run)| run.contains(&(20 * 24 + 8)))
    });
    fixture.wait_until_whole();
}

#[test]
#[ignore = "needs root: it mounts FUSE filesystems"]
fn a_read_waits_for_a_registry_that_stalls_and_fails_with_a_reason_once_it_has_gone() {
    let fixture = Fixture::new();
    fixture.proxy.set(Answers::Hold);
    let file = fixture.open().unwrap();
    thread::scope(|scope| {
        let read = scope.spawn(|| fixture.check(&file, 40 * PAGE, 5 * PAGE));
        wait_until("the registry is asked", || fixture.proxy.held() > 0);
        assert!(!read.is_finished());
        fixture.proxy.set(Answers::Pass);
        read.join().unwrap().unwrap();
    });
    fixture.proxy.set(Answers::Refuse);
    fixture.kill_servers();
    let file = fixture.open().unwrap();
    // What was read is here.
    fixture.check(&file, 40 * PAGE, 5 * PAGE).unwrap();
    let error = fixture.check(&file, SIZE - PAGE, PAGE).unwrap_err();
    assert_eq!(
        error.raw_os_error(),
        Some(rustix::io::Errno::IO.raw_os_error())
    );
    let noted = || {
        let events = fixture.events();
        let line = events.lines().find(|line| line.contains("read_error"))?;
        Some(line.to_owned())
    };
    wait_until("the reason is noted", || noted().is_some());
    let noted = noted().unwrap();
    assert!(noted.contains(r#""snapshot":"work-1""#), "{noted}");
    assert!(noted.contains(fixture.proxy.address()), "{noted}");
    // Once the registry is back, so is the rest.
    fixture.proxy.set(Answers::Pass);
    fixture.check_all(&file);
    drop(file);
    drop(fixture.open().unwrap());
    fixture.wait_until_whole();
}

/// Returns the blobs of the registry that are packs: the largest ones.
fn packs(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![directory.join("registry")];
    while let Some(path) = left.pop() {
        for entry in fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            match fs::metadata(&path).unwrap() {
                data if data.is_dir() => left.push(path),
                data if data.len() > 4 << 20 => found.push(path),
                _ => {}
            }
        }
    }
    found
}

#[test]
#[ignore = "needs root: it mounts FUSE filesystems"]
fn of_a_pack_that_its_registry_has_damaged_no_byte_is_read() {
    let fixture = Fixture::new();
    let packs = packs(fixture.directory.path());
    let [pack] = packs.as_slice() else {
        panic!("{packs:?}");
    };
    let whole = fs::read(pack).unwrap();
    let mut damaged = whole.clone();
    let end = damaged.len() - (64 << 10);
    damaged[..end].iter_mut().for_each(|byte| *byte ^= 0x5a);
    fs::write(pack, &damaged).unwrap();
    let file = fixture.open().unwrap();
    fixture.check(&file, 32 * PAGE, PAGE).unwrap_err();
    wait_until("the reason is noted", || {
        fixture
            .events()
            .contains("another checksum than its index says")
    });
    let complete = Sandboxes::open(&fixture.store)
        .unwrap()
        .complete_snapshot(NAME, &|_, _| true);
    let problem = complete.unwrap_err().to_string();
    assert!(problem.contains("another checksum"), "{problem}");
    fs::write(pack, &whole).unwrap();
    fixture.check_all(&file);
    drop(file);
    drop(fixture.open().unwrap());
    fixture.wait_until_whole();
}

#[test]
#[ignore = "needs root: it mounts FUSE filesystems"]
fn a_whole_that_is_not_what_its_config_says_is_refused_by_each_later_start() {
    let fixture = Fixture::with_digest(|_| "0".repeat(64));
    fixture.check_all(&fixture.open().unwrap());
    wait_until("the memory is whole", || {
        fixture.snapshot().join("memory").exists()
    });
    wait_until("the reason is noted", || {
        let events = fixture.events();
        events.contains("incomplete") && events.contains("and its config says 0000")
    });
    for _ in 0..2 {
        let error = fixture.open().unwrap_err();
        assert!(matches!(error, Error::DamagedSnapshot { .. }), "{error}");
    }
}

#[test]
#[ignore = "needs root: it mounts FUSE filesystems"]
fn what_runs_reads_on_after_its_snapshot_was_removed() {
    let fixture = Fixture::new();
    fixture.proxy.set(Answers::Hold);
    let file = fixture.open().unwrap();
    let sandboxes = Sandboxes::open(&fixture.store).unwrap();
    sandboxes.remove_snapshot(NAME).unwrap();
    fixture.proxy.set(Answers::Pass);
    fixture.check_all(&file);
    assert!(!fixture.snapshot().exists());
    drop(file);
    wait_until("the server ends", || {
        let entries = fs::read_dir(fixture.store.root().join("sandboxes"));
        entries.unwrap().count() == 0
    });
    assert!(sandboxes.snapshots().unwrap().is_empty());
}

#[test]
fn without_a_server_the_rest_is_fetched_first_and_a_fetch_that_is_ended_goes_on() {
    let fixture = Fixture::new();
    let sandboxes = Sandboxes::open(&fixture.store).unwrap();
    assert!(!sandboxes.complete_snapshot(NAME, &|_, _| false).unwrap());
    fixture.proxy.set(Answers::Refuse);
    let error = sandboxes.complete_snapshot(NAME, &|_, _| true).unwrap_err();
    assert!(matches!(error, Error::SnapshotIncomplete { .. }), "{error}");
    fixture.proxy.set(Answers::Pass);
    assert!(sandboxes.complete_snapshot(NAME, &|_, _| true).unwrap());
    fixture.wait_until_whole();
    assert!(sandboxes.complete_snapshot(NAME, &|_, _| true).unwrap());
    fixture.check_all(&fixture.open().unwrap());
    // What was altered since is noticed, as of any snapshot.
    let memory = File::options()
        .write(true)
        .open(fixture.snapshot().join("memory"));
    memory.unwrap().write_all_at(&[1], 100).unwrap();
    let error = fixture.open().unwrap_err();
    assert!(matches!(error, Error::DamagedSnapshot { .. }), "{error}");
}

#[test]
fn a_map_or_a_manifest_that_was_altered_here_is_named() {
    let fixture = Fixture::new();
    let sandboxes = Sandboxes::open(&fixture.store).unwrap();
    for (file, words) in [
        ("memory.map", "its map of the memory was altered here"),
        ("memory.manifest", "its manifest was altered here"),
    ] {
        let path = fixture.snapshot().join(file);
        let whole = fs::read(&path).unwrap();
        let mut bytes = whole.clone();
        let at = bytes.len() / 2;
        bytes[at] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let error = sandboxes.complete_snapshot(NAME, &|_, _| true).unwrap_err();
        assert!(error.to_string().contains(words), "{file}: {error}");
        fs::write(&path, &whole).unwrap();
    }
}

/// Where the process below finds the store.
const KILLED_STORE: &str = "TEST_MEMORY_STORE";

/// Fetches the rest of a memory in a separate process: the test below again, directed by an environment variable.
fn filling(fixture: &Fixture) -> Child {
    Command::new(env::current_exe().unwrap())
        .args([
            "--exact",
            "part_memory::a_killed_fill_of_a_memory_leaves_one_of_the_same_bytes",
        ])
        .env(KILLED_STORE, fixture.store.root())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn a_killed_fill_of_a_memory_leaves_one_of_the_same_bytes() {
    if let Some(root) = env::var_os(KILLED_STORE) {
        let store = Store::open(Path::new(&root)).unwrap();
        let sandboxes = Sandboxes::open(&store).unwrap();
        assert!(sandboxes.complete_snapshot(NAME, &|_, _| true).unwrap());
        return;
    }
    let fixture = Fixture::new();
    let (snapshot, kept) = (fixture.snapshot(), fixture.directory.path().join("kept"));
    let copy = |from: &Path, to: &Path| {
        let mut copy = Command::new("cp");
        micabox_testing::run(copy.args(["-a", "--sparse=always"]).arg(from).arg(to));
    };
    copy(&snapshot, &kept);
    let is_whole = || snapshot.join("memory").exists();
    let started = Instant::now();
    assert!(filling(&fixture).wait().unwrap().success());
    let mut lasts = started.elapsed();
    assert!(is_whole());

    // A different moment each time, by the golden ratio: spread evenly, never the same.
    let (mut moment, mut done, kills) = (0.0f64, 0, kills(20));
    for round in 0..kills {
        // From the start, or on from where it was killed.
        if is_whole() {
            assert!(
                fs::read(snapshot.join("memory")).unwrap() == fixture.memory,
                "round {round}"
            );
            fs::remove_dir_all(&snapshot).unwrap();
            copy(&kept, &snapshot);
        }
        moment = (moment + 0.618_033_988_75).fract();
        let started = Instant::now();
        let mut process = filling(&fixture);
        // Sleep: the kill may come at any moment.
        std::thread::sleep(lasts.mul_f64(moment));
        process.kill().unwrap();
        process.wait().unwrap();
        if is_whole() {
            done += 1;
            lasts = lasts.min(started.elapsed());
        } else {
            let sandboxes = Sandboxes::open(&fixture.store).unwrap();
            let part = sandboxes.snapshot(NAME).unwrap().memory_part().unwrap();
            assert!(part.here <= part.all, "round {round}: {part:?}");
        }
    }
    println!("kills: {kills} of memory, {done} of them when it was done");
    assert!(done < kills, "it was never killed in time");
    let sandboxes = Sandboxes::open(&fixture.store).unwrap();
    assert!(sandboxes.complete_snapshot(NAME, &|_, _| true).unwrap());
    fixture.wait_until_whole();
}
