//! Inflates compressed files of EROFS images, part by part.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, Read};
use std::ops::Range;

use flate2::read::DeflateDecoder;
use micabox_erofs::reader::{Algorithm, Cluster, Clusters, Inode, Place, Reader};
use micabox_erofs::{Error as ErofsError, ReadAt, Result};
use zstd::stream::read::Decoder as ZstdDecoder;

use super::lz4;

/// Most parts of the packed inode, which are in memory.
const PARTS_MOST: usize = 1 << 20;
/// Bytes of the packed inode that are read at once.
const PIECE: u64 = 1 << 20;
/// Largest window of zstd, as a power of two: the longest part has 12 MiB.
const WINDOW: u32 = 24;

/// Inflates files of an image.
pub(super) struct Inflater<'a, R> {
    reader: &'a Reader<R>,
    /// The ends of files, once one was asked for.
    packed: RefCell<Option<PackedInode>>,
}

/// The inode that has the ends of files.
struct PackedInode {
    inode: Inode,
    /// Its parts; none if it is not compressed.
    parts: Vec<Cluster>,
    /// The part that was inflated last, and its bytes.
    last: Option<(u64, Vec<u8>)>,
}

/// A compressed file that is read.
pub(super) struct File<'a, R> {
    inflater: &'a Inflater<'a, R>,
    clusters: Clusters<'a, R>,
    inflated: VecDeque<u8>,
    /// What of the packed inode comes next.
    fragment: Range<u64>,
}

impl<'a, R: ReadAt> Inflater<'a, R> {
    pub fn new(reader: &'a Reader<R>) -> Self {
        Self {
            reader,
            packed: RefCell::default(),
        }
    }

    /// Returns a file's bytes.
    pub fn file(&self, inode: &Inode) -> Result<File<'_, R>> {
        Ok(File {
            inflater: self,
            clusters: self.reader.clusters(inode)?,
            inflated: VecDeque::new(),
            fragment: 0..0,
        })
    }

    /// Returns a part's bytes, unless they are in the packed inode.
    fn inflate(&self, cluster: &Cluster) -> Result<Vec<u8>> {
        if let Place::Fragment { .. } = cluster.at {
            return Err(ErofsError::Corrupt("the packed inode ends in itself"));
        }
        // At most 12 MiB.
        let mut out = vec![0; cluster.length as usize];
        match cluster.at {
            Place::Stored { at, size, first } => {
                let stored = self.stored(at, size)?;
                let first = first as usize;
                for (number, byte) in out.iter_mut().enumerate() {
                    let from = (first + number) % stored.len().max(1);
                    *byte = stored.get(from).copied().unwrap_or_default();
                }
            }
            Place::Packed {
                at,
                size,
                algorithm,
            } => {
                let stored = self.stored(at, size)?;
                let zeros = stored.iter().take_while(|byte| **byte == 0).count();
                let packed = stored.get(zeros..).unwrap_or_default();
                inflate(algorithm, packed, &mut out)?;
            }
            Place::Fragment { .. } => {}
        }
        Ok(out)
    }

    fn stored(&self, at: u64, size: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; size as usize];
        let read = self.reader.source().read_exact_at(&mut bytes, at);
        read.map_err(ErofsError::Read)?;
        Ok(bytes)
    }

    /// Reads from the packed inode.
    fn fragment(&self, mut offset: u64, mut out: &mut [u8]) -> Result<()> {
        let mut packed = self.packed.borrow_mut();
        let packed = match &mut *packed {
            Some(packed) => packed,
            none => none.insert(self.open_packed()?),
        };
        let end = offset.checked_add(out.len() as u64);
        if end.is_none_or(|end| end > packed.inode.size) {
            return Err(ErofsError::Corrupt(
                "a file ends outside of the packed inode",
            ));
        }
        if packed.parts.is_empty() {
            self.reader.read(&packed.inode, offset, out)?;
            return Ok(());
        }
        while !out.is_empty() {
            let after = packed.parts.partition_point(|part| part.offset <= offset);
            let part = after
                .checked_sub(1)
                .and_then(|number| packed.parts.get(number));
            let part = part.ok_or(ErofsError::Corrupt("the packed inode has a hole"))?;
            let is_here = |(at, _): &(u64, Vec<u8>)| *at == part.offset;
            if !packed.last.as_ref().is_some_and(is_here) {
                packed.last = Some((part.offset, self.inflate(part)?));
            }
            let bytes = packed.last.as_ref().map(|(_, bytes)| bytes.as_slice());
            let from = bytes
                .unwrap_or_default()
                .get((offset - part.offset) as usize..);
            let from = from.unwrap_or_default();
            let count = from.len().min(out.len());
            if count == 0 {
                return Err(ErofsError::Corrupt("the packed inode has a hole"));
            }
            let (now, rest) = out.split_at_mut(count);
            now.copy_from_slice(from.get(..count).unwrap_or_default());
            out = rest;
            offset += count as u64;
        }
        Ok(())
    }

    fn open_packed(&self) -> Result<PackedInode> {
        let inode = self.reader.packed_inode()?;
        let mut parts = Vec::new();
        if self.reader.is_compressed(&inode) {
            for part in self.reader.clusters(&inode)? {
                if parts.len() == PARTS_MOST {
                    return Err(ErofsError::Unsupported("a packed inode of a million parts"));
                }
                parts.push(part?);
            }
        }
        Ok(PackedInode {
            inode,
            parts,
            last: None,
        })
    }
}

/// Fills `out` with what `packed` contains, of which it may be only the beginning.
fn inflate(algorithm: Algorithm, packed: &[u8], out: &mut [u8]) -> Result<()> {
    let inflated = match algorithm {
        Algorithm::Lz4 => lz4::inflate(packed, out).ok_or(io::ErrorKind::InvalidData.into()),
        Algorithm::Deflate => DeflateDecoder::new(packed).read_exact(out),
        Algorithm::Zstd => ZstdDecoder::new(packed).and_then(|mut decoder| {
            decoder.window_log_max(WINDOW)?;
            decoder.read_exact(out)
        }),
        Algorithm::Lzma => return Err(ErofsError::Compressed("lzma")),
    };
    inflated.map_err(|_: io::Error| ErofsError::Corrupt("compressed data of a file is damaged"))
}

impl<R: ReadAt> File<'_, R> {
    /// Returns the next bytes; `None` at the end.
    fn inflate_next(&mut self) -> Result<Option<Vec<u8>>> {
        if self.fragment.is_empty() {
            let Some(cluster) = self.clusters.next().transpose()? else {
                return Ok(None);
            };
            let Place::Fragment { offset } = cluster.at else {
                return self.inflater.inflate(&cluster).map(Some);
            };
            let end = offset.checked_add(cluster.length);
            self.fragment = offset..end.unwrap_or(u64::MAX);
        }
        let Range { start, end } = self.fragment;
        self.fragment.start = end.min(start.saturating_add(PIECE));
        let mut bytes = vec![0; (self.fragment.start - start) as usize];
        self.inflater.fragment(start, &mut bytes)?;
        Ok(Some(bytes))
    }
}

impl<R: ReadAt> Read for File<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.inflated.is_empty() {
            let next = self.inflate_next().map_err(io::Error::other)?;
            let Some(inflated) = next else {
                return Ok(0);
            };
            self.inflated = inflated.into();
        }
        self.inflated.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_inflated_is_named_and_what_is_damaged_is_an_error() {
        let mut out = [0; 9];
        let lzma = inflate(Algorithm::Lzma, b"x", &mut out).unwrap_err();
        assert!(lzma.to_string().contains("compressed (lzma)"), "{lzma}");
        for algorithm in [Algorithm::Lz4, Algorithm::Deflate, Algorithm::Zstd] {
            for packed in [&b""[..], b"x", &[0xff; 100]] {
                let damaged = inflate(algorithm, packed, &mut out).unwrap_err();
                assert!(matches!(damaged, ErofsError::Corrupt(_)), "{damaged}");
            }
        }
    }

    #[test]
    fn zstd_and_deflate_give_what_was_packed_or_its_beginning() {
        let text = b"compressed within an image, ".repeat(50);
        let zstd = zstd::encode_all(&text[..], 3).unwrap();
        let mut deflate =
            flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
        io::Write::write_all(&mut deflate, &text).unwrap();
        let deflate = deflate.finish().unwrap();
        for (algorithm, packed) in [(Algorithm::Zstd, zstd), (Algorithm::Deflate, deflate)] {
            for length in [1, 700, text.len()] {
                let mut out = vec![0; length];
                inflate(algorithm, &packed, &mut out).unwrap();
                assert_eq!(out, text[..length]);
            }
        }
    }
}
