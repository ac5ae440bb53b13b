//! Reads an image whose blob is not all here.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use micabox_erofs::ReadAt;
use micabox_ground::lock;

use crate::blob::Blob;
use crate::inflate::Inflaters;
use crate::order::Recorder;

/// Packed bytes that are asked for at once for one chunk that is missing: as long as they take on a line of 100 Mbit/s,
/// an answer takes anyway.
const ONCE: u64 = 256 << 10;

/// The most, once chunks that follow each other are read.
const AHEAD: u64 = 2 << 20;

/// The number of the next image.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Where missing bytes of blobs come from.
pub trait Fetch: Send + Sync {
    /// Returns these bytes of the blob. They need not be checked.
    ///
    /// # Errors
    ///
    /// They can't be had; the text says from where, and why.
    fn fetch(&self, range: Range<u64>) -> io::Result<Vec<u8>>;
}

/// An image that is read from its blob.
pub struct Image {
    blob: Blob,
    /// Bytes of the image, without what follows it in the blob.
    length: u64,
    source: Box<dyn Fetch>,
    inflaters: Arc<Inflaters>,
    fetching: Mutex<Fetching>,
    fetched: Condvar,
    /// Distinguishes it from others with the same inflaters.
    id: u64,
    /// What notes reads, and the number under which this image is noted.
    recorder: Option<(usize, Arc<Recorder>)>,
}

/// What is being fetched.
#[derive(Default)]
struct Fetching {
    chunks: BTreeSet<usize>,
    /// The chunk behind those that were asked for last, and how many bytes they were.
    next: usize,
    bytes: u64,
}

impl Image {
    /// Makes an image of the first `length` bytes of what is in a blob.
    pub fn new(
        blob: Blob,
        length: u64,
        source: Box<dyn Fetch>,
        inflaters: &Arc<Inflaters>,
    ) -> Self {
        Self {
            length: length.min(blob.index().size()),
            blob,
            source,
            inflaters: Arc::clone(inflaters),
            fetching: Mutex::default(),
            fetched: Condvar::new(),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            recorder: None,
        }
    }

    /// Returns the same image, whose reads are noted as those of this layer.
    #[must_use]
    pub fn recorded(mut self, layer: usize, recorder: &Arc<Recorder>) -> Self {
        self.recorder = Some((layer, Arc::clone(recorder)));
        self
    }

    /// Returns the blob.
    pub fn blob(&self) -> &Blob {
        &self.blob
    }

    /// Returns a chunk's bytes in the blob, which are fetched if they are not here.
    fn packed(&self, number: usize) -> io::Result<Vec<u8>> {
        loop {
            if let Some(bytes) = self.blob.packed(number)? {
                return Ok(bytes);
            }
            // Where another thread has fetched it, it is here now, or that has failed.
            if let Some(bytes) = self.bring(number)? {
                return Ok(bytes);
            }
        }
    }

    /// Fetches a chunk and some of those that follow it, unless another thread does, for which it waits. Returns the
    /// chunk's bytes if they were fetched.
    fn bring(&self, number: usize) -> io::Result<Option<Vec<u8>>> {
        let run = {
            let mut fetching = lock(&self.fetching);
            if fetching.chunks.contains(&number) {
                while fetching.chunks.contains(&number) {
                    fetching = lock::ignore_poison(self.fetched.wait(fetching));
                }
                return Ok(None);
            }
            if self.blob.is_here(number) {
                return Ok(None);
            }
            let most = if fetching.next == number {
                (fetching.bytes * 2).clamp(ONCE, AHEAD)
            } else {
                ONCE
            };
            let run = self.run(number, most, &fetching);
            fetching.chunks.extend(run.clone());
            (fetching.next, fetching.bytes) = (run.end, most);
            run
        };
        let (bytes, kept) = self.fetch(run)?;
        // What is read need not be kept: the disk may be full.
        drop(kept);
        Ok(Some(bytes))
    }

    /// Fetches the first chunks that are missing, from one on, and that no other thread fetches. Returns the chunk behind
    /// them; none if there are no more.
    ///
    /// # Errors
    ///
    /// Those of [`Fetch::fetch`], and of keeping them; [`io::ErrorKind::InvalidData`] for other bytes.
    pub fn fill(&self, from: usize) -> io::Result<Option<usize>> {
        self.fetch_first(from..self.blob.index().len())
    }

    /// Fetches those of some chunks that are missing, and that no other thread fetches.
    ///
    /// # Errors
    ///
    /// As for [`Image::fill`].
    pub fn prefetch(&self, numbers: Range<usize>) -> io::Result<()> {
        let end = numbers.end.min(self.blob.index().len());
        let mut from = numbers.start;
        while let Some(after) = self.fetch_first(from..end)? {
            from = after;
        }
        Ok(())
    }

    /// Fetches the first of some chunks that are missing. Returns the chunk behind them; none if none was missing.
    fn fetch_first(&self, numbers: Range<usize>) -> io::Result<Option<usize>> {
        let mut from = numbers.start;
        let run = loop {
            // Not with the lock: what is here may be read for that.
            let Some(number) = (from..numbers.end).find(|number| !self.blob.is_here(*number))
            else {
                return Ok(None);
            };
            let mut fetching = lock(&self.fetching);
            if fetching.chunks.contains(&number) || self.blob.is_here(number) {
                from = number + 1;
                continue;
            }
            let run = self.run(number, AHEAD, &fetching);
            let run = run.start..run.end.min(numbers.end);
            fetching.chunks.extend(run.clone());
            break run;
        };
        let start = run.start;
        let (_, kept) = self.fetch(run)?;
        kept.map(|count| Some(start + count))
    }

    /// Returns the chunks to fetch with one: those behind it that are missing, of at most so many bytes in all.
    fn run(&self, first: usize, most: u64, fetching: &Fetching) -> Range<usize> {
        let mut end = first + 1;
        let is_wanted = |end: usize| {
            end < self.blob.index().len()
                && !fetching.chunks.contains(&end)
                && self
                    .blob
                    .span(&(first..end + 1))
                    .is_ok_and(|span| span.end - span.start <= most)
                && !self.blob.is_here(end)
        };
        while is_wanted(end) {
            end += 1;
        }
        first..end
    }

    /// Fetches chunks that this thread has noted as being fetched. Returns the first one's bytes, and how many of them are
    /// kept, or why they are not.
    fn fetch(&self, numbers: Range<usize>) -> io::Result<(Vec<u8>, io::Result<usize>)> {
        let fetched = self.blob.span(&numbers).and_then(|span| {
            let mut bytes = self.source.fetch(span.clone())?;
            if bytes.len() as u64 != span.end - span.start {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let count = self.blob.verify(&numbers, &bytes)?;
            let good = numbers.start..numbers.start + count;
            let kept = self.blob.keep(good, &bytes).map(|()| count);
            let first = self.blob.span(&(numbers.start..numbers.start + 1))?;
            bytes.truncate((first.end - first.start) as usize);
            Ok((bytes, kept))
        });
        let mut fetching = lock(&self.fetching);
        numbers.for_each(|number| _ = fetching.chunks.remove(&number));
        drop(fetching);
        self.fetched.notify_all();
        fetched
    }

    fn inflated(&self, number: usize, length: u64) -> io::Result<Arc<Vec<u8>>> {
        self.inflaters.recent.get((self.id, number), || {
            if let Some((layer, recorder)) = &self.recorder {
                recorder.note(*layer, number);
            }
            let packed = self.packed(number)?;
            self.inflaters.inflate(&packed, length)
        })
    }
}

impl ReadAt for Image {
    fn read_exact_at(&self, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buffer.is_empty() {
            let index = self.blob.index();
            let number = index.find(offset).filter(|_| offset < self.length);
            let number = number.ok_or(io::ErrorKind::UnexpectedEof)?;
            let contents = index.contents(number).ok_or(io::ErrorKind::UnexpectedEof)?;
            let bytes = self.inflated(number, contents.end - contents.start)?;
            let within = bytes.get((offset - contents.start) as usize..);
            let most = contents.end.min(self.length) - offset;
            let count = most.min(buffer.len() as u64) as usize;
            let found = within.and_then(|within| within.get(..count));
            let (now, later) = buffer.split_at_mut(count);
            now.copy_from_slice(found.ok_or(io::ErrorKind::InvalidData)?);
            buffer = later;
            offset += count as u64;
        }
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.length)
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image")
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}
