//! What shows of a file of the lower: the parts that were neither cut off nor made holes, where no
//! page is in memory.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;

use super::span::PAGE_BYTES;
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
    pub(super) fn shown_in(&self, from: u64, to: u64) -> impl Iterator<Item = Range<u64>> {
        let first = self.shown.partition_point(|part| part.end <= from);
        let parts = self.shown.iter().skip(first);
        let parts = parts.take_while(move |part| part.start < to);
        parts.map(move |part| part.start.max(from)..part.end.min(to))
    }

    /// Fills a buffer from an offset on. A file that is shorter than its size is damaged.
    pub(super) fn read(&self, mut offset: u64, mut buffer: &mut [u8]) -> Result<()> {
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
    pub(super) fn page(&self, offset: u64) -> Result<Vec<u8>> {
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
    pub(super) fn data_behind(&self, offset: u64) -> Result<Option<Range<u64>>> {
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
