//! Sequential, buffered output in blocks that leaves blocks of zeros out of the file.

use std::io::{self, Read, Seek, SeekFrom, Write};

use crate::{BLOCK_SIZE, Error, Result};
use micabox_file::narrow::in_memory;

/// Large enough that system calls take no noticeable time, small enough for a core's cache.
const BUFFER_BLOCKS: usize = 64;
const BLOCK: usize = in_memory(BLOCK_SIZE);

/// A stream of blocks into a new file. Skips blocks of zeros by seeking, which leaves a hole where
/// the file supports holes.
pub(crate) struct Output<W> {
    inner: W,
    /// Whole blocks; the first `filled` bytes belong at `start`.
    buffer: Box<[u8]>,
    filled: usize,
    /// Position of the buffer in the image, in bytes; a multiple of the block size.
    start: u64,
    /// Current position of `inner`.
    inner_at: u64,
    /// End of the bytes that were really written.
    written_to: u64,
}

impl<W: Write + Seek> Output<W> {
    /// Starts a stream. `inner` must be empty and is written from position 0 on.
    pub(crate) fn new(inner: W) -> Self {
        Self {
            inner,
            buffer: vec![0; BUFFER_BLOCKS * BLOCK].into(),
            filled: 0,
            start: 0,
            inner_at: 0,
            written_to: 0,
        }
    }

    /// Returns the next byte's position in the image.
    pub(crate) fn position(&self) -> u64 {
        self.start + self.filled as u64
    }

    /// Returns the next byte's block; that byte must be the first of its block.
    ///
    /// # Errors
    ///
    /// [`Error::ImageTooLarge`] when block numbers are used up.
    pub(crate) fn block(&self) -> Result<u32> {
        debug_assert!(self.position().is_multiple_of(BLOCK_SIZE));
        match u32::try_from(self.position() / BLOCK_SIZE) {
            // The highest number stands for a hole.
            Ok(block) if block < u32::MAX => Ok(block),
            _ => Err(Error::ImageTooLarge),
        }
    }

    pub(crate) fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(self.buffer.len() - self.filled));
            self.buffer[self.filled..self.filled + now.len()].copy_from_slice(now);
            self.advance(now.len())?;
            bytes = later;
        }
        Ok(())
    }

    pub(crate) fn zeros(&mut self, mut count: u64) -> Result<()> {
        while count > 0 {
            if self.filled == 0 && count >= self.buffer.len() as u64 {
                let blocks = count / BLOCK_SIZE;
                self.start += blocks * BLOCK_SIZE;
                count -= blocks * BLOCK_SIZE;
                continue;
            }
            let now = count.min((self.buffer.len() - self.filled) as u64);
            self.buffer[self.filled..self.filled + in_memory(now)].fill(0);
            self.advance(in_memory(now))?;
            count -= now;
        }
        Ok(())
    }

    /// Fills the current block with zeros.
    pub(crate) fn align(&mut self) -> Result<()> {
        self.zeros(self.position().next_multiple_of(BLOCK_SIZE) - self.position())
    }

    /// Copies exactly `size` bytes from `reader`, directly into the buffer.
    ///
    /// # Errors
    ///
    /// [`Error::ShortBody`] and [`Error::Body`] besides those of writing. `total` and `before` are
    /// only used in the message: the file's size, and how much of it was read earlier.
    pub(crate) fn copy(
        &mut self,
        reader: &mut dyn Read,
        size: u64,
        total: u64,
        before: u64,
    ) -> Result<()> {
        let mut left = size;
        while left > 0 {
            let room = in_memory(left.min((self.buffer.len() - self.filled) as u64));
            match reader.read(&mut self.buffer[self.filled..self.filled + room]) {
                Ok(0) => {
                    return Err(Error::ShortBody {
                        expected: total,
                        got: before + (size - left),
                    });
                }
                Ok(count) => {
                    self.advance(count.min(room))?;
                    left -= count.min(room) as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::Body(error)),
            }
        }
        Ok(())
    }

    /// Ends the image at the next block boundary and extends the file to that length; then writes
    /// `head` at position `at`, which makes the image valid. Nothing is synced.
    pub(crate) fn finish(mut self, at: u64, head: &[u8]) -> Result<W> {
        self.align()?;
        self.flush()?;
        if self.written_to < self.start {
            // The image ends in zeros: without its last block the file would be too short.
            self.write_inner(self.start - BLOCK_SIZE, 0, BLOCK, true)?;
        }
        self.inner
            .seek(SeekFrom::Start(at))
            .and_then(|_| self.inner.write_all(head))
            .and_then(|()| self.inner.flush())
            .map_err(Error::Output)?;
        Ok(self.inner)
    }

    fn advance(&mut self, count: usize) -> Result<()> {
        self.filled += count;
        if self.filled == self.buffer.len() {
            self.flush()?;
        }
        Ok(())
    }

    /// Writes the buffer, which must hold whole blocks, without its blocks of zeros.
    fn flush(&mut self) -> Result<()> {
        debug_assert!(self.filled.is_multiple_of(BLOCK));
        let mut from = 0;
        while from < self.filled {
            let zero = is_zero(&self.buffer[from..from + BLOCK]);
            let mut to = from + BLOCK;
            while to < self.filled && is_zero(&self.buffer[to..to + BLOCK]) == zero {
                to += BLOCK;
            }
            if !zero {
                self.write_inner(self.start + from as u64, from, to, false)?;
            }
            from = to;
        }
        self.start += self.filled as u64;
        self.filled = 0;
        Ok(())
    }

    /// Writes `buffer[from..to]`, or as many zeros, at `position`.
    fn write_inner(&mut self, position: u64, from: usize, to: usize, zeros: bool) -> Result<()> {
        if zeros {
            self.buffer[from..to].fill(0);
        }
        if self.inner_at != position {
            self.inner
                .seek(SeekFrom::Start(position))
                .map_err(Error::Output)?;
        }
        self.inner
            .write_all(&self.buffer[from..to])
            .map_err(Error::Output)?;
        self.inner_at = position + (to - from) as u64;
        self.written_to = self.inner_at;
        Ok(())
    }
}

fn is_zero(block: &[u8]) -> bool {
    static ZEROS: [u8; BLOCK] = [0; BLOCK];
    block == ZEROS
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn finish(output: Output<Cursor<Vec<u8>>>) -> Vec<u8> {
        output.finish(0, b"head").unwrap().into_inner()
    }

    #[test]
    fn bytes_are_written_at_their_offsets() {
        let mut output = Output::new(Cursor::new(Vec::new()));
        output.zeros(BLOCK_SIZE).unwrap();
        assert_eq!(output.block().unwrap(), 1);
        let body: Vec<u8> = (0..1_000_000u32).map(|i| (i % 251) as u8).collect();
        output
            .copy(&mut &body[..], 1_000_000, 1_000_000, 0)
            .unwrap();
        output.align().unwrap();
        output.zeros(10 << 20).unwrap();
        output.write(b"end").unwrap();
        let file = finish(output);
        assert_eq!(&file[..4], b"head");
        assert_eq!(&file[4096..1_004_096], &body[..]);
        let end = 1_004_096usize.next_multiple_of(4096) + (10 << 20);
        assert!(file[1_004_096..end].iter().all(|&b| b == 0));
        assert_eq!(&file[end..end + 3], b"end");
        assert_eq!(file.len(), end + 4096);
    }

    #[test]
    fn an_image_that_ends_in_zeros_has_its_full_length() {
        for zeros in [1, 4096, 300_000, 3 << 20] {
            let mut output = Output::new(Cursor::new(Vec::new()));
            output.write(b"x").unwrap();
            output.align().unwrap();
            output.zeros(zeros).unwrap();
            let file = finish(output);
            assert_eq!(file.len() as u64, 4096 + zeros.next_multiple_of(4096));
        }
    }

    #[test]
    fn a_short_reader_is_an_error_that_counts() {
        let mut output = Output::new(Cursor::new(Vec::new()));
        let error = output.copy(&mut &b"abc"[..], 5, 9, 4).unwrap_err();
        assert!(matches!(
            error,
            Error::ShortBody {
                expected: 9,
                got: 7
            }
        ));
    }
}
