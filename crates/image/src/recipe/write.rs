//! Records the recipe while the archive is converted.

use std::fs::File;
use std::io::{self, BufRead, Read, Write};

use micabox_erofs::{BLOCK_SIZE, Chunks, Data, Segment};
use zstd::stream::write::Encoder;

use super::{END, IMAGE, LITERAL, MAGIC, WINDOW_LOG, ZEROS};
use micabox_oci::{Digest, HashingWriter};

/// The fastest of zstd's ordinary levels. Even so, headers shrink to a twentieth.
const LEVEL: i32 = 1;
/// Bytes that are collected before they become steps, and bytes of steps that are collected before
/// they are compressed.
const BUFFER: usize = 32 << 10;
/// Zeros are searched in pieces of this many bytes, those of a `u128`.
const PIECE: usize = 16;

/// Passes an archive on to its reader, and records it.
///
/// All bytes that are consumed go into the recipe, except between [`Self::begin_body`] and
/// [`Self::end_body`]: those are in the image, at the position given to the latter.
pub(crate) struct Recorder<R> {
    input: R,
    steps: Steps,
    /// Bytes of the current body so far.
    body: Option<u64>,
    /// Consuming can't fail, so an error is kept until it can be returned.
    failed: Option<io::Error>,
}

/// A recipe that is complete in its file, but not synced.
#[derive(Debug)]
pub(crate) struct Written {
    /// Digest of the file.
    pub digest: Digest,
    /// Length of the file in bytes.
    pub size: u64,
}

impl<R: BufRead> Recorder<R> {
    /// Starts a recipe in `file`, which must be empty.
    pub fn new(input: R, file: File) -> io::Result<Self> {
        Ok(Self {
            input,
            steps: Steps::new(file)?,
            body: None,
            failed: None,
        })
    }

    /// Starts a body: from here on, consumed bytes go into the image.
    pub fn begin_body(&mut self) {
        self.body = Some(0);
    }

    /// Ends a body: the bytes that were consumed since [`Self::begin_body`], if any, are at
    /// `stored`. They are the body of a file of `size` bytes, of which the archive contains the
    /// parts in `sparse`.
    ///
    /// # Errors
    ///
    /// Errors of writing the recipe, including earlier ones.
    pub fn end_body(
        &mut self,
        stored: Option<&Data>,
        size: u64,
        sparse: Option<&[Segment]>,
    ) -> io::Result<()> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let consumed = self.body.take().unwrap_or(0);
        let mut recorded = 0;
        let mut at = |offset: u64, length: u64| {
            recorded += length;
            self.steps.image(offset, length)
        };
        match (stored, sparse) {
            (None, _) => {}
            (Some(Data::Contiguous { block }), _) => at(u64::from(*block) * BLOCK_SIZE, size)?,
            (Some(Data::Chunked(chunks)), segments) => {
                for segment in segments.unwrap_or_default() {
                    in_chunks(chunks, segment, &mut at)?;
                }
            }
        }
        if recorded == consumed {
            Ok(())
        } else {
            // The store must not get such a layer: its archive could not be rebuilt.
            Err(io::Error::other(format!(
                "{consumed} bytes of a file went into the image, {recorded} can be found there"
            )))
        }
    }

    /// Ends the recipe at the end of the archive.
    pub fn finish(self) -> io::Result<Written> {
        match self.failed {
            Some(error) => Err(error),
            None => self.steps.finish(),
        }
    }
}

/// Calls `at` with the offset and length in bytes of each piece of one part of a sparse file.
fn in_chunks(
    chunks: &Chunks,
    segment: &Segment,
    at: &mut impl FnMut(u64, u64) -> io::Result<()>,
) -> io::Result<()> {
    let chunk = BLOCK_SIZE << chunks.bits;
    let end = segment.offset + segment.length;
    let mut offset = segment.offset;
    while offset < end {
        let (index, within) = (offset / chunk, offset % chunk);
        let length = (chunk - within).min(end - offset);
        let block = usize::try_from(index)
            .ok()
            .and_then(|index| chunks.blocks.get(index))
            .filter(|block| **block != Chunks::HOLE)
            .ok_or_else(|| io::Error::other("a part of a sparse file is in a hole"))?;
        at(u64::from(*block) * BLOCK_SIZE + within, length)?;
        offset += length;
    }
    Ok(())
}

impl<R: BufRead> BufRead for Recorder<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.input.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        match &mut self.body {
            Some(body) => *body += count as u64,
            None if self.failed.is_none() => {
                // Consumed bytes were buffered before: this doesn't block.
                let recorded = self.input.fill_buf().and_then(|bytes| {
                    let bytes = bytes.get(..count).unwrap_or(bytes);
                    self.steps.literal(bytes)
                });
                self.failed = recorded.err();
            }
            None => {}
        }
        self.input.consume(count);
    }
}

impl<R: BufRead> Read for Recorder<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut available = self.fill_buf()?;
        let count = available.read(buffer)?;
        self.consume(count);
        Ok(count)
    }
}

/// Writes as few steps as possible.
struct Steps {
    out: Encoder<'static, HashingWriter<File>>,
    /// Steps that `out` doesn't have yet: many small writes are expensive.
    pending: Vec<u8>,
    /// Bytes to be written as they are, or as zeros.
    literal: Vec<u8>,
    /// Bytes of the image that come after them: offset and length.
    image: Option<(u64, u64)>,
    /// End of the last bytes of the image that a step referred to.
    image_end: u64,
}

impl Steps {
    fn new(file: File) -> io::Result<Self> {
        let mut out = Encoder::new(HashingWriter::new(file), LEVEL)?;
        out.window_log(WINDOW_LOG)?;
        Ok(Self {
            out,
            pending: MAGIC.to_vec(),
            literal: Vec::with_capacity(BUFFER),
            image: None,
            image_end: 0,
        })
    }

    fn literal(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        self.end_image()?;
        while !bytes.is_empty() {
            let room = (BUFFER - self.literal.len()).min(bytes.len());
            let (now, later) = bytes.split_at(room);
            self.literal.extend_from_slice(now);
            bytes = later;
            if self.literal.len() == BUFFER {
                self.end_literal()?;
            }
        }
        Ok(())
    }

    fn image(&mut self, offset: u64, length: u64) -> io::Result<()> {
        match &mut self.image {
            Some((start, so_far)) if *start + *so_far == offset => *so_far += length,
            _ => {
                self.end_image()?;
                self.image = Some((offset, length));
            }
        }
        Ok(())
    }

    /// Writes the collected bytes. Most of a header is zeros, and so is what follows a body: as
    /// separate steps, zeros cost the compressor nothing.
    fn end_literal(&mut self) -> io::Result<()> {
        let mut bytes = &self.literal[..];
        while !bytes.is_empty() {
            let (zeros, rest) = bytes.split_at(leading_zeros(bytes));
            let (data, rest) = rest.split_at(leading_data(rest));
            if !zeros.is_empty() {
                step(&mut self.pending, ZEROS, zeros.len() as u64);
            }
            if !data.is_empty() {
                step(&mut self.pending, LITERAL, data.len() as u64);
                self.pending.extend_from_slice(data);
            }
            bytes = rest;
        }
        self.literal.clear();
        self.write_pending(BUFFER)
    }

    fn end_image(&mut self) -> io::Result<()> {
        let Some((offset, length)) = self.image.take() else {
            return Ok(());
        };
        self.end_literal()?;
        step(&mut self.pending, IMAGE, length);
        let expected = self.image_end.next_multiple_of(BLOCK_SIZE);
        let distance = offset.wrapping_sub(expected).cast_signed();
        let zigzag = ((distance << 1) ^ (distance >> 63)).cast_unsigned();
        number(&mut self.pending, zigzag);
        self.image_end = offset + length;
        Ok(())
    }

    /// Passes steps to the compressor once there are `enough` bytes of them.
    fn write_pending(&mut self, enough: usize) -> io::Result<()> {
        if self.pending.len() >= enough {
            self.out.write_all(&self.pending)?;
            self.pending.clear();
        }
        Ok(())
    }

    fn finish(mut self) -> io::Result<Written> {
        self.end_image()?;
        self.end_literal()?;
        self.pending.push(END);
        self.write_pending(0)?;
        let (_, digest, size) = self.out.finish()?.finish();
        Ok(Written { digest, size })
    }
}

/// Returns how many bytes at the beginning are zeros, in whole pieces, or all of them.
fn leading_zeros(bytes: &[u8]) -> usize {
    let (pieces, rest) = bytes.as_chunks::<PIECE>();
    match pieces.iter().position(|piece| !is_zero(piece)) {
        Some(count) => count * PIECE,
        None if rest.iter().all(|byte| *byte == 0) => bytes.len(),
        None => bytes.len() - rest.len(),
    }
}

/// Returns how many bytes there are before the first piece of zeros.
fn leading_data(bytes: &[u8]) -> usize {
    let (pieces, _) = bytes.as_chunks::<PIECE>();
    let zeros = pieces.iter().position(is_zero);
    zeros.map_or(bytes.len(), |count| count * PIECE)
}

fn is_zero(piece: &[u8; PIECE]) -> bool {
    u128::from_ne_bytes(*piece) == 0
}

fn step(steps: &mut Vec<u8>, kind: u8, length: u64) {
    steps.push(kind);
    number(steps, length);
}

/// Writes LEB128: seven bits a byte, the lowest first; the eighth means that more follow.
fn number(steps: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        steps.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    steps.push(number as u8);
}
