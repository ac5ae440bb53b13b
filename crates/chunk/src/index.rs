//! The chunk index: where each chunk is, in the blob and in the uncompressed image, and its checksum.
//!
//! The format is the [EROFS image specification][spec]'s, `application/vnd.erofs.chunk-index.v1`; all numbers are
//! little-endian.
//!
//! | bytes | header |
//! |---|---|
//! | 4 | magic, `cd e4 ec 67` |
//! | 1 | version, 1 |
//! | 1 | compression: 0 none, 1 zstd |
//! | 2 | flags, 0 |
//! | 8 | length of the uncompressed image |
//! | 4 | number of chunks |
//! | 1 | algorithm of checksums: 0 none, 1 SHA-2 |
//! | 1 | length of a checksum: 0, 32 (SHA-256) or 64 (SHA-512) |
//! | 10 | 0 |
//!
//! | bytes | an entry |
//! |---|---|
//! | 8 | offset in the blob |
//! | 8 | offset in the uncompressed image |
//! | 0, 32, 64 | checksum of the chunk's bytes in the blob |
//!
//! A chunk ends where the next one begins; the last one ends where the index begins.
//!
//! [spec]: https://github.com/erofs/erofs-image-spec

use std::ops::Range;

use sha2::{Digest as _, Sha256, Sha512};

/// Media type of an index that is a blob of its own.
pub const MEDIA_TYPE: &str = "application/vnd.erofs.chunk-index.v1";

/// Bytes of the longest index that is read before the blob. With SHA-256 it has 350,000 chunks.
pub const MOST_INDEX: u64 = 16 << 20;

const MAGIC: [u8; 4] = [0xcd, 0xe4, 0xec, 0x67];
const VERSION: u8 = 1;
const HEADER: usize = 32;
/// Bytes of an entry without its checksum.
const OFFSETS: usize = 16;
const SHA2: u8 = 1;

/// Bytes that one chunk may have, in the blob and uncompressed: so much memory takes who reads one. The specification
/// has no limit, but for larger ones there is no gain over reading from end to end.
const LARGEST: u64 = 64 << 20;

/// How chunks are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// The blob is the image.
    None,
    /// Each chunk is one zstd frame.
    Zstd,
}

/// A chunk index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    compression: Compression,
    /// Length of the uncompressed image.
    size: u64,
    /// Offset in the blob where the last chunk ends.
    end: u64,
    chunks: Vec<Chunk>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Chunk {
    /// Offset in the blob.
    at: u64,
    /// Offset in the uncompressed image.
    offset: u64,
    checksum: Checksum,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Checksum {
    None,
    Sha256([u8; 32]),
    Sha512([u8; 64]),
}

/// Why an index can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// It is damaged, or lies.
    #[error("the chunk index is damaged: {0}")]
    Corrupt(&'static str),
    /// It is of a kind that is not supported; the blob can be read from end to end.
    #[error("the chunk index has {0}, which is not supported")]
    Unknown(&'static str),
}

/// Why a chunk can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ChunkError {
    /// There is no chunk with this number.
    #[error("there is no chunk {0}")]
    Number(usize),
    /// Its bytes are not those that the index was made of.
    #[error("chunk {0} has another checksum than its index says")]
    Checksum(usize),
    /// It doesn't contain as many bytes as the index says.
    #[error("chunk {number} does not inflate to {length} bytes: {problem}")]
    Inflate {
        /// Its number, from 0.
        number: usize,
        /// Its length in the image, in bytes.
        length: u64,
        /// What is wrong with it.
        problem: String,
    },
}

impl Index {
    /// Parses an index, without the header of a zstd frame around it. `end` is the offset in the blob where the last
    /// chunk ends: where the index, or the frame around it, begins.
    ///
    /// # Errors
    ///
    /// [`IndexError::Corrupt`]: chunks don't follow each other, from the start of blob and image to the ends of both;
    /// or a field contradicts another. [`IndexError::Unknown`]: a version, flag, compression or checksum of a later
    /// specification, or chunks of over 64 MiB.
    pub fn parse(bytes: &[u8], end: u64) -> Result<Self, IndexError> {
        use IndexError::{Corrupt, Unknown};
        let mut fields = Fields(bytes);
        let header = Corrupt("it is shorter than its header");
        let short = || header.clone();
        if fields.take().ok_or_else(short)? != MAGIC {
            return Err(Corrupt("its magic is another one"));
        }
        let [version, compression] = fields.take().ok_or_else(short)?;
        let flags = fields.take().map(u16::from_le_bytes).ok_or_else(short)?;
        let size = fields.take().map(u64::from_le_bytes).ok_or_else(short)?;
        let count = fields.take().map(u32::from_le_bytes).ok_or_else(short)?;
        let [algorithm, checksum_length] = fields.take().ok_or_else(short)?;
        let reserved: [u8; 10] = fields.take().ok_or_else(short)?;
        if version != VERSION {
            return Err(Unknown("another version"));
        }
        if flags != 0 || reserved != [0; 10] {
            return Err(Unknown("flags"));
        }
        let compression = match compression {
            0 => Compression::None,
            1 => Compression::Zstd,
            _ => return Err(Unknown("another compression")),
        };
        let checksum_length = match (algorithm, checksum_length) {
            (0, 0) => 0,
            (SHA2, length @ (32 | 64)) => usize::from(length),
            (0 | SHA2, _) => {
                return Err(Corrupt(
                    "checksums have a length that is not their algorithm's",
                ));
            }
            _ => return Err(Unknown("other checksums")),
        };
        let entry = OFFSETS + checksum_length;
        if fields.0.len() as u64 != u64::from(count) * entry as u64 {
            return Err(Corrupt("its length is not that of its chunks"));
        }
        let mut chunks = Vec::with_capacity(count as usize);
        while let (Some(at), Some(offset)) = (fields.take(), fields.take()) {
            let checksum = match checksum_length {
                32 => fields.take().map(Checksum::Sha256),
                64 => fields.take().map(Checksum::Sha512),
                _ => Some(Checksum::None),
            };
            chunks.push(Chunk {
                at: u64::from_le_bytes(at),
                offset: u64::from_le_bytes(offset),
                checksum: checksum.ok_or_else(short)?,
            });
        }
        let index = Self {
            compression,
            size,
            end,
            chunks,
        };
        index.check()?;
        Ok(index)
    }

    /// Checks that chunks follow each other, and that each has bytes.
    fn check(&self) -> Result<(), IndexError> {
        use IndexError::{Corrupt, Unknown};
        match self.chunks.first() {
            None if (self.size, self.end) == (0, 0) => {}
            None => return Err(Corrupt("it has no chunks")),
            Some(first) if (first.at, first.offset) == (0, 0) => {}
            Some(_) => return Err(Corrupt("its first chunk is not at the start")),
        }
        let mut is_large = false;
        for number in 0..self.chunks.len() {
            let (in_blob, in_image) = (self.at(number..number + 1), self.offsets(number));
            if in_blob.is_empty() || in_image.is_empty() {
                return Err(Corrupt(
                    "a chunk has no bytes, or is not after the one before",
                ));
            }
            let (packed, length) = (in_blob.end - in_blob.start, in_image.end - in_image.start);
            is_large |= packed > LARGEST || length > LARGEST;
            if self.compression == Compression::None && in_blob != in_image {
                return Err(Corrupt(
                    "a chunk that is not compressed has another offset or length in the image",
                ));
            }
        }
        if is_large {
            return Err(Unknown("chunks of over 64 MiB"));
        }
        Ok(())
    }

    /// Writes the index, without a frame around it. Checksums are SHA-256.
    pub(crate) fn to_bytes(size: u64, chunks: &[(u64, u64, [u8; 32])]) -> Option<Vec<u8>> {
        let count = u32::try_from(chunks.len()).ok()?;
        let mut bytes = Vec::with_capacity(HEADER + chunks.len() * (OFFSETS + 32));
        bytes.extend(MAGIC);
        bytes.extend([VERSION, 1, 0, 0]);
        bytes.extend(size.to_le_bytes());
        bytes.extend(count.to_le_bytes());
        bytes.extend([SHA2, 32]);
        bytes.extend([0; 10]);
        for (at, offset, checksum) in chunks {
            bytes.extend(at.to_le_bytes());
            bytes.extend(offset.to_le_bytes());
            bytes.extend(checksum);
        }
        Some(bytes)
    }

    /// Returns how the chunks are compressed.
    #[must_use]
    pub fn compression(&self) -> Compression {
        self.compression
    }

    /// Returns the length of the uncompressed image in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the number of chunks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.chunks.len()
    }

    /// Returns whether there are no chunks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Returns whether each chunk has a checksum, so that it can be used before the others are there.
    #[must_use]
    pub fn has_checksums(&self) -> bool {
        self.chunks
            .iter()
            .all(|chunk| chunk.checksum != Checksum::None)
    }

    /// Returns the number of the chunk that has this offset of the image; `None` beyond its end.
    #[must_use]
    pub fn find(&self, offset: u64) -> Option<usize> {
        let after = self.chunks.partition_point(|chunk| chunk.offset <= offset);
        (offset < self.size).then(|| after.checked_sub(1)).flatten()
    }

    /// Returns the number of the chunk that has this offset of the blob; `None` beyond the last one's end.
    #[must_use]
    pub fn find_in_blob(&self, at: u64) -> Option<usize> {
        let after = self.chunks.partition_point(|chunk| chunk.at <= at);
        (at < self.end).then(|| after.checked_sub(1)).flatten()
    }

    /// Returns where a chunk's bytes are in the blob; `None` if there is no such chunk.
    #[must_use]
    pub fn range(&self, number: usize) -> Option<Range<u64>> {
        (number < self.chunks.len()).then(|| self.at(number..number + 1))
    }

    /// Returns which bytes of the image a chunk has; `None` if there is no such chunk.
    #[must_use]
    pub fn contents(&self, number: usize) -> Option<Range<u64>> {
        (number < self.chunks.len()).then(|| self.offsets(number))
    }

    /// Checks a chunk, whose bytes in the blob are `bytes`, against its checksum, if there is one.
    ///
    /// # Errors
    ///
    /// [`ChunkError::Number`] and [`ChunkError::Checksum`].
    pub fn verify(&self, number: usize, bytes: &[u8]) -> Result<(), ChunkError> {
        let chunk = self.chunks.get(number).ok_or(ChunkError::Number(number))?;
        let is_same = match &chunk.checksum {
            Checksum::None => true,
            Checksum::Sha256(checksum) => Sha256::digest(bytes)[..] == checksum[..],
            Checksum::Sha512(checksum) => Sha512::digest(bytes)[..] == checksum[..],
        };
        is_same.then_some(()).ok_or(ChunkError::Checksum(number))
    }

    /// Checks and inflates a chunk, whose bytes in the blob are `bytes`.
    ///
    /// # Errors
    ///
    /// [`ChunkError`]: they are other bytes than those that the index was made of.
    pub fn decode(&self, number: usize, bytes: &[u8]) -> Result<Vec<u8>, ChunkError> {
        self.verify(number, bytes)?;
        let contents = self.offsets(number);
        let length = contents.end - contents.start;
        let error = |problem: String| ChunkError::Inflate {
            number,
            length,
            problem,
        };
        let inflated = match self.compression {
            Compression::None => bytes.to_vec(),
            // At most 64 MiB: `check`.
            Compression::Zstd => {
                zstd::bulk::decompress(bytes, length as usize).map_err(|e| error(e.to_string()))?
            }
        };
        if inflated.len() as u64 != length {
            return Err(error(format!("it has {}", inflated.len())));
        }
        Ok(inflated)
    }

    /// Returns where these chunks, of which the first one exists, are in the blob.
    fn at(&self, chunks: Range<usize>) -> Range<u64> {
        let at = |number: usize| self.chunks.get(number).map_or(self.end, |chunk| chunk.at);
        at(chunks.start)..at(chunks.end)
    }

    fn offsets(&self, number: usize) -> Range<u64> {
        let offset = |number: usize| {
            self.chunks
                .get(number)
                .map_or(self.size, |chunk| chunk.offset)
        };
        offset(number)..offset(number + 1)
    }
}

/// What is left of a structure's bytes.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }
}
