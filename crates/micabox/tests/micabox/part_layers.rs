//! A layer of which only a part is here, as machines have it: a disk that asks for what it reads, and memory that is filled
//! when it is missed. Its registry is a real one, behind a proxy that stalls and refuses.

use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use micabox::image::progress::Silent;
use micabox::{Image, Store};
use micabox_holders::Readers;
use micabox_image::convert::Place;
use micabox_image::{LoadOptions, Reference};
use micabox_testing::image::{config, one_file, write_archive};
use micabox_testing::{Answers, DockerRegistry, Proxy, kills, wait_until};
use micabox_transfer::{PullOptions, PushOptions, Settings, pull_blocking, push_blocking};
use micabox_vmm::kvm::parts::alone::{Disk, Mapped};
use micabox_vmm::{MachineFile, PartServers};
use tempfile::TempDir;

use crate::servers::{kill_servers, servers};

const PIECE: usize = 64 << 10;
const SERVER: &[u8] = b"mica-layers";

/// A store with an image of whose layer only the metadata is here.
struct Fixture {
    proxy: Proxy,
    _registry: DockerRegistry,
    store: Arc<Store>,
    image: Image,
    /// The layer's file when it is whole.
    whole: Vec<u8>,
    _directory: TempDir,
}

/// Connects to the servers of a store's layers, as an owner does.
#[derive(Debug)]
struct Servers(Arc<Store>);

impl PartServers for Servers {
    fn connect(&self, server: &str) -> io::Result<UnixStream> {
        micabox_holders::connect(&self.0, server).map_err(io::Error::other)
    }
}

/// Bytes that nothing compresses, text and zeros.
fn contents(size: usize) -> Vec<u8> {
    let mut state = 5_u64;
    let mut bytes = vec![0; size];
    for (number, block) in bytes.chunks_mut(4096).enumerate() {
        match number / 24 % 5 {
            0 => {}
            1 => block.fill(b'a' + (number % 26) as u8),
            _ => {
                for word in block.chunks_exact_mut(8) {
                    state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                    let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                    word.copy_from_slice(&(mixed ^ mixed >> 27).to_le_bytes());
                }
            }
        }
    }
    bytes
}

impl Fixture {
    fn new(size: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let registry = DockerRegistry::start(directory.path(), "");
        let proxy = Proxy::start(registry.host());
        let archive = directory.path().join("box.tar");
        write_archive(&archive, &[one_file("data", &contents(size))], &config());
        let origin = Store::open(&directory.path().join("origin")).unwrap();
        let options = LoadOptions {
            platform: None,
            settings: Arc::new(micabox_image::Settings {
                conversion: Place::Here,
                ..micabox_image::Settings::default()
            }),
        };
        micabox_image::load(&origin, &archive, None, &options, &Silent).unwrap();
        let whole = fs::read(&origin.image("box").unwrap().layers[0].path).unwrap();
        let reference: Reference = format!("{}/box:1", proxy.address()).parse().unwrap();
        let settings = Arc::new(Settings::default());
        let mut options = PushOptions::new(Arc::clone(&settings));
        options.erofs = true;
        push_blocking(&origin, "box", Some(&reference), &options, Arc::new(Silent)).unwrap();
        let store = Arc::new(Store::open(&directory.path().join("store")).unwrap());
        let mut options = PullOptions::new(settings);
        options.lazy = true;
        let image = pull_blocking(&store, &reference, &options, Arc::new(Silent)).unwrap();
        assert!(image.is_lazy());
        Self {
            proxy,
            _registry: registry,
            store,
            image,
            whole,
            _directory: directory,
        }
    }

    fn servers(&self) -> Arc<dyn PartServers> {
        Arc::new(Servers(Arc::clone(&self.store)))
    }

    /// Opens the layer as a start does.
    fn open(&self) -> MachineFile {
        let files = micabox_holders::open(&self.image, Readers::OfParts).unwrap();
        let layer = files.layers.into_iter().next().unwrap().file;
        assert!(layer.part().is_some());
        layer
    }

    fn disk(&self) -> Disk {
        Disk::new(self.servers(), &self.open()).unwrap()
    }

    fn mapped(&self, layer: &MachineFile) -> Mapped {
        Mapped::new(self.servers(), layer).unwrap()
    }

    fn kill_servers(&self) {
        kill_servers(SERVER, self.store.root());
    }

    fn check_disk(&self, disk: &Disk, offset: usize, length: usize) -> io::Result<()> {
        let read = disk.read(offset as u64..(offset + length) as u64)?;
        assert!(read == self.whole[offset..offset + length], "{offset}");
        Ok(())
    }

    fn check_memory(&self, memory: &Mapped, offset: usize, length: usize) {
        let mut read = vec![0x77; length];
        memory.read(offset, &mut read);
        assert!(read == self.whole[offset..offset + length], "{offset}");
    }

    /// Returns the reasons that were noted.
    fn noted(&self) -> String {
        let events = fs::read_to_string(self.store.root().join("events/log"));
        let events = events.unwrap_or_default();
        let errors = events.lines().filter(|line| line.contains("read_error"));
        errors.collect::<Vec<_>>().join("\n")
    }

    fn wait_until_unused(&self) {
        wait_until("the server ends", || {
            servers(SERVER, self.store.root()).is_empty()
        });
        let sandboxes = self.store.root().join("sandboxes");
        let left = || -> Vec<PathBuf> {
            let all = fs::read_dir(&sandboxes).unwrap();
            let paths = all.map(|entry| entry.unwrap().path());
            let is_held = |path: &PathBuf| path.to_str().unwrap().contains("/lower-");
            paths.filter(is_held).collect()
        };
        wait_until("nothing is held", || left().is_empty());
    }
}

/// A number for each call, the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        let step = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = step.wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    fn order(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<_> = (0..count).collect();
        (1..count).for_each(|at| order.swap(at, self.below(at + 1)));
        order
    }
}

/// Each pass begins with a server that has nothing, so that each piece is a fault; `MICABOX_KILLS=150` makes 10,000.
#[test]
#[ignore = "needs root: userfaultfd"]
fn killed_at_random_a_server_leaves_no_wrong_byte_and_no_page_of_zeros_in_memory() {
    let fixture = Fixture::new(32 << 20);
    let pieces = fixture.whole.len() / PIECE;
    let wanted = kills(6);
    let passes = (wanted * 67).div_ceil(pieces);
    let layer = fixture.open();
    let mut random = Random(7);
    let (mut killed, mut faults) = (0, 0);
    for _ in 0..passes {
        fixture.kill_servers();
        let memory = fixture.mapped(&layer);
        for piece in random.order(pieces) {
            if random.below(67) == 0 {
                thread::scope(|scope| {
                    let before = random.below(2) == 0;
                    // Some die while the fault waits for them.
                    let kill = scope.spawn(|| fixture.kill_servers());
                    if before {
                        kill.join().unwrap();
                    }
                    fixture.check_memory(&memory, piece * PIECE, PIECE);
                });
                killed += 1;
            } else {
                fixture.check_memory(&memory, piece * PIECE, PIECE);
            }
            faults += 1;
        }
    }
    println!("kills: {killed} of memory, 0 of them when it was done");
    println!(
        "faults: {faults}, and the server was killed {killed} times; no wrong byte, no page of zeros"
    );
    assert!(
        killed > passes && faults >= wanted * 67,
        "{killed} {faults}"
    );
    assert_eq!(fixture.noted(), "");
}

#[test]
#[ignore = "needs root: processes of holders"]
fn killed_often_a_server_leaves_no_wrong_byte_on_a_disk() {
    let fixture = Fixture::new(24 << 20);
    let disk = fixture.disk();
    let mut random = Random(11);
    let most = fixture.whole.len();
    let mut killed = 0;
    while killed < kills(6) {
        if random.below(20) == 0 {
            fixture.kill_servers();
            killed += 1;
        }
        let offset = random.below(most / 512) * 512;
        let length = (1 + random.below(512)) * 512;
        let length = length.min(most - offset);
        fixture.check_disk(&disk, offset, length).unwrap();
    }
    println!("kills: {killed} of disk, 0 of them when it was done");
    for offset in (0..most).step_by(1 << 20) {
        fixture.check_disk(&disk, offset, 1 << 20).unwrap();
    }
    drop(disk);
    assert_eq!(fixture.noted(), "");
    fixture.wait_until_unused();
    let image = fixture
        .store
        .image_by_digest(&fixture.image.manifest_digest);
    assert!(!image.unwrap().is_lazy());
}

#[test]
#[ignore = "needs root: userfaultfd"]
fn what_its_registry_keeps_back_is_waited_for_and_what_it_refuses_is_an_error_with_a_reason() {
    let fixture = Fixture::new(24 << 20);
    let last = fixture.whole.len() / 2;
    fixture.proxy.set(Answers::Hold);
    let layer = fixture.open();
    let (disk, memory) = (fixture.disk(), fixture.mapped(&layer));
    thread::scope(|scope| {
        let disk = scope.spawn(|| fixture.check_disk(&disk, 8 << 20, 9000));
        let memory = scope.spawn(|| fixture.check_memory(&memory, 16 << 20, 9000));
        wait_until("the registry is asked", || fixture.proxy.held() > 1);
        assert!(!disk.is_finished() && !memory.is_finished());
        fixture.proxy.set(Answers::Pass);
        disk.join().unwrap().unwrap();
        memory.join().unwrap();
    });
    fixture.proxy.set(Answers::Refuse);
    fixture.kill_servers();
    // What is in its memory stays.
    fixture.check_memory(&memory, 16 << 20, 9000);
    let error = fixture.check_disk(&disk, last, PIECE).unwrap_err();
    assert!(
        error.to_string().contains(fixture.proxy.address()),
        "{error}"
    );
    assert!(fixture.noted().contains(fixture.proxy.address()));
    // A processor would wait: its machine ends with the reason.
    let (memory, whole) = (Arc::new(memory), fixture.whole.clone());
    let reader = Arc::clone(&memory);
    let read = thread::spawn(move || {
        let mut read = vec![0x77; PIECE];
        reader.read(last, &mut read);
        assert!(read == whole[last..last + PIECE]);
    });
    let failure = memory.failure().unwrap();
    assert!(failure.contains("can't be read"), "{failure}");
    assert!(failure.contains(fixture.proxy.address()), "{failure}");
    assert!(!read.is_finished());
    // Once the registry is back, so is the rest, for those who ask again.
    fixture.proxy.set(Answers::Pass);
    fixture.check_disk(&disk, last, PIECE).unwrap();
}
