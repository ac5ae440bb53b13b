//! What shows of a file of the lower: the parts that were neither cut off nor made holes, where no
//! page is in memory.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;

use super::{Contents, PAGE, PAGE_BYTES, Span, push, spans};
use crate::Result;
use crate::lower::Lower;
use crate::room::Room;

/// Bytes of the room that each part takes, but the first: a file can be made to show many.
const PART: u64 = 64;

/// A file of the lower.
#[derive(Debug)]
pub(super) struct Below {
    lower: Arc<dyn Lower>,
    file: u64,
    size: u64,
    /// Blocks of 512 bytes that it takes there.
    blocks: u64,
    /// Parts that show, ascending, none empty, with a gap between two.
    shown: Vec<Range<u64>>,
    /// Parts that are not holes there, in the same manner; known once they are asked for.
    data: OnceLock<Vec<Range<u64>>>,
}

/// A piece of what a range reads as.
enum Piece<'a> {
    /// Bytes in memory, and zeros up to a length.
    Memory(&'a [u8], usize),
    Zeros(usize),
    /// Bytes of the lower.
    Lower(Range<u64>),
}

impl Below {
    pub(super) fn new(lower: Arc<dyn Lower>, file: u64, size: u64, blocks: u64) -> Self {
        Self {
            lower,
            file,
            size,
            blocks,
            shown: std::iter::once(0..size).collect(),
            data: OnceLock::new(),
        }
    }

    /// Returns how many blocks of 512 bytes show.
    pub(super) fn blocks(&self) -> u64 {
        if let [part] = &*self.shown
            && *part == (0..self.size)
        {
            return self.blocks;
        }
        let pages = self.shown.iter().map(|part| {
            let length = part.end - part.start;
            length.div_ceil(PAGE_BYTES)
        });
        let pages = pages.fold(0_u64, u64::saturating_add);
        self.blocks.min(pages.saturating_mul(PAGE_BYTES / 512))
    }

    /// Returns whether nothing shows any more.
    pub(super) fn is_hidden(&self) -> bool {
        self.shown.is_empty()
    }

    fn cost(&self) -> u64 {
        (self.shown.len() as u64).saturating_sub(1) * PART
    }

    /// Gives back what the parts take.
    pub(super) fn clear(&self, room: &Room) {
        room.give_bytes(self.cost());
    }

    /// Hides a range. It takes room if something shows on both sides.
    pub(super) fn hide(&mut self, from: u64, to: u64, room: &Room) -> Result<()> {
        let first = self.shown.partition_point(|part| part.end <= from);
        let end = self.shown.partition_point(|part| part.start < to);
        let Some(parts) = self.shown.get(first..end) else {
            return Ok(());
        };
        let (Some(head), Some(tail)) = (parts.first(), parts.last()) else {
            return Ok(());
        };
        let left = [head.start..from, to..tail.end];
        let left = left.into_iter().filter(|part| part.start < part.end);
        let left: Vec<_> = left.collect();
        let before = self.cost();
        if left.len() > parts.len() {
            room.take_bytes(PART)?;
            self.shown.splice(first..end, left);
        } else {
            self.shown.splice(first..end, left);
            room.give_bytes(before - self.cost());
        }
        Ok(())
    }

    /// Returns the parts of a range that show.
    fn shown_in(&self, from: u64, to: u64) -> impl Iterator<Item = Range<u64>> {
        let first = self.shown.partition_point(|part| part.end <= from);
        let parts = self.shown.iter().skip(first);
        let parts = parts.take_while(move |part| part.start < to);
        parts.map(move |part| part.start.max(from)..part.end.min(to))
    }

    /// Fills a buffer from an offset on. A file that is shorter than its size is damaged.
    fn read(&self, mut offset: u64, mut buffer: &mut [u8]) -> Result<()> {
        while !buffer.is_empty() {
            let count = self.lower.read(self.file, offset, buffer)?;
            if count == 0 {
                return Err(Errno::IO);
            }
            buffer = buffer.get_mut(count..).ok_or(Errno::IO)?;
            offset += count as u64;
        }
        Ok(())
    }

    /// Returns what shows of the page at an offset, up to the last byte that does.
    fn page(&self, offset: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        for part in self.shown_in(offset, offset.saturating_add(PAGE_BYTES)) {
            let [start, end] = [part.start, part.end].map(|at| (at - offset) as usize);
            bytes.resize(end, 0);
            self.read(part.start, bytes.get_mut(start..end).unwrap_or_default())?;
        }
        Ok(bytes)
    }

    /// Returns the parts that are not holes in the lower.
    fn data(&self) -> Result<&[Range<u64>]> {
        if let Some(data) = self.data.get() {
            return Ok(data);
        }
        let segments = self.lower.segments(self.file)?.into_iter();
        let mut all: Vec<_> = segments
            .map(|segment| segment.offset..segment.end().min(self.size))
            .filter(|part| part.start < part.end)
            .collect();
        all.sort_unstable_by_key(|part| part.start);
        all.dedup_by(|next, part| {
            let touches = next.start <= part.end;
            if touches {
                part.end = part.end.max(next.end);
            }
            touches
        });
        Ok(self.data.get_or_init(|| all))
    }

    /// Returns the first part with data that shows and ends behind an offset.
    fn data_behind(&self, offset: u64) -> Result<Option<Range<u64>>> {
        let data = self.data()?;
        let first = data.partition_point(|part| part.end <= offset);
        for part in data.iter().skip(first) {
            let shown = self.shown_in(part.start.max(offset), part.end).next();
            if shown.is_some() {
                return Ok(shown);
            }
        }
        Ok(None)
    }
}

impl Contents {
    /// Returns the bytes of a range that ends within the file, in pieces. `buffer` gets those of the lower.
    pub(super) fn read_over<'a>(
        &'a self,
        below: &Below,
        from: u64,
        to: u64,
        buffer: &'a mut Vec<u8>,
    ) -> Result<Vec<&'a [u8]>> {
        let pieces = self.pieces(below, from, to);
        let lengths = pieces.iter().map(|piece| match piece {
            Piece::Lower(part) => (part.end - part.start) as usize,
            _ => 0,
        });
        buffer.resize(lengths.sum(), 0);
        let mut rest = &mut buffer[..];
        for piece in &pieces {
            if let Piece::Lower(part) = piece {
                let length = (part.end - part.start) as usize;
                let (place, more) = rest.split_at_mut_checked(length).ok_or(Errno::IO)?;
                below.read(part.start, place)?;
                rest = more;
            }
        }
        let mut rest = &buffer[..];
        let mut all = Vec::with_capacity(pieces.len());
        for piece in pieces {
            match piece {
                Piece::Memory(bytes, length) => push(&mut all, bytes, length),
                Piece::Zeros(length) => push(&mut all, &[], length),
                Piece::Lower(part) => {
                    let length = (part.end - part.start) as usize;
                    let (bytes, more) = rest.split_at_checked(length).ok_or(Errno::IO)?;
                    all.push(bytes);
                    rest = more;
                }
            }
        }
        Ok(all)
    }

    fn pieces<'a>(&'a self, below: &Below, from: u64, to: u64) -> Vec<Piece<'a>> {
        let mut pieces = Vec::new();
        for (span, from, to) in spans(from, to) {
            let chunk = self.chunk(span);
            let is_there = |at: usize| chunk.is_some_and(|chunk| chunk.has(at / PAGE));
            let mut at = from;
            while at < to {
                let start = at;
                let is_memory = is_there(at);
                while at < to && is_there(at) == is_memory {
                    // Without a chunk no page is there.
                    at = match chunk {
                        Some(_) => to.min((at / PAGE + 1) * PAGE),
                        None => to,
                    };
                }
                match chunk.filter(|_| is_memory) {
                    Some(chunk) => {
                        pieces.push(Piece::Memory(chunk.bytes(start, at), at - start));
                    }
                    None => {
                        let [start, end] = [start, at].map(|at| span.start + at as u64);
                        add_shown(&mut pieces, below, start, end);
                    }
                }
            }
        }
        pieces
    }

    /// Returns what shows of the pages at both ends of a range of a span, where these are not in memory
    /// and get other bytes only in part; each with its place in the span.
    pub(super) fn edges(
        &self,
        below: &Below,
        span: Span,
        from: usize,
        to: usize,
    ) -> Result<Vec<(usize, Vec<u8>)>> {
        let (first, last) = (from / PAGE, to.saturating_sub(1) / PAGE);
        let head = (!from.is_multiple_of(PAGE) || first == last && !to.is_multiple_of(PAGE))
            .then_some(first);
        let tail = (first != last && !to.is_multiple_of(PAGE)).then_some(last);
        self.shown_pages(below, span, head.into_iter().chain(tail))
    }

    /// Returns what shows of all pages that a range of a span touches and that are not in memory.
    pub(super) fn raised(
        &self,
        below: &Below,
        span: Span,
        from: usize,
        to: usize,
    ) -> Result<Vec<(usize, Vec<u8>)>> {
        self.shown_pages(below, span, from / PAGE..to.div_ceil(PAGE))
    }

    fn shown_pages(
        &self,
        below: &Below,
        span: Span,
        pages: impl Iterator<Item = usize>,
    ) -> Result<Vec<(usize, Vec<u8>)>> {
        let chunk = self.chunk(span);
        let pages = pages.filter(|&page| !chunk.is_some_and(|chunk| chunk.has(page)));
        let pages = pages.map(|page| {
            let at = page * PAGE;
            Ok((at, below.page(span.start + at as u64)?))
        });
        // Zeros need not be written.
        let pages = pages.filter(|page| {
            let bytes = page.as_ref().map_or(&[1][..], |(_, bytes)| bytes);
            bytes.iter().any(|&byte| byte != 0)
        });
        pages.collect()
    }

    /// Returns the first byte from `offset` on that is data, in memory or below, or is not.
    pub(super) fn seek_over(&self, below: &Below, offset: u64, data: bool) -> Result<u64> {
        let mut at = offset;
        if data {
            let part = below.data_behind(at)?;
            let part = part.map(|part| part.start.max(at));
            let page = self.seek_in_memory(at, true).ok();
            return part.into_iter().chain(page).min().ok_or(Errno::NXIO);
        }
        while at < self.size {
            let behind = self.seek_in_memory(at, false)?;
            if behind > at {
                at = behind;
                continue;
            }
            match below.data_behind(at)? {
                Some(part) if part.start <= at => at = part.end,
                _ => break,
            }
        }
        Ok(at.min(self.size))
    }
}

/// Adds what a range that is not in memory reads as.
fn add_shown(pieces: &mut Vec<Piece<'_>>, below: &Below, from: u64, to: u64) {
    let mut at = from;
    for part in below.shown_in(from, to) {
        if part.start > at {
            pieces.push(Piece::Zeros((part.start - at) as usize));
        }
        at = part.end;
        // Of neighbours, one is read.
        match pieces.last_mut() {
            Some(Piece::Lower(last)) if last.end == part.start => last.end = part.end,
            _ => pieces.push(Piece::Lower(part)),
        }
    }
    if at < to {
        pieces.push(Piece::Zeros((to - at) as usize));
    }
}
