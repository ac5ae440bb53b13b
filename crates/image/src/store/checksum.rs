//! Checksums of stored images: `fsck` uses them to check that an image still has the bytes it was
//! written with.
//!
//! A checksum is BLAKE3 over three parts: the digest of all blocks that aren't zeros, the digest
//! of their positions (pairs of first block and number of blocks, 64 bits each, little-endian),
//! and the head. Blocks of zeros cost nothing, as a few kilobytes of archive can describe
//! terabytes of them; and the head comes last, as the superblock and the device table in it are
//! written last, so that the checksum can be computed while writing.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::str::FromStr;

use micabox_erofs::{BLOCK_SIZE, ReadAt};
use rustix::fs::SeekFrom as Find;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::writeback::Writeback;

const BLOCK: usize = BLOCK_SIZE as usize;
const BUFFER: usize = 256 << 10;
/// The head: superblock and a device table of 2,000 layers, in whole blocks.
const HEAD: usize = 256 << 10;

/// The checksum of a stored image.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Checksum(blake3::Hash);

impl Checksum {
    /// Computes the checksum of the first `length` bytes of a stored image: all but its padding.
    /// Moves the file's cursor.
    pub(crate) fn of_file(file: &File, length: u64) -> io::Result<Self> {
        Self::of(file, length, |at| next_data(file, at))
    }

    /// Computes the checksum of the first `length` bytes of an image. `next_data` returns the offset of the next byte
    /// that isn't in a hole, from one on.
    pub(crate) fn of(
        image: &impl ReadAt,
        length: u64,
        next_data: impl Fn(u64) -> io::Result<u64>,
    ) -> io::Result<Self> {
        let mut hasher = Hasher::new();
        let mut buffer = vec![0; BUFFER];
        let mut at = 0;
        while at < length {
            at = next_data(at)? / BLOCK_SIZE * BLOCK_SIZE;
            let count = length.saturating_sub(at).min(BUFFER as u64) as usize;
            image.read_exact_at(&mut buffer[..count], at)?;
            hasher.write(at, &buffer[..count])?;
            at += count as u64;
        }
        Ok(hasher.finish())
    }
}

/// Returns the offset of the next byte that isn't in a hole, from `at` on.
pub(super) fn next_data(file: &File, at: u64) -> io::Result<u64> {
    match rustix::fs::seek(file, Find::Data(at)) {
        Ok(data) => Ok(data),
        // Only a hole up to the end.
        Err(rustix::io::Errno::NXIO) => Ok(file.metadata()?.len()),
        // Not every filesystem supports holes.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::OPNOTSUPP) => Ok(at),
        Err(error) => Err(error.into()),
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "blake3:{}", self.0.to_hex())
    }
}

impl fmt::Debug for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Checksum {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Checksum {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl FromStr for Checksum {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let hex = text.strip_prefix("blake3:");
        let hex = hex.ok_or("a checksum starts with `blake3:`")?;
        let hash = blake3::Hash::from_hex(hex).map_err(|error| error.to_string())?;
        Ok(Self(hash))
    }
}

/// Computes a checksum over whole blocks that come in order, except for the head.
pub(crate) struct Hasher {
    blocks: blake3::Hasher,
    runs: blake3::Hasher,
    /// The last run of blocks that aren't zeros, which may still grow: first block and end.
    run: Range<u64>,
    head: Box<[u8]>,
}

impl Hasher {
    pub(crate) fn new() -> Self {
        Self {
            blocks: blake3::Hasher::new(),
            runs: blake3::Hasher::new(),
            run: HEAD as u64 / BLOCK_SIZE..HEAD as u64 / BLOCK_SIZE,
            head: vec![0; HEAD].into(),
        }
    }

    /// Adds `bytes` at offset `at`. Skipped bytes are zeros.
    pub(crate) fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let head = (HEAD as u64).saturating_sub(at).min(bytes.len() as u64) as usize;
        let (head, rest) = bytes.split_at(head);
        if !head.is_empty() {
            let at = at as usize; // inside the head
            self.head[at..at + head.len()].copy_from_slice(head);
        }
        let mut block = (at + head.len() as u64) / BLOCK_SIZE;
        let in_order = rest.is_empty() || block >= self.run.end;
        let whole = rest.len().is_multiple_of(BLOCK)
            && (rest.is_empty() || (at + head.len() as u64).is_multiple_of(BLOCK_SIZE));
        if !in_order || !whole {
            return Err(io::Error::other(
                "an image was not written block by block, in order",
            ));
        }
        let mut rest = rest;
        while !rest.is_empty() {
            let zeros = leading_blocks(rest, is_zero);
            block += (zeros / BLOCK) as u64;
            let data = leading_blocks(&rest[zeros..], |block| !is_zero(block));
            let data = &rest[zeros..zeros + data];
            if !data.is_empty() {
                if block != self.run.end {
                    self.end_run();
                    self.run.start = block;
                }
                // In one piece: BLAKE3 is fast on many kilobytes at a time.
                self.blocks.update(data);
                block += (data.len() / BLOCK) as u64;
                self.run.end = block;
            }
            rest = &rest[zeros + data.len()..];
        }
        Ok(())
    }

    fn end_run(&mut self) {
        self.runs.update(&self.run.start.to_le_bytes());
        self.runs
            .update(&(self.run.end - self.run.start).to_le_bytes());
    }

    pub(crate) fn finish(mut self) -> Checksum {
        self.end_run();
        let mut all = blake3::Hasher::new();
        all.update(self.blocks.finalize().as_bytes());
        all.update(self.runs.finalize().as_bytes());
        all.update(&self.head);
        Checksum(all.finalize())
    }
}

/// Returns the length in bytes of the whole blocks at the start of `bytes` that satisfy `wanted`.
fn leading_blocks(bytes: &[u8], wanted: impl Fn(&[u8]) -> bool) -> usize {
    bytes
        .chunks(BLOCK)
        .take_while(|block| wanted(block))
        .map(<[u8]>::len)
        .sum()
}

fn is_zero(block: &[u8]) -> bool {
    // Almost every block differs in its first byte.
    block.first() == Some(&0) && block.iter().all(|&byte| byte == 0)
}

/// A file that an image is written to, with a checksum that is computed meanwhile.
pub(crate) struct ChecksummedFile {
    file: File,
    at: u64,
    hasher: Hasher,
    writeback: Writeback,
}

impl ChecksummedFile {
    /// Wraps `file`, which must be empty.
    pub fn new(file: File) -> Self {
        Self {
            file,
            at: 0,
            hasher: Hasher::new(),
            writeback: Writeback::default(),
        }
    }

    /// Returns the file, which ends with the last byte written and isn't synced, and its checksum.
    ///
    /// # Errors
    ///
    /// Any error of the disk so far.
    pub fn finish(mut self) -> io::Result<(File, Checksum)> {
        self.writeback.finish()?;
        Ok((self.file, self.hasher.finish()))
    }
}

impl Write for ChecksummedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // All of it, or a full disk would split a block before the error.
        self.file.write_all(bytes)?;
        self.hasher.write(self.at, bytes)?;
        self.at += bytes.len() as u64;
        self.writeback.written(&self.file, bytes.len() as u64)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Seek for ChecksummedFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.at = self.file.seek(to)?;
        Ok(self.at)
    }
}

impl Read for ChecksummedFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.at += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    fn written(pieces: &[(u64, &[u8])]) -> (File, Checksum) {
        let mut file = ChecksummedFile::new(tempfile::tempfile().unwrap());
        for &(at, bytes) in pieces {
            file.seek(SeekFrom::Start(at)).unwrap();
            file.write_all(bytes).unwrap();
        }
        file.finish().unwrap()
    }

    #[test]
    fn the_checksum_while_writing_is_that_of_the_file() {
        let body = [7; 3 * BLOCK];
        for pieces in [
            &[(4096, &body[..]), (1024, b"super")][..],
            &[(4096, &body[..]), (1 << 30, &body), (1024, b"super")],
            &[
                (0, &body[..]),
                (3 * 4096, &[0; 5 * BLOCK]),
                (8 * 4096, &body),
            ],
            &[(0, &body[..]), (3 * 4096, &body)],
            &[(4096, &[0; BLOCK]), (10, b"only a head")],
            // A device table of many layers.
            &[
                (HEAD as u64 - 4096, &body),
                (1 << 30, &body),
                (1024, &[1; 60_000]),
            ],
        ] {
            let (file, checksum) = written(pieces);
            let length = file.metadata().unwrap().len();
            assert_eq!(Checksum::of_file(&file, length).unwrap(), checksum);
        }
    }

    #[test]
    fn zeros_may_be_written_or_left_out() {
        for base in [4096, HEAD as u64] {
            let (_, holes) = written(&[(base, &[1; BLOCK]), (base + 4 * 4096, &[2; BLOCK])]);
            let (_, zeros) = written(&[
                (base, &[1; BLOCK]),
                (base + 4096, &[0; 3 * BLOCK]),
                (base + 4 * 4096, &[2; BLOCK]),
            ]);
            let (_, elsewhere) = written(&[(base, &[1; BLOCK]), (base + 5 * 4096, &[2; BLOCK])]);
            assert_eq!(holes, zeros);
            assert_ne!(holes, elsewhere);
        }
    }

    #[test]
    fn writing_out_of_order_is_an_error() {
        let mut file = ChecksummedFile::new(tempfile::tempfile().unwrap());
        file.seek(SeekFrom::Start(HEAD as u64 + 4096)).unwrap();
        file.write_all(&[1; BLOCK]).unwrap();
        assert!(file.write(b"not a block").is_err());
        file.seek(SeekFrom::Start(HEAD as u64)).unwrap();
        assert!(file.write(&[1; BLOCK]).is_err());
    }

    #[test]
    fn a_checksum_changes_with_every_byte() {
        let (file, checksum) = written(&[(4096, &[1; 100 * BLOCK]), (0, b"head")]);
        let length = file.metadata().unwrap().len();
        for at in [0, 3, 4095, 4096, 299_999, length - 1] {
            let mut byte = [0];
            ReadAt::read_exact_at(&file, &mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 1], at).unwrap();
            assert_ne!(Checksum::of_file(&file, length).unwrap(), checksum, "{at}");
            file.write_all_at(&byte, at).unwrap();
        }
        assert_eq!(Checksum::of_file(&file, length).unwrap(), checksum);
    }

    #[test]
    fn text_form_round_trips() {
        let (_, checksum) = written(&[(0, b"x")]);
        let json = serde_json::to_string(&checksum).unwrap();
        assert_eq!(serde_json::from_str::<Checksum>(&json).unwrap(), checksum);
        assert!(serde_json::from_str::<Checksum>("\"sha256:00\"").is_err());
    }
}
