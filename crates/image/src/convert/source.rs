//! Reads a blob: counts and hashes it, and checks that it is not longer than declared.

use std::io::{self, BufRead, Read};

use super::decompress;
use super::error::Reason;
use super::expect::Expect;
use crate::Limits;
use crate::limits::Limit;
use micabox_oci::{Digest, Hasher};

/// Bytes of a buffer: large enough that passing it on costs nothing, small enough for the cache.
pub(super) const BUFFER: usize = 512 << 10;

/// The expected blob, and which checks are done here.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected<'a> {
    pub what: &'a Expect,
    /// Whether the process that feeds the blob hashes it. That process also knows the diff ID of a
    /// blob that isn't compressed.
    pub hashed_by_caller: bool,
    /// Size of the blob in bytes for limits that depend on it, also where it isn't checked.
    pub blob_size: Option<u64>,
}

impl<'a> Expected<'a> {
    /// Expects `what`, with all checks done here.
    pub fn all(what: &'a Expect) -> Self {
        Self {
            what,
            hashed_by_caller: false,
            blob_size: what.blob.as_ref().map(|blob| blob.size),
        }
    }

    /// Returns the size of the blob in bytes, if it is known.
    fn size(self) -> Option<u64> {
        self.what.blob.as_ref().map(|blob| blob.size)
    }

    /// Returns whether `actual` is the digest of another blob.
    pub fn is_other(self, actual: Digest) -> bool {
        self.what
            .digest()
            .is_some_and(|expected| expected != actual)
    }
}

/// A blob that was read to its end.
pub(super) struct Blob {
    /// `None` if it is the digest of the uncompressed bytes.
    pub digest: Option<Digest>,
    /// Size in bytes.
    pub size: u64,
}

/// The bytes of a blob so far: counted, hashed, and never more than declared.
pub(super) struct Tally<'a> {
    expected: Expected<'a>,
    /// Bytes so far.
    pub got: u64,
    /// `None` if another thread or process hashes the blob.
    pub hasher: Option<Hasher>,
}

impl<'a> Tally<'a> {
    pub fn new(expected: Expected<'a>) -> Self {
        Self {
            expected,
            got: 0,
            hasher: (!expected.hashed_by_caller).then(Hasher::new),
        }
    }

    /// Counts bytes; no bytes mean the blob's end.
    fn add(&mut self, bytes: &[u8]) -> Result<(), Reason> {
        self.got += bytes.len() as u64;
        match self.expected.size() {
            Some(declared) if self.got > declared => return Err(Reason::TooLong { declared }),
            Some(declared) if bytes.is_empty() && self.got < declared => {
                return Err(Reason::TooShort {
                    declared,
                    got: self.got,
                });
            }
            _ => {}
        }
        if let Some(hasher) = &mut self.hasher {
            hasher.update(bytes);
        }
        Ok(())
    }

    /// Reads some bytes. Returns 0 at the blob's end, after its length was checked.
    pub fn read(&mut self, source: &mut impl Read, buffer: &mut [u8]) -> Result<usize, Reason> {
        let count = loop {
            match source.read(buffer) {
                Ok(count) => break count.min(buffer.len()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Reason::Source(error)),
            }
        };
        self.add(&buffer[..count])?;
        Ok(count)
    }

    /// Reads until `buffer` is full or the blob ends.
    pub fn fill(&mut self, source: &mut impl Read, buffer: &mut [u8]) -> Result<usize, Reason> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.read(source, &mut buffer[filled..])? {
                0 => break,
                count => filled += count,
            }
        }
        Ok(filled)
    }

    pub fn finish(self) -> Blob {
        Blob {
            digest: self.hasher.map(Hasher::finish),
            size: self.got,
        }
    }
}

/// A blob whose bytes are read in place.
pub(super) struct Source<'a, S> {
    pub inner: S,
    /// Bytes in the buffer; all of them were counted.
    ahead: usize,
    pub tally: Tally<'a>,
}

impl<'a, S: BufRead> Source<'a, S> {
    pub fn new(inner: S, expected: Expected<'a>) -> Self {
        Self {
            inner,
            ahead: 0,
            tally: Tally::new(expected),
        }
    }

    /// Makes sure that the buffer has some bytes; at the blob's end, after its length was checked,
    /// it has none.
    pub fn fill(&mut self) -> Result<(), Reason> {
        while self.ahead == 0 {
            match self.inner.fill_buf() {
                Ok(bytes) => {
                    self.tally.add(bytes)?;
                    self.ahead = bytes.len();
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Reason::Source(error)),
            }
        }
        Ok(())
    }

    pub fn buffer(&mut self) -> &[u8] {
        match self.ahead {
            0 => &[],
            // The bytes are already in the buffer, so there is no error.
            _ => self.inner.fill_buf().unwrap_or_default(),
        }
    }

    pub fn consume(&mut self, count: usize) {
        let count = count.min(self.ahead);
        self.ahead -= count;
        self.inner.consume(count);
    }

    /// Returns the error for invalid compressed data. The digest over the rest of the blob tells
    /// whether the blob was damaged in transfer or compressed wrongly.
    pub fn blame(mut self, error: &decompress::Error, limits: &Limits) -> Reason {
        loop {
            self.consume(self.ahead);
            match self.fill() {
                Ok(()) if self.ahead == 0 => break,
                Ok(()) => {}
                Err(reason) => return reason,
            }
        }
        let expected = self.tally.expected;
        match self.tally.finish().digest {
            Some(actual) if expected.is_other(actual) => Reason::BlobDigest { actual },
            _ if matches!(error, decompress::Error::ZstdWindow) => Reason::Limit {
                setting: Limit::ZstdWindow,
                limit: limits.zstd_window,
                entry: None,
            },
            _ => Reason::Compressed(error.to_string()),
        }
    }
}

/// Reads the blob in `source` to its end, and checks only its size and digest.
pub(super) fn read(mut source: impl Read, expected: Expected<'_>) -> Result<(), Reason> {
    let mut tally = Tally::new(expected);
    let mut buffer = vec![0; BUFFER];
    while tally.read(&mut source, &mut buffer)? > 0 {}
    match tally.finish().digest {
        Some(actual) if expected.is_other(actual) => Err(Reason::BlobDigest { actual }),
        _ => Ok(()),
    }
}
