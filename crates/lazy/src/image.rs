//! Reads an image whose blob is not all here.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use micabox_erofs::ReadAt;

use crate::asking::{AHEAD, ONCE};
use crate::blob::Blob;
use crate::incoming::{Chunk, Fetch, Runs};
use crate::inflate::Inflaters;
use crate::order::Recorder;

/// The number of the next image.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// An image that is read from its blob.
pub struct Image {
    runs: Arc<Runs>,
    /// Bytes of the image, without what follows it in the blob.
    length: u64,
    inflaters: Arc<Inflaters>,
    /// Distinguishes it from others with the same inflaters.
    id: u64,
    /// What notes reads, and the number under which this image is noted.
    recorder: Option<(usize, Arc<Recorder>)>,
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
            runs: Arc::new(Runs::new(blob, source)),
            inflaters: Arc::clone(inflaters),
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
        self.runs.blob()
    }

    /// Returns a chunk's bytes in the blob, which are fetched if they are not here.
    fn packed(&self, number: usize) -> io::Result<Vec<u8>> {
        loop {
            if let Some(bytes) = self.blob().packed(number)? {
                return Ok(bytes);
            }
            // Where another thread has fetched it, it is here now, or that has failed.
            if let Some(bytes) = self.bring(number)? {
                return Ok(bytes);
            }
        }
    }

    /// Fetches a chunk, and some of those that follow it behind the caller's back, unless another thread does, for which
    /// it waits. Returns the chunk's bytes if they were fetched.
    fn bring(&self, number: usize) -> io::Result<Option<Vec<u8>>> {
        let Some(mut run) = self.runs.claim_for_reader(number)? else {
            return Ok(None);
        };
        // What is read need not be kept: the disk may be full.
        let first = run.next_chunk()?.map(|chunk| chunk.bytes);
        if !run.is_over() {
            let rest = move || while let Ok(Some(_)) = run.next_chunk() {};
            // Without a thread, they come when they are read.
            let _ = thread::Builder::new().name("fetch".into()).spawn(rest);
        }
        Ok(first)
    }

    /// Fetches the first chunks that are missing, from one on, and that no other thread fetches. Returns the chunk behind
    /// them; none if there are no more.
    ///
    /// # Errors
    ///
    /// Those of [`Fetch::fetch`], and of keeping them; [`io::ErrorKind::InvalidData`] for other bytes.
    pub fn fill(&self, from: usize) -> io::Result<Option<usize>> {
        self.fetch_first(from..self.blob().index().len(), AHEAD)
    }

    /// Fetches those of some chunks that are missing, and that no other thread fetches.
    ///
    /// # Errors
    ///
    /// As for [`Image::fill`].
    pub fn prefetch(&self, numbers: Range<usize>) -> io::Result<()> {
        let end = numbers.end.min(self.blob().index().len());
        let mut from = numbers.start;
        while let Some(after) = self.fetch_first(from..end, ONCE)? {
            from = after;
        }
        Ok(())
    }

    /// Fetches the first of some chunks that are missing, of at most so many packed bytes. Returns the chunk behind them;
    /// none if none was missing.
    fn fetch_first(&self, numbers: Range<usize>, most: u64) -> io::Result<Option<usize>> {
        let Some(mut run) = self.runs.claim_first(numbers, most)? else {
            return Ok(None);
        };
        let behind = run.end();
        while let Some(Chunk { kept, .. }) = run.next_chunk()? {
            kept?;
        }
        Ok(Some(behind))
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
            let index = self.blob().index();
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
