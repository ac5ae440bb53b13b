//! Writes a merged tree as an image that has its files' contents.

use std::collections::{HashSet, VecDeque};
use std::io::{self, Read, Seek, Write};
use std::ops::Range;

use crate::source::ReadAt;
use crate::sparse::chunk_size;
use crate::tree::{Chunks, Data, Kind, Tree};
use crate::writer::{Options, Summary, Writer};
use crate::{BLOCK_SIZE, Result, Segment};

/// Writes `tree`, whose files' contents are in `contents`. Files are in the order of their names; link counts stay.
pub(super) fn whole<W: Write + Seek>(
    tree: &Tree,
    contents: &impl ReadAt,
    out: W,
    uuid: [u8; 16],
) -> Result<(W, Summary)> {
    let mut tree = tree.clone();
    let options = Options {
        uuid,
        root: tree.inode(tree.root()).meta.clone(),
    };
    let mut writer = Writer::new(out, options)?;
    let mut seen = HashSet::new();
    let mut pending = vec![tree.root()];
    while let Some(id) = pending.pop() {
        if let Kind::Directory(_) = tree.inode(id).kind {
            let first = pending.len();
            pending.extend(tree.entries(id).map(|(_, id)| id));
            pending[first..].reverse();
        } else if seen.insert(id) {
            let Kind::File { size, data } = &mut tree.inode_mut(id).kind else {
                continue;
            };
            if *size == 0 {
                continue;
            }
            let (segments, ranges) = pieces(*size, data);
            let mut body = Body { contents, ranges };
            *data = writer.sparse_body(*size, &segments, &mut body)?;
        }
    }
    writer.finish_with(tree)
}

/// Returns which parts of a file of `size` bytes are no holes, and where their bytes are.
fn pieces(size: u64, data: &Data) -> (Vec<Segment>, VecDeque<Range<u64>>) {
    let mut segments: Vec<Segment> = Vec::new();
    let mut ranges: VecDeque<Range<u64>> = VecDeque::new();
    let mut piece = |offset: u64, length: u64, block: u32| {
        let start = u64::from(block) * BLOCK_SIZE;
        match segments.last_mut() {
            Some(last) if last.offset + last.length == offset => last.length += length,
            _ => segments.push(Segment { offset, length }),
        }
        match ranges.back_mut() {
            Some(last) if last.end == start => last.end += length,
            _ => ranges.push_back(start..start + length),
        }
    };
    match data {
        Data::Contiguous { block } => piece(0, size, *block),
        Data::Chunked(chunks) => {
            let chunk = chunk_size(chunks.bits);
            let mut offset = 0;
            for &block in &chunks.blocks {
                let length = chunk.min(size.saturating_sub(offset));
                if block != Chunks::HOLE && length > 0 {
                    piece(offset, length, block);
                }
                offset += length;
            }
        }
    }
    (segments, ranges)
}

/// The bytes of a file without its holes.
struct Body<'a, R> {
    contents: &'a R,
    /// What is still to be read.
    ranges: VecDeque<Range<u64>>,
}

impl<R: ReadAt> Read for Body<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(range) = self.ranges.front_mut() else {
            return Ok(0);
        };
        let most = (range.end - range.start).min(buffer.len() as u64);
        // Fits: the buffer has at least this length.
        let (now, _) = buffer.split_at_mut(micabox_file::narrow::in_memory(most));
        self.contents.read_exact_at(now, range.start)?;
        range.start += most;
        if range.is_empty() {
            self.ranges.pop_front();
        }
        Ok(now.len())
    }
}
