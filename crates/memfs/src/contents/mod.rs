//! The contents of one file: a list of chunks, of which those that were never written are not there.
//!
//! A chunk's size follows from its place: pages up to 64 KiB, then 64 KiB up to 1 MiB, then 1 MiB. So
//! a small file takes what it has, a large one few chunks, and nothing is copied as a file grows.

mod below;
mod chunk;
mod over;
mod pieces;
mod span;

use std::sync::Arc;

use rustix::io::Errno;

use crate::Result;
use crate::lower::Lower;
use crate::room::Room;
use below::Below;
use chunk::Chunk;
use pieces::push;
use span::{PAGE, PAGE_BYTES, Span, span, spans};

/// Largest size of a file (`MAX_LFS_FILESIZE`).
pub(crate) const SIZE_MAX: u64 = i64::MAX as u64;

/// The contents of a file.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    size: u64,
    /// By their place, in order.
    chunks: Vec<(u64, Chunk)>,
    /// Pages that are there.
    pages: u64,
    /// What shows where no page is.
    below: Option<Box<Below>>,
    /// Bytes that a program wrote had no room, since the file was last empty.
    is_torn: bool,
}

impl Contents {
    /// Returns the number of bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Makes the contents of a file of the lower.
    pub(crate) fn over(lower: Arc<dyn Lower>, file: u64, size: u64, blocks: u64) -> Self {
        let below = (size > 0).then(|| Box::new(Below::new(lower, file, size, blocks)));
        Self {
            size,
            below,
            ..Self::default()
        }
    }

    /// Returns how many blocks of 512 bytes are in memory and, as far as it shows, in the lower.
    pub(crate) fn blocks(&self) -> u64 {
        const BLOCKS: u64 = PAGE_BYTES / 512;
        let pages = self.pages * BLOCKS;
        match &self.below {
            None => pages,
            // Pages are there as well where they hide the lower's.
            Some(below) => {
                let most = self.size.div_ceil(PAGE_BYTES).saturating_mul(BLOCKS);
                let all = pages.saturating_add(below.blocks());
                all.min(most.max(below.blocks())).max(pages)
            }
        }
    }

    fn find(&self, span: Span) -> std::result::Result<usize, usize> {
        // Most files grow at their end.
        match self.chunks.last() {
            Some((start, _)) if *start < span.start => Err(self.chunks.len()),
            Some((start, _)) if *start == span.start => Ok(self.chunks.len() - 1),
            _ => self
                .chunks
                .binary_search_by_key(&span.start, |(start, _)| *start),
        }
    }

    fn chunk(&self, span: Span) -> Option<&Chunk> {
        let at = self.find(span).ok()?;
        self.chunks.get(at).map(|(_, chunk)| chunk)
    }

    /// Returns a chunk, which is made if it is not there.
    fn chunk_mut(&mut self, span: Span) -> Result<&mut Chunk> {
        let at = match self.find(span) {
            Ok(at) => at,
            Err(at) => {
                self.chunks.try_reserve(1).map_err(|_| Errno::NOMEM)?;
                self.chunks
                    .insert(at, (span.start, Chunk::new(span.length as usize)));
                at
            }
        };
        self.chunks
            .get_mut(at)
            .map(|(_, chunk)| chunk)
            .ok_or(Errno::IO)
    }

    /// Returns the bytes of a range, as far as the file goes, in pieces. `buffer` gets those of the lower.
    pub(crate) fn read<'a>(
        &'a self,
        offset: u64,
        count: u64,
        buffer: &'a mut Vec<u8>,
    ) -> Result<Vec<&'a [u8]>> {
        let end = offset.saturating_add(count).min(self.size);
        if let Some(below) = &self.below {
            return self.read_over(below, offset, end, buffer);
        }
        let mut pieces = Vec::new();
        for (span, from, to) in spans(offset, end) {
            let bytes = match self.chunk(span) {
                Some(chunk) => chunk.bytes(from, to),
                None => &[],
            };
            push(&mut pieces, bytes, to - from);
        }
        Ok(pieces)
    }

    /// Returns how many pages that a range touches are not there.
    fn missing(&self, from: u64, to: u64) -> u64 {
        let in_span = |(span, from, to): (Span, usize, usize)| {
            let pages = from / PAGE..to.div_ceil(PAGE);
            match self.chunk(span) {
                Some(chunk) => pages.filter(|&page| !chunk.has(page)).count(),
                None => pages.len(),
            }
        };
        spans(from, to).map(|part| in_span(part) as u64).sum()
    }

    /// Writes to pages that may be added, `granted` of them; returns the number of bytes written.
    fn put(&mut self, offset: u64, data: &[u8], mut granted: u64) -> Result<usize> {
        let mut written = 0;
        for (span, from, to) in spans(offset, offset.saturating_add(data.len() as u64)) {
            // Before the chunk is made: one without a page must not stay.
            let mut end = from;
            let chunk = self.chunk(span);
            while end < to {
                let page = end / PAGE;
                let is_there = chunk.is_some_and(|chunk| chunk.has(page));
                if !is_there {
                    if granted == 0 {
                        break;
                    }
                    granted -= 1;
                }
                end = to.min((page + 1) * PAGE);
            }
            if end == from {
                break;
            }
            let edges = match &self.below {
                Some(below) => self.edges(below, span, from, end)?,
                None => Vec::new(),
            };
            let added = self.missing(span.start + from as u64, span.start + end as u64);
            let chunk = self.chunk_mut(span)?;
            for page in from / PAGE..end.div_ceil(PAGE) {
                chunk.add(page);
            }
            for (at, bytes) in &edges {
                chunk.write(*at, bytes)?;
            }
            let piece = data
                .get(written..written + (end - from))
                .unwrap_or_default();
            chunk.write(from, piece)?;
            self.pages += added;
            written += piece.len();
            if end < to {
                break;
            }
        }
        Ok(written)
    }

    /// Writes bytes; as many as there is room for, unless all must fit.
    pub(crate) fn write(
        &mut self,
        offset: u64,
        data: &[u8],
        all: bool,
        room: &Room,
    ) -> Result<usize> {
        let end = offset.saturating_add(data.len() as u64);
        if end > SIZE_MAX {
            return Err(Errno::FBIG);
        }
        let missing = self.missing(offset, end);
        let granted = if all {
            room.take_bytes(missing * PAGE_BYTES)?;
            missing
        } else {
            room.take_units(missing, PAGE_BYTES)
        };
        let before = self.pages;
        let result = self.put(offset, data, granted);
        room.give_bytes((granted - (self.pages - before)) * PAGE_BYTES);
        let written = result?;
        if written == 0 && !data.is_empty() {
            return Err(Errno::NOSPC);
        }
        self.size = self.size.max(offset.saturating_add(written as u64));
        Ok(written)
    }

    /// Makes all pages of a range be there; the size stays.
    pub(crate) fn allocate(&mut self, offset: u64, count: u64, room: &Room) -> Result<()> {
        let end = offset.saturating_add(count);
        if end > SIZE_MAX {
            return Err(Errno::FBIG);
        }
        // Before pages are counted one by one: a range may be of any length.
        if count / PAGE_BYTES > self.pages + room.limits().bytes / PAGE_BYTES {
            return Err(Errno::NOSPC);
        }
        let missing = self.missing(offset, end);
        room.take_bytes(missing * PAGE_BYTES)?;
        let before = self.pages;
        let result = self.add_pages(offset, end);
        room.give_bytes((missing - (self.pages - before)) * PAGE_BYTES);
        result
    }

    fn add_pages(&mut self, offset: u64, end: u64) -> Result<()> {
        for (span, from, to) in spans(offset, end) {
            let raised = match &self.below {
                Some(below) => self.raised(below, span, from, to)?,
                None => Vec::new(),
            };
            let added = self.missing(span.start + from as u64, span.start + to as u64);
            let chunk = self.chunk_mut(span)?;
            for page in from / PAGE..to.div_ceil(PAGE) {
                chunk.add(page);
            }
            for (at, bytes) in &raised {
                chunk.write(*at, bytes)?;
            }
            self.pages += added;
        }
        Ok(())
    }

    /// Makes a range read as zeros: whole pages go, the rest is overwritten, and nothing shows of the lower.
    pub(crate) fn punch(&mut self, offset: u64, end: u64, room: &Room) -> Result<()> {
        if let Some(below) = &mut self.below {
            below.hide(offset, end, room)?;
            if below.is_hidden() {
                self.below = None;
            }
        }
        let before = self.pages;
        let mut gone = 0;
        let first = self
            .chunks
            .partition_point(|(start, _)| span(*start).end() <= offset);
        let mut is_any_empty = false;
        for (start, chunk) in self.chunks.iter_mut().skip(first) {
            let span = span(*start);
            if span.start >= end {
                break;
            }
            let (from, to) = span.part(offset, end);
            let (first_page, end_page) = (from.div_ceil(PAGE), to / PAGE);
            if first_page < end_page {
                chunk.zero(from, first_page * PAGE);
                chunk.zero(end_page * PAGE, to);
                gone += chunk.remove(first_page, end_page);
            } else {
                chunk.zero(from, to);
            }
            is_any_empty |= first_page < end_page && may_be_empty(chunk);
        }
        self.pages = before - gone;
        room.give_bytes(gone * PAGE_BYTES);
        if is_any_empty {
            // A single page is there if its chunk is: it goes if all of it was taken away.
            self.chunks.retain(|(start, chunk)| {
                let span = span(*start);
                let is_all = offset <= span.start && span.end() <= end;
                let is_page = span.length == PAGE_BYTES;
                !(is_page && is_all || !is_page && chunk.count() == 0)
            });
        }
        Ok(())
    }

    /// Sets the size. What is behind it goes; what comes before it reads as zeros.
    pub(crate) fn truncate(&mut self, size: u64, room: &Room) -> Result<()> {
        if size > SIZE_MAX {
            return Err(Errno::FBIG);
        }
        // Also pages that were allocated behind the end; a file that grows keeps those.
        if size <= self.size {
            self.punch(size, u64::MAX, room)?;
        }
        self.size = size;
        self.is_torn &= size > 0;
        Ok(())
    }

    /// Notes that bytes which a program wrote had no room.
    pub(crate) fn tear(&mut self) {
        self.is_torn = true;
    }

    /// Returns whether bytes that a program wrote are missing.
    pub(crate) fn is_torn(&self) -> bool {
        self.is_torn
    }

    /// Makes the file at least this long.
    pub(crate) fn extend(&mut self, size: u64) {
        self.size = self.size.max(size);
    }

    /// Returns the first byte from `offset` on whose page was written, or was not. The end of the file is a
    /// hole.
    pub(crate) fn seek(&self, offset: u64, data: bool) -> Result<u64> {
        if offset >= self.size {
            return Err(Errno::NXIO);
        }
        match &self.below {
            Some(below) => self.seek_over(below, offset, data),
            None => self.seek_in_memory(offset, data),
        }
    }

    /// Does so for what is in memory.
    fn seek_in_memory(&self, offset: u64, data: bool) -> Result<u64> {
        let mut at = offset;
        let first = self
            .chunks
            .partition_point(|(start, _)| span(*start).end() <= offset);
        for (start, chunk) in self.chunks.iter().skip(first) {
            let span = span(*start);
            if span.start >= self.size {
                break;
            }
            if span.start > at && !data {
                return Ok(at);
            }
            let (from, to) = span.part(at.max(span.start), self.size);
            let pages = from / PAGE..to.div_ceil(PAGE);
            let found = pages
                .into_iter()
                .find(|&page| chunk.is_written(page) == data);
            if let Some(page) = found {
                return Ok((span.start + (page * PAGE) as u64).max(at));
            }
            at = span.end();
        }
        if data {
            return Err(Errno::NXIO);
        }
        Ok(at.min(self.size))
    }

    /// Gives back all that the contents take.
    pub(crate) fn clear(&mut self, room: &Room) {
        room.give_bytes(self.pages * PAGE_BYTES);
        if let Some(below) = &self.below {
            below.clear(room);
        }
        *self = Self::default();
    }
}

/// Returns whether a chunk may have lost its last page.
fn may_be_empty(chunk: &Chunk) -> bool {
    matches!(chunk, Chunk::Page(_)) || chunk.count() == 0
}
