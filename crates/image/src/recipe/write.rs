//! Records the recipe while the archive is converted.

use std::fs::File;
use std::io::{self, BufRead, Read, Write};

use micabox_erofs::{BLOCK_SIZE, Chunks, Data, Segment};
use zstd::stream::write::Encoder;

use super::{END, IMAGE, LITERAL, MAGIC, WINDOW_LOG, ZEROS};
use micabox_oci::{Digest, HashingWriter};

/// The fastest of zstd's ordinary levels. Headers shrink to a twentieth even so.
const LEVEL: i32 = 1;
/// Bytes that are gathered before they become steps, and bytes of steps that are gathered
/// before they are compressed.
const BUFFER: usize = 32 << 10;
/// Zeros are looked for in pieces of this many bytes, those of a `u128`.
const PIECE: usize = 16;

/// Hands an archive on to whoever reads it, and records it on the way.
///
/// Everything that is consumed goes into the recipe, except between [`Self::begin_body`] and
/// [`Self::end_body`]: that is in the image, and the latter says where.
pub(crate) struct Recorder<R> {
    input: R,
    steps: Steps,
    /// Bytes of the current body so far.
    body: Option<u64>,
    /// Consuming can't fail, so an error waits here for the next chance to be told.
    failed: Option<io::Error>,
}

/// What there is to know of a recipe that is complete in its file, but not synced.
#[derive(Debug)]
pub(crate) struct Written {
    /// Of the file's bytes.
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

    /// From here on what is consumed goes into the image.
    pub fn begin_body(&mut self) {
        self.body = Some(0);
    }

    /// What was consumed since [`Self::begin_body`] lies at `stored`, if it was anything:
    /// the body of a file of `size` bytes, of which the archive holds the parts in `sparse`.
    ///
    /// # Errors
    ///
    /// Those of writing the recipe, earlier ones too.
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
        match recorded == consumed {
            true => Ok(()),
            // No such layer may get into the store: it could not be had back.
            false => Err(io::Error::other(format!(
                "{consumed} bytes of a file went into the image, {recorded} can be found there"
            ))),
        }
    }

    /// Ends the recipe where the archive does.
    pub fn finish(self) -> io::Result<Written> {
        match self.failed {
            Some(error) => Err(error),
            None => self.steps.finish(),
        }
    }
}

/// Tells `at` where the pieces of one part of a sparse file are: offset and length in bytes.
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
                // What is consumed was filled before: this waits for nothing.
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

/// Writes steps, as few as may be.
struct Steps {
    out: Encoder<'static, HashingWriter<File>>,
    /// Steps that `out` doesn't have yet: it takes many small writes for much work.
    pending: Vec<u8>,
    /// Bytes to be written as they are, or as zeros.
    literal: Vec<u8>,
    /// Bytes of the image that come after them: offset and length.
    image: Option<(u64, u64)>,
    /// Where the last bytes of the image ended that a step was written about.
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

    /// Writes what was gathered. Most of a header is zeros, and what follows a body too:
    /// as a step of their own they cost the compressor nothing.
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

    /// Hands steps to the compressor once there are `enough` bytes of them.
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

/// How many bytes at the beginning are zeros, in whole pieces, or all of them.
fn leading_zeros(bytes: &[u8]) -> usize {
    let (pieces, rest) = bytes.as_chunks::<PIECE>();
    match pieces.iter().position(|piece| !is_zero(piece)) {
        Some(count) => count * PIECE,
        None if rest.iter().all(|byte| *byte == 0) => bytes.len(),
        None => bytes.len() - rest.len(),
    }
}

/// How many bytes there are before the first piece of zeros.
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

/// LEB128: seven bits a byte, the lowest first; the eighth says that there are more.
fn number(steps: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        steps.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    steps.push(number as u8);
}
