//! Conversion by a worker in the jail: the same layers and errors as without, and the limits of
//! what the worker can access.

use std::fs;
use std::io::{self, Read};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use micabox_ground::lock;
use micabox_image::convert::{Error, Expect, Place, Reason, convert_layer_in};
use micabox_image::store::{Error as StoreError, Layer};
use micabox_image::{Digest, Limits, Store};
use micabox_testing::{PATIENCE, descendants, wait_until};

use crate::layer::archive::Archive;
use crate::layer::{self, TestStore, assert_no_trace, expect, expect_typed, gzip, store};

/// One test at a time: they search for their workers among this process's children.
static ONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    lock(&ONE)
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 3).unwrap()
}

/// An archive with many of the possible entries.
fn archive() -> Vec<u8> {
    let noise: Vec<u8> = (0..3_000_000u64)
        .map(|i| (i.wrapping_mul(i ^ 0x9e37) >> 7) as u8)
        .collect();
    let mut archive = Archive::new()
        .directory("./")
        .directory("d/")
        .directory("many/")
        .file("large", &noise)
        .pax(&[
            ("GNU.sparse.size", b"8388608"),
            ("GNU.sparse.map", b"4194304,5"),
        ])
        .file("sparse", "12345")
        .pax(&[
            ("SCHILY.xattr.user.a", b"value"),
            ("SCHILY.acl.access", b"?"),
        ])
        .file("attributes", "x")
        .hard_link("again", "large")
        .symlink("link", "large")
        .whiteout("d/.wh.gone");
    for i in 0..300 {
        archive = archive.file(&format!("many/{i}"), i.to_string());
    }
    archive.finish()
}

fn native(blob: &[u8], image: &[u8]) -> Expect {
    expect_typed(blob, image, "application/vnd.erofs.layer.v1")
}

/// Returns everything that is stored of a layer.
fn stored(layer: &Layer) -> [Option<Vec<u8>>; 3] {
    ["erofs", "recipe", "json"].map(|kind| fs::read(layer.path.with_extension(kind)).ok())
}

fn convert(
    place: Place,
    blob: &[u8],
    expect: &Expect,
    limits: &Limits,
) -> Result<[Option<Vec<u8>>; 3], Error> {
    let store = store();
    let converted = convert_layer_in(place, &store, blob, expect, limits);
    if converted.is_err() {
        assert_no_trace(&store);
    }
    converted.map(|layer| stored(&layer))
}

#[test]
fn layers_converted_in_jail_are_the_same_byte_for_byte() {
    let _alone = alone();
    let archive = archive();
    let image = layer::layer(&archive).reader.source().clone();
    let compressed = zstd(&image);
    let empty = Archive::new().finish();
    let cases = [
        (archive.clone(), expect(&archive, &archive)),
        (gzip(&archive), expect(&gzip(&archive), &archive)),
        (zstd(&archive), expect(&zstd(&archive), &archive)),
        (image.clone(), native(&image, &image)),
        (compressed.clone(), native(&compressed, &image)),
        (empty.clone(), expect(&empty, &empty)),
        (Vec::new(), expect(b"", b"")),
    ];
    for (number, (blob, expect)) in cases.iter().enumerate() {
        let limits = Limits::default();
        let here = convert(Place::Here, blob, expect, &limits).unwrap();
        let jailed = convert(Place::Jail, blob, expect, &limits).unwrap();
        assert!(here[0].is_some() && here[2].is_some());
        assert!(here == jailed, "case {number}");
    }
}

#[test]
fn errors_of_a_jailed_conversion_are_the_same() {
    let _alone = alone();
    let archive = archive();
    let blob = gzip(&archive);
    let honest = expect(&blob, &archive);
    let altered = |at: usize| {
        let mut blob = blob.clone();
        blob[at] ^= 1;
        blob
    };
    let claimed = |bytes: Vec<u8>| (expect(&bytes, &archive), bytes);
    let mut cases: Vec<(Expect, Vec<u8>, Limits)> = Vec::new();
    let mut add = |(expect, blob): (Expect, Vec<u8>)| cases.push((expect, blob, Limits::default()));
    // Damaged in transfer: in the middle, the header and the trailer.
    for at in [0, 20, blob.len() / 2, blob.len() - 1] {
        add((honest.clone(), altered(at)));
        // Or damaged at its origin.
        add(claimed(altered(at)));
    }
    add((honest.clone(), blob[..blob.len() - 5].to_vec()));
    add((honest.clone(), [&blob[..], b"x"].concat()));
    add(claimed(b"\xfd7zXZ\0 and so on".to_vec()));
    add(claimed(zstd(&archive)[..1000].to_vec()));
    // Another diff ID than claimed, compressed and not.
    add((expect(&blob, b"another"), blob.clone()));
    add((expect(&archive, b"another"), archive.clone()));
    add((expect(b"another", &archive), archive.clone()));
    // Invalid archives, and impossible entries.
    for bytes in [
        b"no archive".repeat(1000),
        Archive::new()
            .member(b'Q', b"queer", b"", 0o644, b"")
            .finish(),
        Archive::new().file("../out", "").finish(),
        archive[..archive.len() / 2].to_vec(),
    ] {
        add((expect(&bytes, &bytes), bytes.clone()));
        add((expect(&gzip(&bytes), &bytes), gzip(&bytes)));
    }
    add((native(b"no image", b"no image"), b"no image".to_vec()));
    let limited = [
        Limits {
            layer_size: 100_000,
            ..Limits::default()
        },
        Limits {
            entries: 10,
            ..Limits::default()
        },
        Limits {
            metadata_size: 10_000,
            ..Limits::default()
        },
        Limits {
            metadata_ratio: 1,
            metadata_ratio_from: 100,
            ..Limits::default()
        },
        Limits {
            compression_ratio: 1,
            compression_ratio_from: 1000,
            ..Limits::default()
        },
    ];
    let bomb = Archive::new().file("zeros", vec![0; 1 << 20]).finish();
    for limits in limited {
        cases.push((honest.clone(), blob.clone(), limits.clone()));
        cases.push((expect(&gzip(&bomb), &bomb), gzip(&bomb), limits));
    }
    let mut refused = 0;
    for (number, (expect, blob, limits)) in cases.iter().enumerate() {
        let text = |place| convert(place, blob, expect, limits).map_err(|error| error.to_string());
        let (here, jailed) = (text(Place::Here), text(Place::Jail));
        assert!(
            here == jailed,
            "case {number}: {:?} and {:?}",
            here.err(),
            jailed.err()
        );
        refused += u32::from(here.is_err());
    }
    assert!(refused > 25, "{refused} of {}", cases.len());
}

/// A blob of which one part is available immediately and the rest when it is released.
struct Stalling {
    start: Vec<u8>,
    at: usize,
    go: Receiver<()>,
    rest: Vec<u8>,
}

/// The first part is less than is read ahead of the worker: while the source is waited for, the
/// worker is not.
fn stalling(blob: &[u8]) -> (Stalling, Sender<()>) {
    let (let_go, go) = channel();
    let (start, rest) = blob.split_at((blob.len() / 2).min(1 << 20));
    let source = Stalling {
        start: start.to_vec(),
        at: 0,
        go,
        rest: rest.to_vec(),
    };
    (source, let_go)
}

impl Read for Stalling {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.start.len() && !self.rest.is_empty() {
            let _ = self.go.recv();
            self.start = std::mem::take(&mut self.rest);
            self.at = 0;
        }
        let count = (&self.start[self.at..]).read(buffer)?;
        self.at += count;
        Ok(count)
    }
}

/// Returns a process's status, by field.
fn field(pid: u32, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Some(line?.trim().to_owned())
}

/// Returns the descendant process with a seccomp filter: the worker, once it runs.
fn worker() -> u32 {
    let is_jailed = |pid: &u32| field(*pid, "Seccomp").as_deref() == Some("2");
    let mut found = None;
    wait_until("there is a worker", || {
        found = descendants(std::process::id()).into_iter().find(is_jailed);
        found.is_some()
    });
    found.unwrap()
}

/// Converts the archive in the jail, and calls `look` on the worker while it waits for more bytes.
fn while_it_runs(look: impl FnOnce(u32)) -> (TestStore, Result<Layer, Error>) {
    let archive = archive();
    let blob = gzip(&archive);
    let honest = expect(&blob, &archive);
    while_it_converts(&blob, &honest, &Limits::default(), look)
}

fn while_it_converts(
    blob: &[u8],
    honest: &Expect,
    limits: &Limits,
    look: impl FnOnce(u32),
) -> (TestStore, Result<Layer, Error>) {
    let (source, let_go) = stalling(blob);
    let store = store();
    let converted = thread::scope(|scope| {
        let conversion =
            scope.spawn(|| convert_layer_in(Place::Jail, &store, source, honest, limits));
        // Dropped if `look` panics, which releases the conversion.
        let let_go = let_go;
        let worker = worker();
        look(worker);
        let_go.send(()).unwrap();
        conversion.join().unwrap()
    });
    (store, converted)
}

#[test]
fn the_converter_is_in_jail_while_it_runs() {
    let _alone = alone();
    let (store, converted) = while_it_runs(|pid| {
        assert_eq!(field(pid, "NoNewPrivs").as_deref(), Some("1"));
        assert_eq!(field(pid, "CapEff").unwrap().trim_start_matches('0'), "");
        let uid = field(pid, "Uid").unwrap();
        assert!(uid.split_whitespace().all(|uid| uid != "0"), "{uid}");
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
        assert!(environment.is_empty(), "{}", environment.escape_ascii());
        // Pipes, a socket, and the two files that it writes; the request until it was read, and the
        // blob's memory until it is mapped.
        let names = || {
            let files = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
            let files = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
            let mut names: Vec<String> = files
                .filter(|file| !file.starts_with("/dev/null"))
                .filter_map(|file| Some(file.file_name()?.to_str()?.to_owned()))
                .filter(|name| !name.starts_with("pipe:"))
                .map(|name| name.split('[').next().unwrap_or_default().to_owned())
                .collect();
            names.sort_unstable();
            names
        };
        let is_memory = |name: &String| name.starts_with("memfd:");
        wait_until("its request and the blob's memory are closed", || {
            !names().iter().any(is_memory)
        });
        assert_eq!(names(), ["layer.erofs", "layer.recipe", "socket:"]);
        // The blob is in memory that only its caller may change.
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let shared: Vec<&str> = maps
            .lines()
            .filter(|line| {
                line.split(' ')
                    .nth(1)
                    .is_some_and(|flags| flags.ends_with('s'))
            })
            .collect();
        let feed = |line: &&str| line.contains(" r--s ") && line.contains("/memfd:feed ");
        assert!(shared.len() == 1 && shared.iter().all(feed), "{maps}");
    });
    converted.unwrap();
    assert!(store.fsck(false).unwrap().is_clean());
}

#[test]
fn a_killed_converter_is_a_clear_error_and_leaves_nothing() {
    let _alone = alone();
    let (store, converted) = while_it_runs(|pid| signal(pid, "-9"));
    let error = converted.unwrap_err();
    assert!(matches!(error.reason, Reason::Worker(_)), "{error}");
    let message = error.to_string();
    assert!(
        message.contains("worker process that converts it"),
        "{message}"
    );
    assert!(message.contains("killed"), "{message}");
    assert_no_trace(&store);
}

fn signal(pid: u32, signal: &str) {
    let sent = std::process::Command::new("kill")
        .args([signal, &pid.to_string()])
        .status();
    assert!(sent.unwrap().success());
}

#[test]
fn a_converter_that_stops_is_given_up() {
    let _alone = alone();
    let limits = Limits {
        idle_timeout: 1,
        ..Limits::default()
    };
    // While there is more to read than is read ahead, and when only the reply is left.
    let mut large = archive();
    large.resize(large.len() + (16 << 20), 0);
    let small = Archive::new().file("f", "x").finish();
    for archive in [large, small] {
        let honest = expect(&archive, &archive);
        let started = Instant::now();
        let (store, converted) =
            while_it_converts(&archive, &honest, &limits, |pid| signal(pid, "-STOP"));
        let error = converted.unwrap_err();
        assert!(matches!(error.reason, Reason::Worker(_)), "{error}");
        assert!(error.to_string().contains("idle-timeout"), "{error}");
        assert!(started.elapsed() < PATIENCE);
        assert_no_trace(&store);
    }
}

#[test]
fn a_converter_waits_for_a_slow_source() {
    let _alone = alone();
    let limits = Limits {
        idle_timeout: 1,
        ..Limits::default()
    };
    let archive = archive();
    let honest = expect(&archive, &archive);
    // Sleep: the source is slow, by more than the timeout.
    let pause = |_| thread::sleep(Duration::from_secs(3));
    // A busy machine may keep a worker from its work for longer than that, but not each.
    wait_until("a worker is not kept from its work", || {
        let (_store, converted) = while_it_converts(&archive, &honest, &limits, pause);
        let refusal = converted.err().map(|error| error.to_string());
        let in_time = refusal.is_none();
        assert!(
            refusal.is_none_or(|error| error.contains("idle-timeout")),
            "another failure"
        );
        in_time
    });
}

#[test]
fn a_source_that_fails_ends_the_converter() {
    let _alone = alone();
    struct Failing(Vec<u8>);
    impl Read for Failing {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            match std::mem::take(&mut self.0) {
                bytes if bytes.is_empty() => Err(io::Error::other("unplugged")),
                bytes => bytes.as_slice().read(buffer),
            }
        }
    }
    let blob = gzip(&archive());
    let store = store();
    let honest = expect(&blob, &archive());
    let source = Failing(blob[..1000].to_vec());
    let error = convert_layer_in(Place::Jail, &store, source, &honest, &Limits::default());
    let error = error.unwrap_err();
    assert!(
        error.is_transfer() && error.to_string().contains("unplugged"),
        "{error}"
    );
    assert_no_trace(&store);
}

/// Replaces the layer `under` by `of`'s image and record, like a converter that lied about the
/// diff ID.
fn forge(of: &Layer, under: &Layer) {
    fs::copy(&of.path, &under.path).unwrap();
    let mut record = of.record.clone();
    record.diff_id = under.diff_id;
    let json = serde_json::to_vec(&record).unwrap();
    fs::write(under.path.with_extension("json"), json).unwrap();
}

#[test]
fn a_layer_of_another_blob_is_taken_only_if_it_is_the_same() {
    let _alone = alone();
    let store = store();
    let convert = |store: &Store, blob: &[u8], archive: &[u8]| {
        let expect = expect(blob, archive);
        convert_layer_in(Place::Here, store, blob, &expect, &Limits::default())
    };
    let archive = Archive::new().file("f", "honest").finish();
    let layer = convert(&store, &gzip(&archive), &archive).unwrap();
    assert_eq!(convert(&store, &zstd(&archive), &archive).unwrap(), layer);
    assert_eq!(
        store.diff_id_of_blob(&Digest::of(&zstd(&archive))).unwrap(),
        Some(layer.diff_id)
    );

    let other = Archive::new().file("f", "forged").finish();
    let other = convert(&store, &gzip(&other), &other).unwrap();
    forge(&other, &layer);
    let forged = fs::read(&layer.path).unwrap();
    // A third blob of the same archive neither gets the forged layer nor replaces it.
    let third = [gzip(&archive), gzip(b"")].concat();
    let error = convert(&store, &third, &archive).unwrap_err();
    assert!(
        matches!(error.reason, Reason::Store(StoreError::OtherLayer { .. })),
        "{error}"
    );
    assert_eq!(fs::read(&layer.path).unwrap(), forged);
    assert_eq!(store.diff_id_of_blob(&Digest::of(&third)).unwrap(), None);
}
