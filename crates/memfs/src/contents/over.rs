//! Reads contents of which some are in memory and some show from the lower.

use std::ops::Range;

use rustix::io::Errno;

use super::Contents;
use super::below::Below;
use super::pieces::push;
use super::span::{PAGE, Span, spans};
use crate::Result;

/// A piece of what a range reads as.
enum Piece<'a> {
    /// Bytes in memory, and zeros up to a length.
    Memory(&'a [u8], usize),
    Zeros(usize),
    /// Bytes of the lower.
    Lower(Range<u64>),
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
