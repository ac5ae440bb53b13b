//! Reads an image whose blob is not all here.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use micabox_erofs::ReadAt;
use micabox_pack::Recent;

use crate::blob::Blob;
use crate::inflate::Inflaters;
use crate::order::Recorder;

/// Packed bytes that are asked for at once for one chunk that is missing: as long as they take on a line of 100 Mbit/s,
/// an answer takes anyway.
const ONCE: u64 = 256 << 10;

/// The most, once chunks that follow each other are read.
const AHEAD: u64 = 2 << 20;

/// Chunks that are kept inflated: a chunk has several pages.
const KEPT: usize = 16;

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
    inflated: Recent<usize>,
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
            inflated: Recent::new(KEPT),
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
        if let Some(bytes) = self.blob.packed(number)? {
            return Ok(bytes);
        }
        self.bring(number)?;
        let bytes = self.blob.packed(number)?;
        bytes.ok_or_else(|| io::Error::other(format!("chunk {number} is not kept by the disk")))
    }

    /// Fetches a chunk and some of those that follow it, unless another thread does.
    fn bring(&self, number: usize) -> io::Result<()> {
        let run = {
            let mut fetching = lock(&self.fetching);
            let mut waited = false;
            while fetching.chunks.contains(&number) {
                waited = true;
                fetching = self
                    .fetched
                    .wait(fetching)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            if waited && self.blob.seems_here(number) {
                return Ok(());
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
        self.fetch(run)
    }

    /// Fetches the first chunks that are missing, from one on, and that no other thread fetches. Returns the chunk behind
    /// them; none if there are no more.
    ///
    /// # Errors
    ///
    /// Those of [`Fetch::fetch`]; [`io::ErrorKind::InvalidData`] for other bytes.
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
        let run = {
            let mut fetching = lock(&self.fetching);
            let is_missing = |number: &usize| {
                !fetching.chunks.contains(number) && !self.blob.seems_here(*number)
            };
            let Some(number) = numbers.clone().find(is_missing) else {
                return Ok(None);
            };
            let run = self.run(number, AHEAD, &fetching);
            let run = run.start..run.end.min(numbers.end);
            fetching.chunks.extend(run.clone());
            run
        };
        let end = run.end;
        self.fetch(run).map(|()| Some(end))
    }

    /// Returns the chunks to fetch with one: those behind it that are missing, of at most so many bytes in all.
    fn run(&self, first: usize, most: u64, fetching: &Fetching) -> Range<usize> {
        let mut end = first + 1;
        let is_wanted = |end: usize| {
            end < self.blob.index().len()
                && !fetching.chunks.contains(&end)
                && !self.blob.seems_here(end)
                && self
                    .blob
                    .span(&(first..end + 1))
                    .is_ok_and(|span| span.end - span.start <= most)
        };
        while is_wanted(end) {
            end += 1;
        }
        first..end
    }

    /// Fetches chunks that this thread has noted as being fetched.
    fn fetch(&self, numbers: Range<usize>) -> io::Result<()> {
        let fetched = self.blob.span(&numbers).and_then(|span| {
            let bytes = self.source.fetch(span.clone())?;
            if bytes.len() as u64 != span.end - span.start {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.blob.keep(numbers.clone(), &bytes)
        });
        let mut fetching = lock(&self.fetching);
        numbers.for_each(|number| _ = fetching.chunks.remove(&number));
        drop(fetching);
        self.fetched.notify_all();
        fetched
    }

    fn inflated(&self, number: usize, length: u64) -> io::Result<Arc<Vec<u8>>> {
        self.inflated.get(number, || {
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

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image")
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}
