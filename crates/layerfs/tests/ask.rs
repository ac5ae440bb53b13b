//! Pieces that are asked for, of a source in memory.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use micabox_erofs::ReadAt;
use micabox_layerfs::ask::{Asker, serve};
use micabox_layerfs::pieces::{MOST, PIECE};
use micabox_layerfs::{Files, Parts, Source};
use micabox_testing::mounts::Mount;
use tempfile::TempDir;

const PIECES: u32 = 100;

/// Bytes that say where they are, but for zeros in every fifth piece and an error in the last one.
struct Numbered(Arc<AtomicUsize>);

fn byte(at: u64) -> u8 {
    let piece = at / PIECE;
    if piece % 5 == 4 {
        0
    } else {
        (piece + at % 251) as u8 | 1
    }
}

impl ReadAt for Numbered {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.fetch_add(1, Ordering::SeqCst);
        if offset / PIECE == u64::from(PIECES) - 1 {
            return Err(io::Error::other("its source is gone"));
        }
        for (at, to) in (offset..).zip(buffer) {
            *to = byte(at);
        }
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        // The last piece is a part of one.
        Ok(u64::from(PIECES) * PIECE - 5)
    }
}

impl Source for Numbered {}

struct Server {
    directory: TempDir,
    parts: Arc<Parts<Numbered>>,
    reads: Arc<AtomicUsize>,
    /// What reads fail of, or wait for.
    failures: mpsc::Receiver<io::ErrorKind>,
}

impl Server {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().to_owned();
        Self::with(directory, &at)
    }

    /// Makes one whose sparse files are in a directory.
    fn with(directory: TempDir, at: &Path) -> Self {
        let reads = Arc::new(AtomicUsize::new(0));
        let (failed, failures) = mpsc::channel();
        let failed = move |_, error: &io::Error| failed.send(error.kind()).unwrap();
        let files = Files::new(vec![Numbered(Arc::clone(&reads))], || {}, failed).unwrap();
        let parts = Arc::new(Parts::new(Arc::new(files), at));
        Self {
            directory,
            parts,
            reads,
            failures,
        }
    }

    fn connect(&self) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let parts = Arc::clone(&self.parts);
        thread::spawn(move || serve(&parts, theirs));
        ours
    }
}

#[test]
fn what_is_asked_for_is_read_once_and_nothing_else_is_there() {
    let server = Server::new();
    let [one, other] = [0; 2].map(|_| Asker::new(server.connect()));
    let mut opened = one.open(0).unwrap();
    assert_eq!(opened.runs().unwrap(), []);
    thread::scope(|scope| {
        for asker in [&one, &other] {
            scope.spawn(|| {
                asker.open(0).unwrap();
                asker.bring(0, 3..70).unwrap();
            });
        }
    });
    // Who looks sees it without asking.
    let runs = opened.runs().unwrap();
    assert!(runs.len() == 1 && runs[0] == (3..70), "{runs:?}");
    assert_eq!(opened.run(40).unwrap(), 32..64);
    assert_eq!(opened.run(70).unwrap(), 70..70);
    // Some want what is behind these 2 MiB as well.
    let on = [(40, 1000), (10, 1000), (40, 3), (66, 9), (70, 9)];
    let on = on.map(|(piece, most)| opened.run_on(piece, most).unwrap());
    assert_eq!(on, [32..70, 3..70, 32..67, 64..70, 70..70]);
    assert_eq!(server.reads.load(Ordering::SeqCst), 67);
    let mut bytes = vec![0; opened.size as usize];
    opened.file.read_exact_at(&mut bytes, 0).unwrap();
    for (at, found) in (0..).zip(&bytes) {
        let is_here = (3..70).contains(&(at / PIECE));
        assert_eq!(*found, if is_here { byte(at) } else { 0 }, "{at}");
    }
    // It can't be written to, and has no name.
    assert!(opened.file.write_at(&[1], 0).is_err());
    assert_eq!(server.directory.path().read_dir().unwrap().count(), 0);
}

#[test]
fn what_can_not_be_had_is_an_error_with_the_reason_and_is_not_there() {
    let server = Server::new();
    let asker = Asker::new(server.connect());
    let mut opened = asker.open(0).unwrap();
    asker.ask(0, &(98..100)).unwrap();
    assert_eq!(asker.answer().unwrap().here, Ok(98..99));
    let error = asker.bring(0, 99..100).unwrap_err();
    assert_eq!(error.to_string(), "its source is gone");
    assert_eq!(opened.run(99).unwrap(), 99..99);
    let error = asker.open(1).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
}

/// A guest may have taken its monitor over.
#[test]
fn a_client_that_asks_for_what_is_not_there_gets_errors_and_one_that_breaks_the_protocol_is_left() {
    let server = Server::new();
    let asker = Asker::new(server.connect());
    asker.open(0).unwrap();
    for (file, pieces) in [(0, 99..101), (0, u32::MAX - 1..u32::MAX), (7, 0..1)] {
        asker.ask(file, &pieces).unwrap();
        assert!(asker.answer().unwrap().here.is_err(), "{file} {pieces:?}");
    }
    // Before it was opened.
    let early = Asker::new(server.connect());
    let fresh = Server::new();
    early.ask(0, &(0..1)).unwrap();
    assert!(early.answer().unwrap().here.is_ok());
    let early = Asker::new(fresh.connect());
    early.ask(0, &(0..1)).unwrap();
    assert!(early.answer().unwrap().here.is_err());
    for numbers in [[0, 0, MOST + 1], [0, u32::MAX, 2], [u32::MAX; 3]] {
        let mut connection = server.connect();
        let bytes: Vec<u8> = numbers.iter().flat_map(|it| it.to_le_bytes()).collect();
        connection.write_all(&bytes).unwrap();
        assert_eq!(connection.read(&mut [0]).unwrap(), 0, "{numbers:?}");
    }
}

#[test]
#[ignore = "mounts a tmpfs: needs root"]
fn on_a_full_disk_a_reader_waits_for_room_and_gets_every_byte() {
    let disk = Mount::tmpfs("size=1m,mode=700");
    let server = Server::with(tempfile::tempdir().unwrap(), disk.path());
    let asker = Asker::new(server.connect());
    let opened = asker.open(0).unwrap();
    asker.bring(0, 0..2).unwrap();
    let filler = disk.path().join("filler");
    // As much as there is room for.
    let _ = fs::write(&filler, vec![1; 1 << 20]);
    asker.ask(0, &(2..6)).unwrap();
    assert_eq!(server.failures.recv().unwrap(), io::ErrorKind::StorageFull);
    fs::remove_file(filler).unwrap();
    // The first one that was asked for; the others are here, too, since nothing is in their way.
    assert_eq!(asker.answer().unwrap().here, Ok(0..6));
    let mut bytes = vec![0; 6 * PIECE as usize];
    opened.file.read_exact_at(&mut bytes, 0).unwrap();
    assert!((0..).zip(&bytes).all(|(at, found)| *found == byte(at)));
    // It is reported once.
    assert!(server.failures.try_recv().is_err());
}
