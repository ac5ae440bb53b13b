//! Where a file's chunks are: spans of pages, whose length follows from their place.

/// Bytes of a page: what is counted, and the unit of holes.
pub(super) const PAGE: usize = 4096;
pub(super) const PAGE_BYTES: u64 = PAGE as u64;

/// A chunk's place: its start in the file and its length.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) start: u64,
    pub(super) length: u64,
}

impl Span {
    pub(super) fn end(self) -> u64 {
        self.start.saturating_add(self.length)
    }

    /// Returns the part of the range from `from` to `to` that is in the span, from its start.
    pub(super) fn part(self, from: u64, to: u64) -> (usize, usize) {
        let within = |at: u64| (at.clamp(self.start, self.end()) - self.start) as usize;
        (within(from), within(to))
    }
}

/// Returns the span that a byte is in.
pub(super) fn span(offset: u64) -> Span {
    let length = match offset {
        0..0x1_0000 => PAGE_BYTES,
        0x1_0000..0x10_0000 => 64 << 10,
        _ => 1 << 20,
    };
    Span {
        start: offset / length * length,
        length,
    }
}

/// Returns the spans that a range touches, each with the part of the range in it.
pub(super) fn spans(from: u64, to: u64) -> impl Iterator<Item = (Span, usize, usize)> {
    let first = (from < to).then(|| span(from));
    let next = move |last: &Span| (last.end() < to).then(|| span(last.end()));
    std::iter::successors(first, next).map(move |span| {
        let (start, end) = span.part(from, to);
        (span, start, end)
    })
}
