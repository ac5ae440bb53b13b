//! Files that a map describes, whose chunks come when they are read. Frames are inflated by workers.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread;

use micabox_chunk::{CHUNK, Entry, FRAME_HEADER, Index, Map, Writer};
use micabox_erofs::ReadAt;
use micabox_lazy::{Fetched, Inflaters, Packs, PartFile};
use sha2::{Digest, Sha256};

/// Chunks in a frame.
const TOGETHER: usize = 8;

/// SplitMix64: nothing compresses it.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// Answers in place of a pack's bytes: the range, and the true bytes.
type Lie = Box<dyn Fn(u32, &Range<u64>, Vec<u8>) -> io::Result<Vec<u8>> + Send + Sync>;

/// What was fetched: numbers of packs, and ranges of them.
type Log = Arc<Mutex<Vec<(u32, Range<u64>)>>>;

/// What holds the next answer behind its first frame, if anything does.
type Hold = Arc<Mutex<Option<Receiver<()>>>>;

/// A file as it is elsewhere, its map, and packs.
struct Sample {
    bytes: Vec<u8>,
    map: Map,
    packs: Vec<(Vec<u8>, Arc<Index>)>,
}

/// Packs that note what they are asked for.
struct Source {
    sample: Arc<Sample>,
    log: Log,
    lie: Arc<Mutex<Option<Lie>>>,
    hold: Hold,
    local: HashMap<[u8; 32], Vec<u8>>,
}

impl Packs for Source {
    fn index(&self, pack: u32) -> io::Result<Arc<Index>> {
        Ok(Arc::clone(&self.sample.packs[pack as usize].1))
    }

    fn fetch(&self, pack: u32, range: Range<u64>) -> Receiver<io::Result<Fetched>> {
        let (sender, receiver) = mpsc::channel();
        let (blob, index) = &self.sample.packs[pack as usize];
        let bytes = blob[range.start as usize..range.end as usize].to_vec();
        let said = match &*self.lie.lock().unwrap() {
            Some(lie) => lie(pack, &range, bytes),
            None => Ok(bytes),
        };
        let bytes = match said {
            Ok(bytes) => bytes,
            Err(error) => {
                sender.send(Err(error)).unwrap();
                return receiver;
            }
        };
        // The first frame comes in two pieces, and the rest of an answer that is held once it may.
        let frames = 0..index.len();
        let ends = frames.map(|frame| index.range(frame).unwrap().end);
        let end = ends
            .take_while(|end| *end <= range.end)
            .find(|end| *end > range.start);
        let first = end.map_or(bytes.len(), |end| (end - range.start) as usize);
        self.log.lock().unwrap().push((pack, range));
        let hold = self.hold.lock().unwrap().take();
        thread::spawn(move || {
            let (first, rest) = bytes.split_at(first.min(bytes.len()));
            let (one, other) = first.split_at(first.len() / 2);
            for (number, bytes) in [one, other, rest].into_iter().enumerate() {
                if let Some(hold) = hold.as_ref().filter(|_| number == 2) {
                    // It ends with the other half.
                    let _ = hold.recv();
                }
                let (bytes, from) = (bytes.to_vec(), "registry.example.com".to_owned());
                let _ = sender.send(Ok(Fetched { bytes, from }));
            }
        });
        receiver
    }

    fn local(&self, sha256: &[u8; 32], _: u64) -> Option<Vec<u8>> {
        self.local.get(sha256).cloned()
    }
}

impl Sample {
    /// Makes a file of so many chunks and a short one. Every fifth chunk is a hole, every seventh one the same as the first.
    fn new(chunks: usize) -> Self {
        let mut random = Random(7);
        let mut bytes = Vec::new();
        for number in 0..chunks {
            let chunk: Vec<u8> = match number {
                number if number % 5 == 4 => vec![0; CHUNK as usize],
                number if number > 0 && number % 7 == 0 => bytes[..CHUNK as usize].to_vec(),
                _ => (0..CHUNK / 8)
                    .flat_map(|_| random.next().to_le_bytes())
                    .collect(),
            };
            bytes.extend(chunk);
        }
        bytes.extend([9; 100]);
        let mut map = Map::new(bytes.len() as u64);
        let mut packs = Vec::new();
        let mut places: HashMap<[u8; 32], (u32, u64)> = HashMap::new();
        let all: Vec<&[u8]> = bytes.chunks(CHUNK as usize).collect();
        for (pack, part) in all.chunks(all.len().div_ceil(2)).enumerate() {
            let mut writer = Writer::new(Vec::new()).unwrap();
            let (mut at, mut together) = (0, Vec::new());
            for (within, chunk) in part.iter().enumerate() {
                if chunk.iter().all(|byte| *byte == 0) {
                    continue;
                }
                let sha256: [u8; 32] = Sha256::digest(chunk).into();
                let (pack, offset) = *places.entry(sha256).or_insert_with(|| {
                    let place = (pack as u32, at);
                    at += chunk.len() as u64;
                    together.extend_from_slice(chunk);
                    if together.len() >= TOGETHER * CHUNK as usize {
                        writer.chunk(&together).unwrap();
                        together.clear();
                    }
                    place
                });
                let number = packs.len() * all.len().div_ceil(2) + within;
                let entry = Entry {
                    number: number as u32,
                    pack,
                    offset,
                    sha256,
                };
                map.push(entry).unwrap();
            }
            writer.chunk(&together).unwrap();
            let (blob, written) = writer.finish().unwrap();
            let index = written.index.start + FRAME_HEADER..written.index.end;
            let index = &blob[index.start as usize..index.end as usize];
            let index = Index::parse(index, written.index.start).unwrap();
            packs.push((blob, Arc::new(index)));
        }
        Self { bytes, map, packs }
    }

    /// Bytes of all packs.
    fn packed(&self) -> u64 {
        self.packs.iter().map(|(blob, _)| blob.len() as u64).sum()
    }
}

/// A file that is opened again and again.
struct Fixture {
    sample: Arc<Sample>,
    file: File,
    inflaters: Arc<Inflaters>,
    log: Log,
    lie: Arc<Mutex<Option<Lie>>>,
    hold: Hold,
}

impl Fixture {
    fn new(chunks: usize) -> Self {
        let sample = Sample::new(chunks);
        let file = tempfile::tempfile().unwrap();
        file.set_len(sample.bytes.len() as u64).unwrap();
        Self {
            sample: Arc::new(sample),
            file,
            inflaters: Arc::default(),
            log: Arc::default(),
            lie: Arc::default(),
            hold: Hold::default(),
        }
    }

    fn open(&self) -> PartFile {
        self.open_with(self.sample.map.clone(), HashMap::new())
    }

    fn open_with(&self, map: Map, local: HashMap<[u8; 32], Vec<u8>>) -> PartFile {
        let source = Source {
            sample: Arc::clone(&self.sample),
            log: Arc::clone(&self.log),
            lie: Arc::clone(&self.lie),
            hold: Hold::clone(&self.hold),
            local,
        };
        let file = self.file.try_clone().unwrap();
        PartFile::new(file, map, Box::new(source), &self.inflaters)
    }

    fn set_lie(
        &self,
        lie: impl Fn(u32, &Range<u64>, Vec<u8>) -> io::Result<Vec<u8>> + Send + Sync + 'static,
    ) {
        *self.lie.lock().unwrap() = Some(Box::new(lie));
    }

    fn tell_the_truth(&self) {
        *self.lie.lock().unwrap() = None;
    }

    fn fetched(&self) -> u64 {
        let log = self.log.lock().unwrap();
        log.iter().map(|(_, range)| range.end - range.start).sum()
    }

    /// Fails if bytes of a pack were fetched twice.
    fn assert_nothing_twice(&self) {
        let mut log = self.log.lock().unwrap().clone();
        log.sort_by_key(|(pack, range)| (*pack, range.start));
        for pair in log.windows(2) {
            let [(a, first), (b, second)] = pair else {
                unreachable!()
            };
            assert!(a != b || first.end <= second.start, "{pair:?}");
        }
    }

    fn check(&self, file: &PartFile, offset: usize, length: usize) {
        let mut read = vec![0x77; length];
        file.read_exact_at(&mut read, offset as u64).unwrap();
        assert!(
            read == self.sample.bytes[offset..offset + length],
            "{length} bytes at {offset}"
        );
    }

    fn check_all(&self, file: &PartFile) {
        let size = self.sample.bytes.len();
        for offset in (0..size).step_by(100_000) {
            self.check(file, offset, 100_000.min(size - offset));
        }
    }

    /// Fails unless the file alone has every byte.
    fn assert_whole(&self) {
        let mut bytes = vec![0; self.sample.bytes.len()];
        FileExt::read_exact_at(&self.file, &mut bytes, 0).unwrap();
        assert!(bytes == self.sample.bytes);
    }
}

#[test]
fn what_threads_read_in_any_order_is_what_the_file_had_and_nothing_is_fetched_twice() {
    let fixture = Fixture::new(300);
    let file = fixture.open();
    thread::scope(|scope| {
        for seed in 0..6 {
            let (fixture, file) = (&fixture, &file);
            scope.spawn(move || {
                let mut random = Random(seed);
                for _ in 0..60 {
                    let offset = random.below(fixture.sample.bytes.len());
                    let length = 1 + random.below(70_000);
                    let length = length.min(fixture.sample.bytes.len() - offset);
                    fixture.check(file, offset, length);
                }
            });
        }
        scope.spawn(|| assert!(file.fill(&|_| true).unwrap()));
    });
    fixture.check_all(&file);
    fixture.assert_nothing_twice();
    fixture.assert_whole();
    // Behind its end there is nothing.
    let size = fixture.sample.bytes.len() as u64;
    assert!(file.read_exact_at(&mut [0; 2], size - 1).is_err());
    assert!(file.read_exact_at(&mut [0; 2], u64::MAX).is_err());

    // Opened again, it needs no registry.
    fixture.set_lie(|_, _, _| Err(io::Error::other("gone")));
    fixture.check_all(&fixture.open());
    // Holes are left out.
    let blocks = fixture.file.metadata().unwrap().blocks() * 512;
    assert!(blocks < size * 9 / 10, "{blocks}");
}

#[test]
fn what_was_read_is_an_order_by_which_another_fetches_it_before_that() {
    let fixture = Fixture::new(1500);
    let file = fixture.open();
    let entries = fixture.sample.map.entries();
    let entry = |number: u32| {
        let found = entries.binary_search_by_key(&number, |entry| entry.number);
        found.unwrap()
    };
    for number in [1401, 10, 11, 12, 703, 10] {
        fixture.check(&file, number as usize * CHUNK as usize, 5000);
    }
    let runs: Vec<_> = file.order().runs().collect();
    let [last, first, middle] = [1401, 10, 703].map(entry);
    let expected = [
        (0, last..last + 1),
        (0, first..first + 3),
        (0, middle..middle + 1),
    ];
    assert_eq!(runs, expected);

    let other = Fixture::new(1500);
    let file = other.open();
    for (_, run) in runs {
        file.prefetch(run).unwrap();
    }
    // Those frames and no others: three, of eight chunks each, and one more where a run goes on in it.
    let frame = TOGETHER as u64 * CHUNK;
    assert!(other.fetched() <= 4 * frame + 4096, "{}", other.fetched());
    other.assert_nothing_twice();
    other.set_lie(|_, _, _| Err(io::Error::other("gone")));
    for number in [1401, 10, 11, 12, 703] {
        other.check(&file, number as usize * CHUNK as usize, 5000);
    }
    // It is no order of its own, and chunks that are not there are none.
    assert_eq!(file.order().runs().count(), 3);
    file.prefetch(entries.len()..usize::MAX).unwrap();
}

#[test]
fn a_page_brings_a_part_and_those_who_read_on_get_more_at_once() {
    let fixture = Fixture::new(1500);
    let file = fixture.open();
    fixture.check(&file, 12 << 20, 4096);
    let first = fixture.fetched();
    assert!(first <= 256 << 10, "{first}");
    assert!(first * 50 < fixture.sample.packed(), "{first}");
    for page in 0..(8 << 20) / 4096 {
        fixture.check(&file, page * 4096, 4096);
    }
    let requests = fixture.log.lock().unwrap().len();
    assert!(requests < 20, "{requests}");
    fixture.assert_nothing_twice();
}

#[test]
fn a_read_waits_for_its_frame_and_not_for_what_comes_behind_it() {
    let fixture = Fixture::new(1500);
    let file = fixture.open();
    // Who reads on asks for several frames at once.
    let frame = TOGETHER * CHUNK as usize;
    let frames = |(_, range): &(u32, Range<u64>)| (range.end - range.start) / frame as u64;
    let mut at = 0;
    let (held, several) = loop {
        let (held, hold) = mpsc::channel();
        *fixture.hold.lock().unwrap() = Some(hold);
        fixture.check(&file, at, 4096);
        let is_held = fixture.hold.lock().unwrap().take().is_none();
        let last = fixture.log.lock().unwrap().last().unwrap().clone();
        if is_held && frames(&last) > 2 {
            break (held, last);
        }
        at += CHUNK as usize;
    };
    // A chunk came while the rest was held, which is not asked for again.
    thread::scope(|scope| {
        let (fixture, file) = (&fixture, &file);
        scope.spawn(move || fixture.check(file, at, frame * 3));
        drop(held);
    });
    assert!(fixture.log.lock().unwrap().contains(&several));
    fixture.assert_nothing_twice();
}

#[test]
fn bytes_of_a_registry_that_swaps_shortens_or_damages_them_are_never_read() {
    let fixture = Fixture::new(60);
    let file = fixture.open();
    let other = fixture.sample.packs[1].0.clone();
    let lies: [(Lie, &str); 5] = [
        (
            Box::new(|_, _, mut bytes| {
                bytes[100] ^= 1;
                Ok(bytes)
            }),
            "another checksum than its index says, from registry.example.com",
        ),
        (
            Box::new(|_, _, bytes| Ok(vec![0; bytes.len()])),
            "another checksum than its index says, from registry.example.com",
        ),
        (
            Box::new(move |_, range, _| {
                // The other pack, from its end on.
                let length = (range.end - range.start) as usize;
                Ok(other.iter().rev().cycle().take(length).copied().collect())
            }),
            "another checksum than its index says, from registry.example.com",
        ),
        (
            Box::new(|_, _, mut bytes| {
                bytes.truncate(50);
                Ok(bytes)
            }),
            "the transfer that it was a part of has ended",
        ),
        (
            Box::new(|_, _, _| Err(io::Error::other("it has gone"))),
            "it has gone",
        ),
    ];
    for (lie, words) in lies {
        *fixture.lie.lock().unwrap() = Some(lie);
        let mut read = [0x77; 4096];
        let error = file.read_exact_at(&mut read, 8 * CHUNK).unwrap_err();
        assert!(error.to_string().contains(words), "{words}: {error}");
        assert_eq!(read, [0x77; 4096], "{words}");
        let error = file.fill(&|_| true).unwrap_err();
        assert!(error.to_string().contains(words), "{words}: {error}");
    }
    assert_eq!(fixture.file.metadata().unwrap().blocks(), 0);
    fixture.tell_the_truth();
    fixture.check_all(&file);
}

#[test]
fn a_chunk_that_its_frame_does_not_have_is_never_read_and_the_others_are() {
    let fixture = Fixture::new(60);
    let mut map = Map::new(fixture.sample.map.size());
    for entry in fixture.sample.map.entries() {
        let mut entry = *entry;
        match entry.number {
            3 => entry.sha256[0] ^= 1,
            // Over the end of a frame.
            12 => entry.offset += 5,
            _ => {}
        }
        map.push(entry).unwrap();
    }
    let file = fixture.open_with(map, HashMap::new());
    for (number, words) in [
        (3, "other bytes than its map says"),
        (12, "it does not have in one frame"),
    ] {
        let mut read = [0x77; 10];
        let read = file.read_exact_at(&mut read, number * CHUNK);
        let error = read.unwrap_err().to_string();
        // One that begins elsewhere in a frame has other bytes.
        let is_named = error.contains(words) || error.contains("other bytes than its map says");
        assert!(is_named, "{number}: {error}");
    }
    fixture.check(&file, 0, 3 * CHUNK as usize);
    fixture.check(&file, 5 * CHUNK as usize, 7 * CHUNK as usize);
    // It never counts as whole.
    let error = file.fill(&|_| true).unwrap_err().to_string();
    assert!(error.contains("map"), "{error}");
}

#[test]
fn what_was_altered_on_the_disk_is_not_read_but_fetched_again() {
    let fixture = Fixture::new(60);
    assert!(fixture.open().fill(&|_| true).unwrap());
    fixture.assert_nothing_twice();
    let before = fixture.fetched();
    let file = fixture.open();
    fixture.check(&file, 0, 40_000);
    assert_eq!(fixture.fetched(), before);
    // Of one that was compared before, and of one that was not.
    for offset in [100, 30 * CHUNK] {
        fixture.file.write_all_at(&[0; 50], offset).unwrap();
        fixture.check(&file, offset as usize, 40);
    }
    assert!(fixture.fetched() > before);
    fixture.assert_whole();
}

#[test]
fn a_fill_that_fails_or_is_ended_goes_on_where_it_was() {
    let fixture = Fixture::new(1500);
    let count = AtomicUsize::new(0);
    fixture.set_lie(
        move |_, _, bytes| match count.fetch_add(1, Ordering::SeqCst) {
            0..2 => Ok(bytes),
            _ => Err(io::Error::other("it has gone")),
        },
    );
    let error = fixture.open().fill(&|_| true).unwrap_err();
    assert_eq!(error.to_string(), "it has gone");
    let part = fixture.fetched();
    assert!(part > 0 && part < fixture.sample.packed());
    fixture.tell_the_truth();
    // Ended by its caller, at once.
    assert!(!fixture.open().fill(&|_| false).unwrap());
    let file = fixture.open();
    let most = Mutex::new(0);
    let watch = |here: u64| {
        let mut most = most.lock().unwrap();
        *most = here.max(*most);
        true
    };
    assert!(file.fill(&watch).unwrap());
    assert_eq!(*most.lock().unwrap(), file.all_bytes());
    fixture.assert_nothing_twice();
    fixture.assert_whole();
}

#[test]
fn a_chunk_that_is_here_elsewhere_is_copied_if_it_is_that_chunk() {
    let fixture = Fixture::new(60);
    let mut local = HashMap::new();
    for entry in fixture.sample.map.entries() {
        let range = fixture.sample.map.range(entry);
        let bytes = &fixture.sample.bytes[range.start as usize..range.end as usize];
        local.insert(entry.sha256, bytes.to_vec());
    }
    let file = fixture.open_with(fixture.sample.map.clone(), local.clone());
    fixture.check(&file, 0, 200_000);
    assert!(file.fill(&|_| true).unwrap());
    assert_eq!(fixture.fetched(), 0);
    fixture.assert_whole();

    let fixture = Fixture::new(60);
    local.values_mut().for_each(|bytes| bytes[0] ^= 1);
    let file = fixture.open_with(fixture.sample.map.clone(), local);
    fixture.check_all(&file);
    assert_ne!(fixture.fetched(), 0);
}

#[test]
fn runs_of_data_are_those_of_the_map() {
    let fixture = Fixture::new(12);
    let file = fixture.open();
    let size = fixture.sample.bytes.len() as u64;
    let expected: [(u64, Option<Range<u64>>); 6] = [
        (0, Some(0..4 * CHUNK)),
        (4 * CHUNK - 1, Some(3 * CHUNK..4 * CHUNK)),
        (4 * CHUNK, Some(5 * CHUNK..9 * CHUNK)),
        (9 * CHUNK + 1, Some(10 * CHUNK..size)),
        (size, None),
        (u64::MAX, None),
    ];
    for (offset, run) in expected {
        assert_eq!(file.data(offset), run, "{offset}");
    }
    assert_eq!(fixture.fetched(), 0);
}
