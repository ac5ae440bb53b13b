//! A file that a map describes: its chunks are fetched from packs when they are read, and written to their places.

mod frames;

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::Builder;

use micabox_chunk::{CHUNK, Entry, Index, Map};
use micabox_erofs::ReadAt;
use micabox_ground::lock;
use sha2::{Digest, Sha256};

use crate::asking::{AHEAD, Asked, Fetched};
use crate::blob::{HERE, MISSING, UNKNOWN, is_hole};
use crate::inflate::Inflaters;
use crate::order::{Order, Recorder};
use frames::{Frame, Frames};

/// Threads that fetch what was not read yet.
const AT_ONCE: usize = 4;

/// Where missing chunks come from.
pub trait Packs: Send + Sync {
    /// Returns a pack's index, which is checked: its frames have checksums and are no larger than
    /// [`LARGEST`](crate::LARGEST).
    ///
    /// # Errors
    ///
    /// It can't be had, or is another one; the text says which pack's, and why.
    fn index(&self, pack: u32) -> io::Result<Arc<Index>>;

    /// Begins to fetch these bytes of a pack, as [`Fetch::fetch`](crate::Fetch::fetch) does those of a blob.
    fn fetch(&self, pack: u32, range: Range<u64>) -> Receiver<io::Result<Fetched>>;

    /// Returns a chunk that another file here has, so that it need not be fetched. It need not be checked.
    fn local(&self, sha256: &[u8; 32], length: u64) -> Option<Vec<u8>>;
}

/// A sparse file, its map, and the packs that have what is missing. What is in the file is not trusted: a chunk is here if
/// its bytes have the digest that the map says, and it is compared each time that it is read. So nothing else has to be
/// kept of what is here, and a crash leaves nothing that could be believed.
pub struct PartFile(Arc<Parts>);

struct Parts {
    file: File,
    map: Map,
    packs: Box<dyn Packs>,
    inflaters: Arc<Inflaters>,
    /// What is known of each entry of the map.
    states: Vec<AtomicU8>,
    /// Bytes of the entries that are known to be here.
    present: AtomicU64,
    /// Numbers of entries by pack, and by offset there.
    by_place: Vec<u32>,
    fetching: Mutex<Fetching>,
    fetched: Condvar,
    /// Notes which entries are read.
    recorder: Recorder,
}

/// What is being fetched.
#[derive(Default)]
struct Fetching {
    /// Numbers of packs, and of frames in them.
    frames: BTreeSet<(u32, usize)>,
    asked: Asked,
}

impl PartFile {
    /// Takes a file that is as long as its map says and has holes where nothing is here yet.
    pub fn new(file: File, map: Map, packs: Box<dyn Packs>, inflaters: &Arc<Inflaters>) -> Self {
        let entries = map.entries();
        let states = entries.iter().map(|_| AtomicU8::new(UNKNOWN)).collect();
        // A map has a few million entries.
        let mut by_place: Vec<u32> = (0..entries.len() as u32).collect();
        by_place.sort_unstable_by_key(|number| entries.get(*number as usize).map(place));
        Self(Arc::new(Parts {
            file,
            packs,
            inflaters: Arc::clone(inflaters),
            states,
            present: AtomicU64::new(0),
            by_place,
            fetching: Mutex::default(),
            fetched: Condvar::new(),
            recorder: Recorder::default(),
            map,
        }))
    }

    /// Returns the order in which its chunks were read so far: numbers of the map's entries.
    pub fn order(&self) -> Order {
        self.0.recorder.order()
    }

    /// Returns that order if it is to be kept in the place of what is `kept`, as [`Recorder::order_to_keep`] does.
    pub fn order_to_keep(&self, kept: Option<&Order>) -> Option<Order> {
        self.0.recorder.order_to_keep(kept)
    }

    /// Fetches those of some entries of the map that are missing, and that no other thread fetches.
    ///
    /// # Errors
    ///
    /// As for [`PartFile::fill`].
    pub fn prefetch(&self, numbers: Range<usize>) -> io::Result<()> {
        self.0.prefetch(numbers)
    }

    /// Fetches all chunks that are missing, a few at a time. `watch` is called with the number of bytes that are here and
    /// returns whether to continue. Returns whether all of them are here now.
    ///
    /// # Errors
    ///
    /// Those of [`Packs`], and of keeping them; [`io::ErrorKind::InvalidData`] for other bytes. What was fetched stays.
    pub fn fill(&self, watch: &(dyn Fn(u64) -> bool + Sync)) -> io::Result<bool> {
        self.0.fill(watch)
    }

    /// Returns the file.
    pub fn file(&self) -> &File {
        &self.0.file
    }

    /// Returns how many bytes of chunks it has when it is whole.
    pub fn all_bytes(&self) -> u64 {
        self.0.map.entries().len() as u64 * CHUNK
    }

    /// Returns the first run of bytes that may be no zeros and ends behind an offset, from the chunk on that has the offset;
    /// none if there is none.
    pub fn data(&self, offset: u64) -> Option<Range<u64>> {
        let entries = self.0.map.entries();
        let first = entries.partition_point(|entry| self.0.map.range(entry).end <= offset);
        let mut run = self.0.map.range(entries.get(first)?);
        for entry in entries.iter().skip(first + 1) {
            let range = self.0.map.range(entry);
            if range.start != run.end {
                break;
            }
            run.end = range.end;
        }
        Some(run)
    }
}

impl Parts {
    fn prefetch(self: &Arc<Self>, numbers: Range<usize>) -> io::Result<()> {
        let end = numbers.end.min(self.states.len());
        for number in numbers.start..end {
            if self.is_here(number) {
                continue;
            }
            let entry = self.entry(number)?;
            if let Some(bytes) = self.local(entry) {
                self.keep(number, entry, &bytes)?;
                continue;
            }
            let (index, frame) = self.frame(entry)?;
            let frames = {
                let mut fetching = lock(&self.fetching);
                if fetching.frames.contains(&(entry.pack, frame)) || self.is_here(number) {
                    continue;
                }
                let is_wanted = |other: usize| (number..end).contains(&other);
                self.claim(entry.pack, frame, index, AHEAD, &is_wanted, &mut fetching)
            };
            Self::fetch_all(frames, number)?;
        }
        Ok(())
    }

    fn fill(self: &Arc<Self>, watch: &(dyn Fn(u64) -> bool + Sync)) -> io::Result<bool> {
        loop {
            if !self.fill_once(watch)? {
                return Ok(false);
            }
            if (0..self.states.len()).all(|number| self.is_here(number)) {
                return Ok(true);
            }
            // What a reader was fetching is here now, or that has failed, for a reason that comes up again.
            let mut fetching = lock(&self.fetching);
            while !fetching.frames.is_empty() {
                fetching = lock::ignore_poison(self.fetched.wait(fetching));
            }
        }
    }

    /// Fetches all chunks that are missing and that no reader fetches. Returns whether `watch` never ended it.
    fn fill_once(self: &Arc<Self>, watch: &(dyn Fn(u64) -> bool + Sync)) -> io::Result<bool> {
        let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let failed = Mutex::new(None);
        let work = || {
            while !stop.load(Ordering::Relaxed) {
                match self.fill_first(next.load(Ordering::Relaxed)) {
                    Ok(Some(after)) => _ = next.fetch_max(after, Ordering::Relaxed),
                    Ok(None) => return,
                    Err(error) => {
                        lock(&failed).get_or_insert(error);
                        stop.store(true, Ordering::Relaxed);
                    }
                }
                if !watch(self.present.load(Ordering::Relaxed)) {
                    stop.store(true, Ordering::Relaxed);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..AT_ONCE {
                let thread = std::thread::Builder::new().name("fill".into());
                // With fewer threads it takes longer.
                let _ = thread.spawn_scoped(scope, work);
            }
            work();
        });
        match lock::into_inner(failed) {
            Some(error) => Err(error),
            None => Ok(!stop.into_inner()),
        }
    }

    /// Fetches the first chunks that are missing and that no other thread fetches, from a place on in the order of packs.
    /// Returns the place behind them; none if there are none.
    fn fill_first(self: &Arc<Self>, from: usize) -> io::Result<Option<usize>> {
        let mut from = from;
        loop {
            // Not with the lock: what is here may be read for that.
            let rest = self.by_place.iter().enumerate().skip(from);
            let missing = rest
                .map(|(at, number)| (at, *number as usize))
                .find(|(_, number)| !self.is_here(*number));
            let Some((at, number)) = missing else {
                return Ok(None);
            };
            let entry = self.entry(number)?;
            if let Some(bytes) = self.local(entry) {
                self.keep(number, entry, &bytes)?;
                return Ok(Some(at + 1));
            }
            let (index, frame) = self.frame(entry)?;
            let behind = self.within(entry.pack, index.contents(frame)).end;
            let frames = {
                let mut fetching = lock(&self.fetching);
                if fetching.frames.contains(&(entry.pack, frame)) {
                    from = behind.max(at + 1);
                    continue;
                }
                // Another thread may have fetched it since.
                if self.is_here(number) {
                    from = at + 1;
                    continue;
                }
                self.claim(entry.pack, frame, index, AHEAD, &|_| true, &mut fetching)
            };
            let behind = self.within(entry.pack, frames.last()).end.max(behind);
            Self::fetch_all(frames, number)?;
            return Ok(Some(behind));
        }
    }

    /// Returns a chunk, which is fetched if it is not here.
    fn chunk(self: &Arc<Self>, number: usize) -> io::Result<Vec<u8>> {
        self.recorder.note(0, number);
        loop {
            if let Some(bytes) = self.kept(number)? {
                return Ok(bytes);
            }
            // Where another thread has fetched it, it is here now, or that has failed.
            if let Some(bytes) = self.bring(number)? {
                return Ok(bytes);
            }
        }
    }

    /// Returns a chunk's bytes in the file; none if they are others than the map says.
    fn kept(&self, number: usize) -> io::Result<Option<Vec<u8>>> {
        let entry = self.entry(number)?;
        let range = self.map.range(entry);
        let known = self.state(number);
        if known == MISSING || known == UNKNOWN && is_hole(&self.file, &range) {
            self.lose(number, known);
            return Ok(None);
        }
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let read = match FileExt::read_exact_at(&self.file, &mut bytes, range.start) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => false,
            read => read.map(|()| true)?,
        };
        if read && is_of(entry, &bytes) {
            self.set_here(number);
            return Ok(Some(bytes));
        }
        self.lose(number, known);
        Ok(None)
    }

    /// Returns whether a chunk is here. What is not known is read, once. An error counts as missing.
    fn is_here(&self, number: usize) -> bool {
        match self.state(number) {
            UNKNOWN => self.kept(number).is_ok_and(|bytes| bytes.is_some()),
            known => known == HERE,
        }
    }

    /// Fetches a chunk, and some of those that follow it in its pack behind the caller's back, unless another thread does,
    /// for which it waits. Returns the chunk's bytes if this thread has fetched them.
    fn bring(self: &Arc<Self>, number: usize) -> io::Result<Option<Vec<u8>>> {
        let entry = self.entry(number)?;
        if let Some(bytes) = self.local(entry) {
            // What is read need not be kept: the disk may be full.
            let _ = self.keep(number, entry, &bytes);
            return Ok(Some(bytes));
        }
        let (index, frame) = self.frame(entry)?;
        let mut frames = {
            let mut fetching = lock(&self.fetching);
            if fetching.frames.contains(&(entry.pack, frame)) {
                while fetching.frames.contains(&(entry.pack, frame)) {
                    fetching = lock::ignore_poison(self.fetched.wait(fetching));
                }
                return Ok(None);
            }
            if self.is_here(number) {
                return Ok(None);
            }
            let most = fetching.asked.ask(frames::place(entry.pack, &index, frame));
            let frames = self.claim(entry.pack, frame, index, most, &|_| true, &mut fetching);
            frames.of_reader(&mut fetching.asked, most)
        };
        frames.begin()?;
        let first = frames.next_frame(Some(number))?;
        if !frames.is_over() {
            let rest = move || while let Ok(Some(_)) = frames.next_frame(None) {};
            // Without a thread, they come when they are read.
            let _ = Builder::new().name("fetch".into()).spawn(rest);
        }
        let found = first.and_then(|frame| frame.wanted);
        Ok(Some(found.ok_or(io::ErrorKind::InvalidInput)?))
    }

    /// Fetches frames, the first of which has a chunk.
    fn fetch_all(mut frames: Frames, number: usize) -> io::Result<()> {
        frames.begin()?;
        let mut wanted = Some(number);
        while let Some(Frame { kept, .. }) = frames.next_frame(wanted.take())? {
            kept?;
        }
        Ok(())
    }

    /// Claims a frame and those behind it that have a missing chunk which is wanted, and that no thread fetches, of at most
    /// so many bytes.
    fn claim(
        self: &Arc<Self>,
        pack: u32,
        first: usize,
        index: Arc<Index>,
        most: u64,
        is_wanted: &dyn Fn(usize) -> bool,
        fetching: &mut Fetching,
    ) -> Frames {
        let start = index.range(first).map_or(0, |range| range.start);
        let is_next = |frame: usize| {
            let is_near = index
                .range(frame)
                .is_some_and(|range| range.end - start <= most);
            let mut chunks = self
                .by_place
                .get(self.within(pack, index.contents(frame)))
                .unwrap_or_default()
                .iter();
            is_near
                && !fetching.frames.contains(&(pack, frame))
                && chunks
                    .any(|number| is_wanted(*number as usize) && !self.is_here(*number as usize))
        };
        let mut end = first + 1;
        while is_next(end) {
            end += 1;
        }
        fetching
            .frames
            .extend((first..end).map(|frame| (pack, frame)));
        Frames::new(self, pack, index, first..end)
    }

    /// Writes a chunk to its place.
    fn keep(&self, number: usize, entry: &Entry, bytes: &[u8]) -> io::Result<()> {
        if self.state(number) != HERE {
            self.file.write_all_at(bytes, self.map.range(entry).start)?;
            self.set_here(number);
        }
        Ok(())
    }

    /// Returns a chunk that another file here has.
    fn local(&self, entry: &Entry) -> Option<Vec<u8>> {
        let range = self.map.range(entry);
        let bytes = self.packs.local(&entry.sha256, range.end - range.start)?;
        is_of(entry, &bytes).then_some(bytes)
    }

    /// Returns the frame that a chunk is in, with its pack's index.
    fn frame(&self, entry: &Entry) -> io::Result<(Arc<Index>, usize)> {
        let index = self.packs.index(entry.pack)?;
        let range = self.map.range(entry);
        // `Map` checks that it is a number.
        let end = entry.offset + (range.end - range.start);
        let frame = index.find(entry.offset).filter(|frame| {
            let contents = index.contents(*frame);
            contents.is_some_and(|contents| end <= contents.end)
        });
        let lies = || wrong("a map names bytes that it does not have in one frame".to_owned());
        let frame = frame.ok_or_else(lies)?;
        Ok((index, frame))
    }

    /// Returns the chunks that begin in some bytes of what a pack contains, in the order of packs.
    fn within(&self, pack: u32, contents: Option<Range<u64>>) -> Range<usize> {
        let contents = contents.unwrap_or_default();
        let entries = self.map.entries();
        let before = |offset: u64| {
            self.by_place.partition_point(|number| {
                let entry = entries.get(*number as usize);
                entry.is_some_and(|entry| (entry.pack, entry.offset) < (pack, offset))
            })
        };
        before(contents.start)..before(contents.end)
    }

    fn entry(&self, number: usize) -> io::Result<&Entry> {
        let entry = self.map.entries().get(number);
        entry.ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }

    fn state(&self, number: usize) -> u8 {
        let state = self.states.get(number);
        state.map_or(MISSING, |state| state.load(Ordering::Acquire))
    }

    /// Notes that a chunk is here.
    fn set_here(&self, number: usize) {
        let state = self.states.get(number);
        if state.is_some_and(|state| state.swap(HERE, Ordering::AcqRel) != HERE) {
            self.present.fetch_add(CHUNK, Ordering::Relaxed);
        }
    }

    /// Notes that a chunk is missing, unless more was found out since it was `known`: another thread may have been writing
    /// it while it was read.
    fn lose(&self, number: usize, known: u8) {
        let (order, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        let state = self.states.get(number);
        let lost = state.is_some_and(|state| {
            state
                .compare_exchange(known, MISSING, order, failed)
                .is_ok()
        });
        if lost && known == HERE {
            self.present.fetch_sub(CHUNK, Ordering::Relaxed);
        }
    }
}

impl ReadAt for PartFile {
    fn read_exact_at(&self, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
        let parts = &self.0;
        let end = offset.checked_add(buffer.len() as u64);
        if end.is_none_or(|end| end > parts.map.size()) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        while !buffer.is_empty() {
            let number = offset / CHUNK;
            let within = (offset - number * CHUNK) as usize;
            let count = buffer.len().min(CHUNK as usize - within);
            let (part, rest) = buffer.split_at_mut(count);
            let entries = parts.map.entries();
            match entries.binary_search_by_key(&number, |entry| entry.number.into()) {
                Ok(entry) => {
                    let chunk = parts.chunk(entry)?;
                    let bytes = chunk.get(within..within + count);
                    part.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
                }
                Err(_) => part.fill(0),
            }
            (buffer, offset) = (rest, offset + count as u64);
        }
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.0.map.size())
    }
}

impl fmt::Debug for PartFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartFile")
            .field("size", &self.0.map.size())
            .field("chunks", &self.0.states.len())
            .finish_non_exhaustive()
    }
}

fn place(entry: &Entry) -> (u32, u64, u32) {
    (entry.pack, entry.offset, entry.number)
}

/// Returns whether bytes are the chunk's.
fn is_of(entry: &Entry, bytes: &[u8]) -> bool {
    Sha256::digest(bytes)[..] == entry.sha256[..]
}

fn wrong(problem: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}
