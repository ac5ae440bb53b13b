//! Chunks that are missing, while they come: each is checked and can be read as soon as it is here.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Condvar, Mutex};

use micabox_ground::lock;

use crate::asking::{Answer, Asked, Fetched};
use crate::blob::Blob;

/// Where missing bytes of blobs come from.
pub trait Fetch: Send + Sync {
    /// Begins to fetch these bytes of the blob. They come piece by piece in their order, and need not be checked. An error
    /// says from where they can't be had, and why; it is the last piece. Nothing more is fetched without a receiver.
    fn fetch(&self, range: Range<u64>) -> Receiver<io::Result<Fetched>>;
}

/// A blob, and what of it is being fetched.
pub(crate) struct Runs {
    blob: Blob,
    source: Box<dyn Fetch>,
    claimed: Mutex<Claimed>,
    /// A chunk came, or will not.
    news: Condvar,
}

/// What is being fetched.
#[derive(Default)]
struct Claimed {
    chunks: BTreeSet<usize>,
    asked: Asked,
}

impl Runs {
    pub(crate) fn new(blob: Blob, source: Box<dyn Fetch>) -> Self {
        Self {
            blob,
            source,
            claimed: Mutex::default(),
            news: Condvar::new(),
        }
    }

    pub(crate) fn blob(&self) -> &Blob {
        &self.blob
    }

    /// Begins to fetch a chunk that a reader waits for, and some of those that follow it. None if it is here, or another
    /// thread has fetched it meanwhile, for which this one has waited.
    pub(crate) fn claim_for_reader(self: &Arc<Self>, number: usize) -> io::Result<Option<Run>> {
        let mut claimed = lock(&self.claimed);
        if claimed.chunks.contains(&number) {
            while claimed.chunks.contains(&number) {
                claimed = lock::ignore_poison(self.news.wait(claimed));
            }
            return Ok(None);
        }
        if self.blob.is_here(number) {
            return Ok(None);
        }
        let place = self.blob.span(&(number..number + 1))?.start;
        let most = claimed.asked.ask(place);
        let numbers = self.run(number, most, &claimed);
        claimed.asked.begin(self.blob.span(&numbers)?.end, most);
        claimed.chunks.extend(numbers.clone());
        drop(claimed);
        self.begin(numbers, true).map(Some)
    }

    /// Begins to fetch the first of some chunks that are missing and that no other thread fetches, of at most so many
    /// packed bytes; none if there are none.
    pub(crate) fn claim_first(
        self: &Arc<Self>,
        numbers: Range<usize>,
        most: u64,
    ) -> io::Result<Option<Run>> {
        let mut from = numbers.start;
        let run = loop {
            // Not with the lock: what is here may be read for that.
            let Some(number) = (from..numbers.end).find(|number| !self.blob.is_here(*number))
            else {
                return Ok(None);
            };
            let mut claimed = lock(&self.claimed);
            if claimed.chunks.contains(&number) || self.blob.is_here(number) {
                from = number + 1;
                continue;
            }
            let run = self.run(number, most, &claimed);
            let run = run.start..run.end.min(numbers.end);
            claimed.chunks.extend(run.clone());
            break run;
        };
        self.begin(run, false).map(Some)
    }

    /// Returns the chunks to fetch with one: those behind it that are missing, of at most so many bytes in all.
    fn run(&self, first: usize, most: u64, claimed: &Claimed) -> Range<usize> {
        let mut end = first + 1;
        let is_wanted = |end: usize| {
            end < self.blob.index().len()
                && !claimed.chunks.contains(&end)
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

    /// Begins to fetch chunks that were claimed.
    fn begin(self: &Arc<Self>, left: Range<usize>, is_of_reader: bool) -> io::Result<Run> {
        let span = self.blob.span(&left);
        let mut run = Run {
            of: Arc::clone(self),
            left,
            is_of_reader,
            answer: None,
        };
        run.answer = Some(Answer::new(self.source.fetch(span?)));
        Ok(run)
    }
}

/// A chunk that came.
pub(crate) struct Chunk {
    /// Its bytes in the blob.
    pub(crate) bytes: Vec<u8>,
    /// Whether they are kept there, or why they are not.
    pub(crate) kept: io::Result<()>,
}

/// Chunks that follow each other, which one thread fetches, and no other one until they are here or this is dropped.
pub(crate) struct Run {
    of: Arc<Runs>,
    left: Range<usize>,
    is_of_reader: bool,
    /// None before it is asked for.
    answer: Option<Answer>,
}

impl Run {
    /// Returns the number of the chunk behind its last one.
    pub(crate) fn end(&self) -> usize {
        self.left.end
    }

    /// Returns whether no chunk of it is left.
    pub(crate) fn is_over(&self) -> bool {
        self.left.is_empty()
    }

    /// Waits for the next chunk, which is checked and kept in the blob; none at the end.
    ///
    /// # Errors
    ///
    /// Those of [`Fetch::fetch`]; [`io::ErrorKind::InvalidData`] for other bytes than the index says.
    pub(crate) fn next_chunk(&mut self) -> io::Result<Option<Chunk>> {
        if self.is_over() {
            return Ok(None);
        }
        let number = self.left.start;
        let chunk = number..number + 1;
        let blob = &self.of.blob;
        let span = blob.span(&chunk)?;
        let answer = self.answer.as_mut().ok_or(io::ErrorKind::NotFound)?;
        let bytes = answer.take((span.end - span.start) as usize)?;
        let verified = blob.verify(&chunk, &bytes);
        verified.map_err(|error| answer.wrong(&error))?;
        let kept = blob.keep(chunk, &bytes);
        self.left.start += 1;
        lock(&self.of.claimed).chunks.remove(&number);
        self.of.news.notify_all();
        Ok(Some(Chunk { bytes, kept }))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let mut claimed = lock(&self.of.claimed);
        for number in self.left.clone() {
            claimed.chunks.remove(&number);
        }
        if self.is_of_reader {
            claimed.asked.end();
        }
        drop(claimed);
        self.of.news.notify_all();
    }
}
