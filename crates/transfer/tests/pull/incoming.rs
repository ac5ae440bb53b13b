//! Images whose chunks are read while the rest of an answer is still under way.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use micabox_chunk::{FRAME_HEADER, Index, Writer};
use micabox_erofs::ReadAt;
use micabox_lazy::{Ahead, Blob, Fetch, Fetched, Image, Inflaters, Order};
use micabox_testing::wait_until;

/// Bytes of a chunk.
const CHUNK: usize = 16 << 10;

/// Requests for parts, each with what answers it.
type Asked = Arc<Mutex<Vec<(Range<u64>, Sender<io::Result<Fetched>>)>>>;

/// A registry that answers when the test does.
struct Source(Asked);

impl Fetch for Source {
    fn fetch(&self, range: Range<u64>) -> Receiver<io::Result<Fetched>> {
        let (sender, receiver) = channel();
        self.0.lock().unwrap().push((range, sender));
        receiver
    }
}

struct Fixture {
    bytes: Vec<u8>,
    blob: Vec<u8>,
    asked: Asked,
    image: Arc<Image>,
}

impl Fixture {
    /// Makes an image of chunks that nothing compresses.
    fn new(chunks: usize) -> Self {
        let mut state = 5_u64;
        let word = std::iter::repeat_with(|| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            (mixed ^ mixed >> 27).to_le_bytes()
        });
        let bytes: Vec<u8> = word.take(chunks * CHUNK / 8).flatten().collect();
        let mut writer = Writer::new(Vec::new()).unwrap();
        for chunk in bytes.chunks(CHUNK) {
            writer.chunk(chunk).unwrap();
        }
        let (blob, written) = writer.finish().unwrap();
        let index = written.index.start + FRAME_HEADER..written.index.end;
        let index = &blob[index.start as usize..index.end as usize];
        let index = Index::parse(index, written.index.start).unwrap();
        let file = tempfile::tempfile().unwrap();
        file.set_len(blob.len() as u64).unwrap();
        let asked = Asked::default();
        let source = Box::new(Source(Arc::clone(&asked)));
        let kept = Blob::new(file, index).unwrap();
        let image = Image::new(
            kept,
            bytes.len() as u64,
            source,
            &Arc::<Inflaters>::default(),
        );
        Self {
            bytes,
            blob,
            asked,
            image: Arc::new(image),
        }
    }

    fn asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }

    /// Returns the part that was asked for as this one, from 0, once it is.
    fn part(&self, number: usize) -> (Range<u64>, Sender<io::Result<Fetched>>) {
        wait_until("a part is asked for", || self.asked() > number);
        self.asked.lock().unwrap()[number].clone()
    }

    /// Sends bytes of the blob as an answer to a request.
    fn send(&self, to: &Sender<io::Result<Fetched>>, range: Range<u64>) {
        let bytes = self.blob[range.start as usize..range.end as usize].to_vec();
        let from = "registry.example.com".to_owned();
        to.send(Ok(Fetched { bytes, from })).unwrap();
    }

    /// Returns where a chunk is in the blob.
    fn packed(&self, chunk: usize) -> Range<u64> {
        self.image.blob().index().range(chunk).unwrap()
    }

    /// Reads a page of a chunk.
    fn read(&self, chunk: usize) -> io::Result<()> {
        let (mut page, offset) = ([0x77; 4096], chunk * CHUNK + 4096);
        self.image.read_exact_at(&mut page, offset as u64)?;
        assert!(page == self.bytes[offset..offset + 4096], "chunk {chunk}");
        Ok(())
    }
}

#[test]
fn a_chunk_is_read_before_the_rest_of_its_answer_has_come() {
    let fixture = Fixture::new(20);
    thread::scope(|scope| {
        let first = scope.spawn(|| fixture.read(5));
        let (range, to) = fixture.part(0);
        assert_eq!(range.start, fixture.packed(5).start);
        assert!(range.end >= fixture.packed(7).end, "{range:?}");
        // Another reader waits for the second one of the same answer.
        let second = scope.spawn(|| fixture.read(6));
        let end = fixture.packed(5).end;
        // In pieces that have nothing to do with chunks.
        fixture.send(&to, range.start..end - 10);
        assert!(!first.is_finished());
        fixture.send(&to, end - 10..end + 10);
        first.join().unwrap().unwrap();
        assert!(!second.is_finished());
        fixture.send(&to, end + 10..range.end);
        second.join().unwrap().unwrap();
        fixture.read(7).unwrap();
    });
    assert_eq!(fixture.asked(), 1);
}

#[test]
fn what_breaks_or_lies_behind_a_chunk_fails_those_who_read_it_and_no_others() {
    let fixture = Fixture::new(20);
    thread::scope(|scope| {
        let first = scope.spawn(|| fixture.read(0));
        let (range, to) = fixture.part(0);
        fixture.send(&to, fixture.packed(0));
        first.join().unwrap().unwrap();
        // The second one is damaged.
        let from = "mirror.example.com".to_owned();
        let bytes = vec![0; (range.end - fixture.packed(1).start) as usize];
        to.send(Ok(Fetched { bytes, from })).unwrap();
        let second = scope.spawn(|| fixture.read(1));
        let (range, to) = fixture.part(1);
        assert_eq!(range.start, fixture.packed(1).start);
        let gone = io::Error::other("it has gone");
        to.send(Err(gone)).unwrap();
        let error = second.join().unwrap().unwrap_err();
        assert_eq!(error.to_string(), "it has gone");
    });
    // A lie to who waits for it names who has told it.
    thread::scope(|scope| {
        let reader = scope.spawn(|| fixture.read(1));
        let (range, to) = fixture.part(2);
        let from = "mirror.example.com".to_owned();
        let bytes = vec![0; (range.end - range.start) as usize];
        to.send(Ok(Fetched { bytes, from })).unwrap();
        let error = reader.join().unwrap().unwrap_err().to_string();
        assert!(error.ends_with("says, from mirror.example.com"), "{error}");
    });
}

#[test]
fn on_a_line_that_is_behind_a_reader_asks_for_its_chunk_alone() {
    let fixture = Fixture::new(60);
    let mut left = Vec::new();
    thread::scope(|scope| {
        for (number, chunk) in [0, 20, 40].into_iter().enumerate() {
            let reader = scope.spawn({
                let fixture = &fixture;
                move || fixture.read(chunk)
            });
            let (range, to) = fixture.part(number);
            let is_alone = range == fixture.packed(chunk);
            // The rest of two answers may be under way.
            assert_eq!(is_alone, number == 2, "{range:?}");
            fixture.send(&to, fixture.packed(chunk));
            reader.join().unwrap().unwrap();
            left.push(to);
        }
    });
    drop(left);
}

#[test]
fn an_order_is_fetched_as_it_is_and_ends_where_it_is_told_to() {
    let fixture = Fixture::new(60);
    let order: Order =
        serde_json::from_str(r#"{"runs":[[0,30,2],[3,1,9],[0,2,3],[0,90,4]]}"#).unwrap();
    let image = Arc::clone(&fixture.image);
    let ahead = Ahead::begin(&order, move |layer, chunks| {
        layer != 0 || image.prefetch(chunks).is_ok()
    });
    for number in 0..2 {
        let (range, to) = fixture.part(number);
        let is_first = range.start == fixture.packed(30).start;
        let (first, last) = if is_first { (30, 31) } else { (2, 4) };
        assert_eq!(range, fixture.packed(first).start..fixture.packed(last).end);
        fixture.send(&to, range);
    }
    ahead.wait();
    for chunk in [30, 31, 2, 3, 4] {
        fixture.read(chunk).unwrap();
    }
    assert_eq!(fixture.asked(), 2);

    let long: Order = serde_json::from_str(r#"{"runs":[[0,0,60]]}"#).unwrap();
    let parts = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&parts);
    let ahead = Ahead::begin(&long, move |_, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        false
    });
    ahead.wait();
    // Each thread ends with its first part; there are fifteen in all.
    assert!((1..15).contains(&parts.load(Ordering::SeqCst)));
}
