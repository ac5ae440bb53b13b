//! A pull that was killed continues from the bytes on disk, in another process.

use std::env;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use micabox_image::Store;
use micabox_image::store::PruneOptions;
use micabox_testing::{DockerRegistry, wait_until};

use crate::image::{TestImage, TestLayer};
use crate::killed::pull;
use crate::layer;
use crate::ranges::{self, RANGE};
use crate::real::layout;
use crate::server::{End, Registry, Request};
use crate::{Puller, assert_has};

const MIB: usize = 1 << 20;
const STORE: &str = "TEST_KEPT_STORE";
const REFERENCE: &str = "TEST_KEPT_REFERENCE";

/// An image whose one layer is worth keeping.
fn image() -> TestImage {
    TestImage::new(vec![TestLayer::noise(5, 12 * MIB)])
}

/// Not a test: the other tests run this in a separate process.
#[test]
fn a_pull_in_another_process() {
    if let (Some(root), Ok(reference)) = (env::var_os(STORE), env::var(REFERENCE)) {
        pull(&Store::open(&PathBuf::from(root)).unwrap(), &reference);
    }
}

/// Pulls in a separate process, and kills it when it has `bytes` bytes of the blob.
fn kill_at(root: &Path, reference: &str, bytes: usize) -> PathBuf {
    let mut process: Child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "kept::a_pull_in_another_process"])
        .env(STORE, root)
        .env(REFERENCE, reference)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let length = |path: &PathBuf| fs::metadata(path).map_or(0, |file| file.len());
    let mut kept = None;
    wait_until("enough is kept", || {
        assert!(process.try_wait().unwrap().is_none(), "it ended by itself");
        kept = partial(root).filter(|path| length(path) >= bytes as u64);
        kept.is_some()
    });
    process.kill().unwrap();
    process.wait().unwrap();
    kept.unwrap()
}

/// Returns the kept start of a blob in the store.
fn partial(root: &Path) -> Option<PathBuf> {
    let files = fs::read_dir(root.join("tmp")).ok()?.flatten();
    let mut paths = files.map(|file| file.path());
    paths.find(|path| {
        path.extension()
            .is_some_and(|extension| extension == "blob")
    })
}

/// Returns a registry that goes silent in the middle of the first response, and a store in which a
/// pull that got that far was killed.
fn killed(image: &TestImage) -> (Registry, Puller, PathBuf) {
    let registry = Registry::with(image);
    registry.blob_fault(image, 1, |_, reply| reply.cut(9 * MIB, End::Stall));
    let puller = Puller::new();
    let reference = registry.reference("x:1").to_string();
    let kept = kill_at(puller.store.root(), &reference, 6 * MIB);
    (registry, puller, kept)
}

#[test]
fn a_killed_pull_asks_for_the_rest_only() {
    let image = image();
    let (registry, puller, kept) = killed(&image);
    let length = fs::metadata(&kept).unwrap().len() as usize;
    puller.assert_has(&puller.pull(&registry.reference("x:1")), &image);
    let ranges: Vec<_> = registry
        .layer_requests(&image)
        .iter()
        .map(Request::range_start)
        .collect();
    assert_eq!(ranges, [None, Some(length)]);
    assert!(!kept.exists());
    // The killed pull's other files are removed when the store is opened.
    let report = Store::open(puller.store.root())
        .unwrap()
        .fsck(false)
        .unwrap();
    assert!(report.is_clean() && report.leftovers == 0, "{report:?}");
}

#[test]
fn a_pull_that_was_killed_amid_ranges_asks_for_the_rest_only() {
    let image = ranges::image();
    let registry = Registry::with(&image);
    // The third of five stops, while later ones come.
    ranges::spoil(&registry, &image, 2 * RANGE, 1, |range, blob| {
        ranges::part(&range, blob).cut(MIB, End::Stall)
    });
    let puller = Puller::new();
    let name = registry.reference("x:1");
    let enough = 2 * RANGE + MIB / 2;
    let kept = kill_at(puller.store.root(), &name.to_string(), enough);
    let length = fs::metadata(&kept).unwrap().len() as usize;
    let before = registry.layer_requests(&image).len();
    assert!(before > 1, "one connection");
    puller.assert_has(&puller.pull(&name), &image);
    let requests = registry.layer_requests(&image);
    let asked: Vec<_> = requests[before..]
        .iter()
        .map(Request::range_start)
        .collect();
    assert_eq!(asked[0], Some(length));
    assert!(
        asked.iter().all(|start| *start >= Some(length)),
        "{asked:?}"
    );
    assert!(!kept.exists());
}

#[test]
fn a_registry_without_ranges_sends_all_of_it_again() {
    let image = image();
    let (registry, puller, kept) = killed(&image);
    registry.ignore_ranges();
    puller.assert_has(&puller.pull(&registry.reference("x:1")), &image);
    assert!(!kept.exists());
}

#[test]
fn kept_bytes_that_are_damaged_are_fetched_again() {
    let image = image();
    for at in [0, 5 * MIB as u64] {
        let (registry, puller, kept) = killed(&image);
        let file = fs::File::options().write(true).open(&kept).unwrap();
        file.write_all_at(b"damaged", at).unwrap();
        let pulled = puller.pull(&registry.reference("x:1"));
        assert_has(&puller.store, &pulled, &image);
        let requests = registry.layer_requests(&image);
        assert_eq!(requests.last().unwrap().range_start(), None);
        assert!(!kept.exists());
    }
}

#[test]
fn prune_removes_what_was_kept() {
    let image = image();
    let (_registry, puller, kept) = killed(&image);
    let usage = puller.store.usage().unwrap();
    assert!(usage.temporary_size >= 6 << 20, "{usage:?}");
    let dry = PruneOptions {
        dry_run: true,
        ..PruneOptions::default()
    };
    assert!(puller.store.prune(&dry).unwrap().size >= 6 << 20);
    assert!(kept.exists());
    assert!(
        puller
            .store
            .prune(&PruneOptions::default())
            .unwrap()
            .leftovers
            >= 1
    );
    assert!(!kept.exists());
}

/// What comes back through a forwarded port.
struct Forwarded {
    /// Bytes so far.
    count: AtomicU64,
    /// Holds back what is beyond this count.
    most: AtomicU64,
}

/// Forwards connections to `to`. What it returns is held by the thread that accepts them, and by
/// one thread for each connection.
fn counting(to: String, most: u64) -> (String, Arc<Forwarded>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let forwarded = Arc::new(Forwarded {
        count: AtomicU64::new(0),
        most: AtomicU64::new(most),
    });
    let all = Arc::clone(&forwarded);
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let forwarded = Arc::clone(&all);
            let server = TcpStream::connect(&to).unwrap();
            let (mut from_client, mut to_server) =
                (client.try_clone().unwrap(), server.try_clone().unwrap());
            thread::spawn(move || {
                let _ = io::copy(&mut from_client, &mut to_server);
                let _ = to_server.shutdown(Shutdown::Both);
            });
            thread::spawn(move || {
                let (mut server, mut client) = (server, client);
                let mut piece = vec![0; 64 << 10];
                while let Ok(length @ 1..) = server.read(&mut piece) {
                    // Counted first: who has the bytes may ask for the count.
                    let length = length as u64;
                    let count = forwarded.count.fetch_add(length, Ordering::Relaxed) + length;
                    let most = || forwarded.most.load(Ordering::Relaxed);
                    wait_until("more may pass", || count <= most());
                    if client.write_all(&piece[..length as usize]).is_err() {
                        break;
                    }
                }
                let _ = client.shutdown(Shutdown::Both);
            });
        }
    });
    (address, forwarded)
}

/// Debian's docker-registry and a pull that is killed in the middle of a blob.
#[test]
fn a_real_registry_serves_only_what_is_missing() {
    let directory = tempfile::tempdir().unwrap();
    let registry = DockerRegistry::start(directory.path(), "");
    let image = image();
    let size = image.layers[0].blob.len() as u64;
    let source = directory.path().join("layout");
    layout(&source, &[image.entry(None)], &[&image]);
    registry.push(&source, "app:1", &["--dest-tls-verify=false"]);

    // Less than the blob: the pull is still running when it has enough.
    let (address, served) = counting(registry.host().to_owned(), 10 * MIB as u64);
    let reference = format!("{address}/app:1");
    let store = layer::store();
    let kept = kill_at(store.root(), &reference, 7 * MIB);
    let length = fs::metadata(&kept).unwrap().len();
    served.most.store(u64::MAX, Ordering::Relaxed);
    // Connections are accepted in their order: after one of our own, none of the killed pull's is to come.
    let mut own = TcpStream::connect(&address).unwrap();
    own.write_all(b"GET /v2/ HTTP/1.0\r\n\r\n").unwrap();
    own.read_to_end(&mut Vec::new()).unwrap();
    drop(own);
    let connections = || Arc::strong_count(&served) - 2;
    wait_until("the killed pull's connections end", || connections() == 0);
    assert!(served.count.swap(0, Ordering::Relaxed) >= length);
    assert_has(&store, &pull(&store, &reference), &image);
    let again = served.count.load(Ordering::Relaxed);
    // The rest of the blob, the documents and headers.
    assert!(
        (size - length..size - length + 20_000).contains(&again),
        "{again} bytes were served of {size}, {length} were kept"
    );
    assert!(!kept.exists());
}
