//! A blob of chunks, as far as it is here.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU8, Ordering};

use micabox_chunk::{Compression, Index};
use rustix::fs::{SeekFrom, seek};

/// Bytes of the largest chunk that is read before its blob is whole, packed or not: several are in memory at a time.
pub const LARGEST: u64 = 1 << 20;

/// What is known of a chunk.
pub(crate) const UNKNOWN: u8 = 0;
pub(crate) const HERE: u8 = 1;
pub(crate) const MISSING: u8 = 2;

/// A blob of chunks in a sparse file. What is in the file is not trusted: a chunk is here if its checksum says so.
#[derive(Debug)]
pub struct Blob {
    file: File,
    index: Index,
    /// [`UNKNOWN`], [`HERE`] or [`MISSING`], by chunk.
    states: Vec<AtomicU8>,
}

impl Blob {
    /// Takes a file with the blob's bytes at their offsets, as far as they are here, and its index.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::Unsupported`] for an index without checksums or with chunks of over 1 MiB, and for chunks that
    /// are not compressed.
    pub fn new(file: File, index: Index) -> io::Result<Self> {
        let unsupported = |problem: &str| Err(io::Error::new(io::ErrorKind::Unsupported, problem));
        if index.compression() != Compression::Zstd {
            return unsupported("its chunks are not zstd frames");
        }
        if !index.has_checksums() {
            return unsupported("its chunks have no checksums");
        }
        let length = |range: Option<Range<u64>>| range.map_or(0, |range| range.end - range.start);
        let is_large =
            |n: usize| length(index.range(n)) > LARGEST || length(index.contents(n)) > LARGEST;
        if (0..index.len()).any(is_large) {
            return unsupported("it has chunks of over 1 MiB");
        }
        Ok(Self {
            file,
            states: (0..index.len()).map(|_| AtomicU8::new(UNKNOWN)).collect(),
            index,
        })
    }

    /// Returns the index.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Returns a chunk's bytes in the blob, which are checked; `None` if it is not here.
    ///
    /// # Errors
    ///
    /// Those of reading the file.
    pub fn packed(&self, number: usize) -> io::Result<Option<Vec<u8>>> {
        let range = self.range(number)?;
        let known = self.state(number);
        if known == MISSING || known == UNKNOWN && is_hole(&self.file, &range) {
            self.set(number, MISSING);
            return Ok(None);
        }
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let read = match self.file.read_exact_at(&mut bytes, range.start) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => false,
            read => read.map(|()| true)?,
        };
        let is_here = read && self.index.verify(number, &bytes).is_ok();
        self.set(number, if is_here { HERE } else { MISSING });
        Ok(is_here.then_some(bytes))
    }

    /// Reads a chunk. Returns its length in bytes, and whether it is what the index says; `None` if none of it was written.
    ///
    /// # Errors
    ///
    /// Those of reading the file.
    pub fn check(&self, number: usize) -> io::Result<Option<(u64, bool)>> {
        let range = self.range(number)?;
        if is_hole(&self.file, &range) {
            return Ok(None);
        }
        let length = range.end - range.start;
        let mut bytes = vec![0; length as usize];
        self.file.read_exact_at(&mut bytes, range.start)?;
        if bytes.iter().all(|byte| *byte == 0) {
            // Another chunk has written to its block.
            return Ok(None);
        }
        Ok(Some((length, self.index.verify(number, &bytes).is_ok())))
    }

    /// Returns whether a chunk is here. What is not known is read, once: other chunks may have written to the same blocks
    /// of the file. An error counts as missing.
    pub fn is_here(&self, number: usize) -> bool {
        match self.state(number) {
            UNKNOWN => self.packed(number).is_ok_and(|bytes| bytes.is_some()),
            known => known == HERE,
        }
    }

    /// Checks chunks that follow each other, whose bytes in the blob are `bytes`. Returns how many of the first ones are
    /// those that the index was made of, at least one.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::InvalidData`]: the first one is not.
    pub fn verify(&self, numbers: &Range<usize>, bytes: &[u8]) -> io::Result<usize> {
        let whole = self.span(numbers)?;
        for number in numbers.clone() {
            let range = self.range(number)?;
            let within = (range.start - whole.start) as usize..(range.end - whole.start) as usize;
            let chunk = bytes.get(within).unwrap_or_default();
            match self.index.verify(number, chunk) {
                Ok(()) => {}
                Err(error) if number == numbers.start => {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, error));
                }
                Err(_) => return Ok(number - numbers.start),
            }
        }
        Ok(numbers.len())
    }

    /// Keeps chunks that follow each other, and that were checked; their bytes in the blob are the first of `bytes`.
    ///
    /// # Errors
    ///
    /// Those of writing the file.
    pub fn keep(&self, numbers: Range<usize>, bytes: &[u8]) -> io::Result<()> {
        let span = self.span(&numbers)?;
        let bytes = bytes.get(..(span.end - span.start) as usize);
        let bytes = bytes.ok_or(io::ErrorKind::InvalidInput)?;
        self.file.write_all_at(bytes, span.start)?;
        numbers.for_each(|number| self.set(number, HERE));
        Ok(())
    }

    fn state(&self, number: usize) -> u8 {
        let state = self.states.get(number);
        state.map_or(MISSING, |state| state.load(Ordering::Acquire))
    }

    fn set(&self, number: usize, known: u8) {
        if let Some(state) = self.states.get(number) {
            state.store(known, Ordering::Release);
        }
    }

    /// Returns where chunks that follow each other are in the blob.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::InvalidInput`] if there are none with these numbers.
    pub fn span(&self, numbers: &Range<usize>) -> io::Result<Range<u64>> {
        let last = numbers.end.checked_sub(1).filter(|_| !numbers.is_empty());
        let last = last.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.range(numbers.start)?.start..self.range(last)?.end)
    }

    fn range(&self, number: usize) -> io::Result<Range<u64>> {
        let range = self.index.range(number);
        range.ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }
}

/// Returns whether nothing of a range of a file was ever written. Where the filesystem can't tell, something was.
pub(crate) fn is_hole(file: &File, range: &Range<u64>) -> bool {
    match seek(file, SeekFrom::Data(range.start)) {
        Ok(data) => data >= range.end,
        Err(rustix::io::Errno::NXIO) => true,
        Err(_) => false,
    }
}
