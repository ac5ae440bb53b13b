//! A part of a file in memory.

use std::sync::atomic::{AtomicUsize, Ordering};

use memmap2::{Advice, MmapMut};
use rustix::io::Errno;

use super::span::PAGE;
use crate::Result;

/// Most chunks that have a mapping of their own; others are on the heap. The kernel allows a process
/// 65,530 mappings, and beyond that fails to give one back.
const MAPPINGS: usize = 30_000;

/// Smallest range that is populated in one call, in bytes.
const AT_ONCE: usize = 16 * PAGE;

/// Bytes that a page's length is rounded up to.
const GRAIN: usize = 64;

static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// The bytes of one span ([`super::span::span`]).
#[derive(Debug)]
pub(super) enum Chunk {
    /// A page, of which the bytes behind its end are zeros. One that was not written has none.
    Page(Box<[u8]>),
    /// Several pages, some of which are there.
    Pages(Box<Pages>),
}

/// Several pages.
#[derive(Debug)]
pub(super) struct Pages {
    /// Zeros where no page is there.
    memory: Memory,
    /// A bit for each page that is there.
    present: Bits,
    /// A bit for each of them that was written.
    written: Bits,
}

/// A bit for each page of the largest chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bits([u64; 4]);

impl Bits {
    fn has(self, page: usize) -> bool {
        let word = self.0.get(page / 64).copied().unwrap_or_default();
        word >> (page % 64) & 1 != 0
    }

    fn set(&mut self, page: usize, is_set: bool) {
        if let Some(word) = self.0.get_mut(page / 64) {
            *word = *word & !(1 << (page % 64)) | u64::from(is_set) << (page % 64);
        }
    }

    fn count(self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }
}

/// Zeroed memory.
#[derive(Debug)]
enum Memory {
    /// Goes back to the system when it is dropped; takes nothing where it was not written.
    Mapped(MmapMut),
    Heap(Box<[u8]>),
}

impl Memory {
    fn zeroed(length: usize) -> Self {
        if MAPPED.fetch_add(1, Ordering::Relaxed) < MAPPINGS
            && let Ok(mapping) = MmapMut::map_anon(length)
        {
            return Self::Mapped(mapping);
        }
        MAPPED.fetch_sub(1, Ordering::Relaxed);
        Self::Heap(vec![0; length].into_boxed_slice())
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Mapped(mapping) => mapping,
            Self::Heap(bytes) => bytes,
        }
    }

    /// Populates the pages of a range that is about to be written, in one call and not as each is
    /// reached.
    fn populate(&self, from: usize, to: usize) {
        if let Self::Mapped(mapping) = self
            && to - from >= AT_ONCE
        {
            // Fails before Linux 5.14 and when memory is short; the pages are then faulted in one by one.
            let _ = mapping.advise_range(Advice::PopulateWrite, from, to - from);
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Mapped(mapping) => mapping,
            Self::Heap(bytes) => bytes,
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if matches!(self, Self::Mapped(_)) {
            MAPPED.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Chunk {
    /// Makes a chunk of `length` bytes without any page.
    pub(super) fn new(length: usize) -> Self {
        if length == PAGE {
            return Self::Page(Box::default());
        }
        Self::Pages(Box::new(Pages {
            memory: Memory::zeroed(length),
            present: Bits::default(),
            written: Bits::default(),
        }))
    }

    /// Returns whether a page is there. A single page is there if its chunk is.
    pub(super) fn has(&self, page: usize) -> bool {
        match self {
            Self::Page(_) => true,
            Self::Pages(pages) => pages.present.has(page),
        }
    }

    /// Returns whether a page is there and was written; one that was only allocated reads as a hole does.
    pub(super) fn is_written(&self, page: usize) -> bool {
        match self {
            Self::Page(bytes) => !bytes.is_empty(),
            Self::Pages(pages) => pages.written.has(page),
        }
    }

    /// Returns how many pages are there.
    pub(super) fn count(&self) -> u64 {
        match self {
            Self::Page(_) => 1,
            Self::Pages(pages) => pages.present.count(),
        }
    }

    /// Notes that a page is there.
    pub(super) fn add(&mut self, page: usize) {
        if let Self::Pages(pages) = self {
            pages.present.set(page, true);
        }
    }

    /// Returns the bytes in a range that are in memory: fewer than asked for where the rest is zeros.
    pub(super) fn bytes(&self, from: usize, to: usize) -> &[u8] {
        let bytes = match self {
            Self::Page(bytes) => bytes,
            Self::Pages(pages) => pages.memory.bytes(),
        };
        let end = to.min(bytes.len());
        bytes.get(from.min(end)..end).unwrap_or_default()
    }

    /// Writes bytes, on pages that are there.
    pub(super) fn write(&mut self, at: usize, data: &[u8]) -> Result<()> {
        let end = at + data.len();
        let place = match self {
            Self::Page(bytes) => {
                if bytes.len() < end {
                    grow(bytes, end);
                }
                bytes.get_mut(at..end)
            }
            Self::Pages(pages) => {
                for page in at / PAGE..end.div_ceil(PAGE) {
                    pages.written.set(page, true);
                }
                pages.memory.populate(at, end);
                pages.memory.bytes_mut().get_mut(at..end)
            }
        };
        place.ok_or(Errno::FBIG)?.copy_from_slice(data);
        Ok(())
    }

    /// Writes zeros to a range.
    pub(super) fn zero(&mut self, from: usize, to: usize) {
        match self {
            Self::Page(bytes) => {
                let end = to.min(bytes.len());
                if let Some(place) = bytes.get_mut(from.min(end)..end) {
                    place.fill(0);
                }
            }
            // A page that was not written has zeros, and takes no memory as long as it is not.
            Self::Pages(pages) => {
                let mut at = from;
                while at < to {
                    let page = at / PAGE;
                    let end = to.min((page + 1) * PAGE);
                    if pages.written.has(page)
                        && let Some(place) = pages.memory.bytes_mut().get_mut(at..end)
                    {
                        place.fill(0);
                    }
                    at = end;
                }
            }
        }
    }

    /// Takes the pages from `first` up to `end` away, and gives their memory back to the system: what
    /// stays is copied into memory of its own. Returns how many pages are gone; all are, if the
    /// chunk then has no page.
    pub(super) fn remove(&mut self, first: usize, end: usize) -> u64 {
        let before = self.count();
        let Self::Pages(pages) = self else {
            return before;
        };
        let written = pages.written;
        for page in first..end {
            pages.present.set(page, false);
            pages.written.set(page, false);
        }
        let after = pages.present.count();
        if after > 0 && pages.written != written {
            pages.shrink();
        }
        before - after
    }
}

impl Pages {
    /// Moves the pages that were written to new memory.
    fn shrink(&mut self) {
        let old = self.memory.bytes();
        let mut new = Memory::zeroed(old.len());
        let pages = old.chunks(PAGE).zip(new.bytes_mut().chunks_mut(PAGE));
        for (page, (from, to)) in pages.enumerate() {
            if self.written.has(page) {
                to.copy_from_slice(from);
            }
        }
        self.memory = new;
    }
}

/// Makes a page's bytes reach `end`, with room for more if it has grown before.
fn grow(bytes: &mut Box<[u8]>, end: usize) {
    let mut longer = std::mem::take(bytes).into_vec();
    let length = end.next_multiple_of(GRAIN).max(longer.len() * 3 / 2);
    let length = length.min(PAGE);
    longer.reserve_exact(length - longer.len());
    longer.resize(length, 0);
    *bytes = longer.into_boxed_slice();
}
