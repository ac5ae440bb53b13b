//! Frames of packs while they come: the chunks of each are checked and can be read as soon as it is here.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use micabox_chunk::Index;
use micabox_ground::lock;

use super::{Parts, is_of};
use crate::asking::{Answer, Asked};

/// Bits of a place that are its offset in a pack, which is some gibibytes at most.
const OFFSET: u32 = 40;

/// Returns the place of a frame among those of all packs: two of different packs are not near each other.
pub(super) fn place(pack: u32, index: &Index, frame: usize) -> u64 {
    let start = index.range(frame).map_or(0, |range| range.start);
    (u64::from(pack) << OFFSET) + start
}

/// Frames of a pack that follow each other, which one thread fetches, and no other one until they are here or this is
/// dropped.
pub(super) struct Frames {
    of: Arc<Parts>,
    pack: u32,
    index: Arc<Index>,
    left: Range<usize>,
    is_of_reader: bool,
    /// None before it is asked for.
    answer: Option<Answer>,
}

/// A frame that came.
pub(super) struct Frame {
    /// The bytes of the chunk that it was asked for.
    pub(super) wanted: Option<Vec<u8>>,
    /// Whether its chunks are in their places, or why they are not.
    pub(super) kept: io::Result<()>,
}

impl Drop for Frames {
    fn drop(&mut self) {
        let mut fetching = lock(&self.of.fetching);
        for frame in self.left.clone() {
            fetching.frames.remove(&(self.pack, frame));
        }
        if self.is_of_reader {
            fetching.asked.end();
        }
        drop(fetching);
        self.of.fetched.notify_all();
    }
}

impl Frames {
    /// Takes frames that were claimed.
    pub(super) fn new(of: &Arc<Parts>, pack: u32, index: Arc<Index>, left: Range<usize>) -> Self {
        Self {
            of: Arc::clone(of),
            pack,
            index,
            left,
            is_of_reader: false,
            answer: None,
        }
    }

    /// Notes that a reader has asked for them, and for so many bytes at most.
    pub(super) fn of_reader(mut self, asked: &mut Asked, most: u64) -> Self {
        let last = self.index.range(self.left.end.saturating_sub(1));
        let end = last.map_or(0, |range| range.end);
        asked.begin((u64::from(self.pack) << OFFSET) + end, most);
        self.is_of_reader = true;
        self
    }

    /// Returns which of the pack's contents are in the last one.
    pub(super) fn last(&self) -> Option<Range<u64>> {
        self.index.contents(self.left.end.saturating_sub(1))
    }

    /// Returns whether none is left.
    pub(super) fn is_over(&self) -> bool {
        self.left.is_empty()
    }

    /// Begins to fetch them, which is done once.
    pub(super) fn begin(&mut self) -> io::Result<()> {
        let start = self.range(self.left.start)?.start;
        let end = self.range(self.left.end.saturating_sub(1))?.end;
        self.answer = Some(Answer::new(self.of.packs.fetch(self.pack, start..end)));
        Ok(())
    }

    /// Waits for the next frame, which is checked and inflated, and writes the chunks in it to their places; none at the
    /// end. A chunk with other bytes than the map says is not written, and an error if it is the one that is wanted.
    ///
    /// # Errors
    ///
    /// Those of [`Packs::fetch`](super::Packs::fetch); [`io::ErrorKind::InvalidData`] for other bytes than the index says.
    pub(super) fn next_frame(&mut self, wanted: Option<usize>) -> io::Result<Option<Frame>> {
        if self.is_over() {
            return Ok(None);
        }
        let (number, pack) = (self.left.start, self.pack);
        let range = self.range(number)?;
        let contents = self.index.contents(number);
        let contents = contents.ok_or(io::ErrorKind::InvalidInput)?;
        let answer = self.answer.as_mut().ok_or(io::ErrorKind::NotFound)?;
        let packed = answer.take((range.end - range.start) as usize)?;
        let of_pack =
            |problem: &dyn std::fmt::Display| answer.wrong(&format_args!("pack {pack}: {problem}"));
        let verified = self.index.verify(number, &packed);
        verified.map_err(|error| of_pack(&error))?;
        let length = contents.end - contents.start;
        let inflated = self.of.inflaters.inflate(&packed, length);
        let inflated = inflated.map_err(|error| of_pack(&error))?;
        let mut frame = Frame {
            wanted: None,
            kept: Ok(()),
        };
        let chunks = self.of.within(pack, Some(contents.clone()));
        for number in self.of.by_place.get(chunks).unwrap_or_default() {
            let number = *number as usize;
            let entry = self.of.entry(number)?;
            let from = (entry.offset - contents.start) as usize;
            let range = self.of.map.range(entry);
            let chunk = inflated.get(from..from + (range.end - range.start) as usize);
            let is_wanted = wanted == Some(number);
            match chunk.filter(|chunk| is_of(entry, chunk)) {
                Some(chunk) => {
                    frame.kept = frame.kept.and(self.of.keep(number, entry, chunk));
                    if is_wanted {
                        frame.wanted = Some(chunk.to_vec());
                    }
                }
                None if is_wanted => {
                    let at = range.start;
                    return Err(answer.wrong(&format_args!(
                        "the chunk at {at} has other bytes than its map says"
                    )));
                }
                None => {}
            }
        }
        self.left.start += 1;
        lock(&self.of.fetching).frames.remove(&(pack, number));
        self.of.fetched.notify_all();
        Ok(Some(frame))
    }

    fn range(&self, frame: usize) -> io::Result<Range<u64>> {
        let range = self.index.range(frame);
        range.ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }
}
