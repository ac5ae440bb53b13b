//! Writes a blob of chunks.

use std::io::{self, Write};
use std::ops::Range;

use micabox_oci::{Digest, Hasher, HashingWriter};
use zstd::bulk::Compressor;

use crate::index::Index;

/// zstd's level of compression: its default. Part of what makes a blob the same everywhere; levels from 5 on have
/// match finders whose result depends on what the same context has compressed before.
pub const LEVEL: i32 = 3;

/// Returns the version of zstd that compresses: another one may make other frames of the same chunks.
#[must_use]
pub fn zstd_version() -> String {
    let number = zstd::zstd_safe::version_number();
    format!(
        "{}.{}.{}",
        number / 10_000,
        number / 100 % 100,
        number % 100
    )
}

/// Magic of a frame that every reader of zstd passes over (RFC 8878, 3.1.2).
const SKIPPABLE: u32 = 0x184d_2a50;
/// Bytes of the header of the frame that the index is in: magic and length.
pub const FRAME_HEADER: u64 = 8;
/// The index begins at a multiple of this.
const ALIGNMENT: u64 = 4;

/// Writes chunks, each as a zstd frame of its own, and behind them their index in a frame that zstd passes over.
pub struct Writer<W> {
    out: HashingWriter<W>,
    compressor: Compressor<'static>,
    /// Offset in the blob, offset in the image, SHA-256 of the bytes in the blob.
    chunks: Vec<(u64, u64, [u8; 32])>,
    /// Bytes of the blob so far.
    at: u64,
    /// Bytes of the image so far.
    size: u64,
    uncompressed: Hasher,
    /// The last chunk's bytes in the blob, which are not written yet: those that align the index belong to them.
    last: Vec<u8>,
}

/// A finished blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Digest of the blob.
    pub digest: Digest,
    /// Length of the blob in bytes.
    pub size: u64,
    /// Digest of the image: of all that the chunks contain.
    pub uncompressed: Digest,
    /// Length of the image in bytes.
    pub uncompressed_size: u64,
    /// Where the index is in the blob, with the header of its frame, 8 bytes.
    pub index: Range<u64>,
    /// Digest of the index, without that header.
    pub index_digest: Digest,
}

impl<W: Write> Writer<W> {
    /// Begins a blob.
    ///
    /// # Errors
    ///
    /// zstd's: there is no memory.
    pub fn new(out: W) -> io::Result<Self> {
        Ok(Self {
            out: HashingWriter::new(out),
            compressor: compressor()?,
            chunks: Vec::new(),
            at: 0,
            size: 0,
            uncompressed: Hasher::new(),
            last: Vec::new(),
        })
    }

    /// Writes the image's next bytes as a chunk. No bytes make no chunk.
    ///
    /// # Errors
    ///
    /// The output's.
    pub fn chunk(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.flush_last()?;
        self.uncompressed.update(bytes);
        self.last = self.compressor.compress(bytes)?;
        self.chunks.push((self.at, self.size, [0; 32]));
        self.size += bytes.len() as u64;
        Ok(())
    }

    /// Writes the index. Returns the output, which isn't flushed.
    ///
    /// # Errors
    ///
    /// The output's; over 4 GiB of index.
    pub fn finish(mut self) -> io::Result<(W, Written)> {
        // A frame of padding has 8 bytes at least; the specification counts it to the last chunk.
        let over = (self.at + self.last.len() as u64) % ALIGNMENT;
        if over > 0 {
            let padding = frame(&[0; ALIGNMENT as usize][over as usize..]);
            self.last.extend(padding.ok_or_else(too_long)?);
        }
        self.flush_last()?;
        let index = Index::to_bytes(self.size, &self.chunks).ok_or_else(too_long)?;
        let framed = frame(&index).ok_or_else(too_long)?;
        self.out.write_all(&framed)?;
        let (out, digest, size) = self.out.finish();
        let written = Written {
            digest,
            size,
            uncompressed: self.uncompressed.finish(),
            uncompressed_size: self.size,
            index: size - index.len() as u64 - FRAME_HEADER..size,
            index_digest: Digest::of(&index),
        };
        Ok((out, written))
    }

    fn flush_last(&mut self) -> io::Result<()> {
        if let Some((_, _, checksum)) = self.chunks.last_mut() {
            *checksum = *Digest::of(&self.last).as_bytes();
        }
        self.out.write_all(&self.last)?;
        self.at += self.last.len() as u64;
        self.last.clear();
        Ok(())
    }
}

/// Returns a chunk with these bytes as it is in a blob, but for what aligns the index behind the last one.
///
/// # Errors
///
/// zstd's: there is no memory.
pub fn compress(bytes: &[u8]) -> io::Result<Vec<u8>> {
    compressor()?.compress(bytes)
}

fn compressor() -> io::Result<Compressor<'static>> {
    let mut compressor = Compressor::new(LEVEL)?;
    // The index has a checksum of each frame, and a reader needs its length.
    compressor.include_checksum(false)?;
    compressor.include_contentsize(true)?;
    Ok(compressor)
}

/// Returns `bytes` in a frame that readers of zstd pass over; `None` if they are too many.
fn frame(bytes: &[u8]) -> Option<Vec<u8>> {
    let length = u32::try_from(bytes.len()).ok()?;
    let mut frame = SKIPPABLE.to_le_bytes().to_vec();
    frame.extend(length.to_le_bytes());
    frame.extend(bytes);
    Some(frame)
}

fn too_long() -> io::Error {
    io::Error::new(
        io::ErrorKind::FileTooLarge,
        "the chunk index would have over 4 GiB",
    )
}

impl<W> std::fmt::Debug for Writer<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer")
            .field("chunks", &self.chunks.len())
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}
