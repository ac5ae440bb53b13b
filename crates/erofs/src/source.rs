//! Sources of a reader's bytes.

use micabox_file::narrow::in_memory;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Random access to the bytes of an image.
pub trait ReadAt {
    /// Fills `buf` from `offset`, given in bytes.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::UnexpectedEof`] if the source ends early; otherwise the source's.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Returns the length in bytes.
    ///
    /// # Errors
    ///
    /// Those of the source.
    fn size(&self) -> io::Result<u64>;
}

impl ReadAt for File {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, buf, offset)
    }

    /// Moves the file's cursor. Works for block devices, whose metadata has no length.
    fn size(&self) -> io::Result<u64> {
        let mut file = self;
        file.seek(SeekFrom::End(0))
    }
}

impl ReadAt for [u8] {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let from = usize::try_from(offset)
            .ok()
            .and_then(|from| self.get(from..)?.get(..buf.len()));
        match from {
            Some(bytes) => {
                buf.copy_from_slice(bytes);
                Ok(())
            }
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }
}

impl ReadAt for Vec<u8> {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.as_slice().read_exact_at(buf, offset)
    }

    fn size(&self) -> io::Result<u64> {
        self.as_slice().size()
    }
}

impl<R: ReadAt + ?Sized> ReadAt for &R {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        (**self).read_exact_at(buf, offset)
    }

    fn size(&self) -> io::Result<u64> {
        (**self).size()
    }
}

impl<R: ReadAt + ?Sized> ReadAt for Arc<R> {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        (**self).read_exact_at(buf, offset)
    }

    fn size(&self) -> io::Result<u64> {
        (**self).size()
    }
}

/// Caches recently read data in large pieces, for readers with many small reads.
///
/// The source must not change. Not for use by several threads; each thread creates its own.
#[derive(Debug)]
pub struct Cached<R> {
    source: R,
    size: u64,
    windows: RefCell<Windows>,
}

/// Size of a piece in bytes.
const WINDOW: u64 = 256 * 1024;
/// Maximum number of pieces kept; 4 MiB in all.
const WINDOWS: usize = 16;

#[derive(Debug, Default)]
struct Windows {
    /// Index into `kept` by number of the piece.
    index: HashMap<u64, usize>,
    kept: Vec<(u64, Vec<u8>)>,
    /// Index of the piece that is replaced next.
    oldest: usize,
}

impl<R: ReadAt> Cached<R> {
    /// Reads through `source`.
    ///
    /// # Errors
    ///
    /// Fails if the length of the source can't be determined.
    pub fn new(source: R) -> io::Result<Self> {
        Ok(Self {
            size: source.size()?,
            source,
            windows: RefCell::default(),
        })
    }

    /// Copies from one piece; returns the number of bytes copied.
    fn read_some(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let number = offset / WINDOW;
        let mut windows = self.windows.borrow_mut();
        let place = match windows.index.get(&number) {
            Some(&place) => place,
            None => windows.load(number, &self.source, self.size)?,
        };
        let from = (offset % WINDOW) as usize;
        let bytes = windows
            .kept
            .get(place)
            .and_then(|(_, bytes)| bytes.get(from..))
            .unwrap_or_default();
        let count = bytes.len().min(buf.len());
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        buf[..count].copy_from_slice(&bytes[..count]);
        Ok(count)
    }
}

impl Windows {
    fn load<R: ReadAt>(&mut self, number: u64, source: &R, size: u64) -> io::Result<usize> {
        let start = number.saturating_mul(WINDOW);
        let length = size.saturating_sub(start).min(WINDOW) as usize;
        let place = if self.kept.len() < WINDOWS {
            self.kept.push((number, Vec::new()));
            self.kept.len() - 1
        } else {
            self.oldest = (self.oldest + 1) % WINDOWS;
            self.oldest
        };
        let (old, bytes) = &mut self.kept[place];
        self.index.remove(old);
        *old = number;
        bytes.resize(length, 0);
        source.read_exact_at(bytes, start)?;
        self.index.insert(number, place);
        Ok(place)
    }
}

impl<R: ReadAt> ReadAt for Cached<R> {
    fn read_exact_at(&self, mut buf: &mut [u8], mut offset: u64) -> io::Result<()> {
        if buf.len() as u64 >= WINDOW {
            return self.source.read_exact_at(buf, offset);
        }
        while !buf.is_empty() {
            let count = self.read_some(buf, offset)?;
            buf = &mut buf[count..];
            offset += count as u64;
        }
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.size)
    }
}

/// Several sources one after the other: the flat address space of an image and the devices in its
/// table.
#[derive(Debug)]
pub struct Concat<R> {
    parts: Vec<Part<R>>,
    size: u64,
}

#[derive(Debug)]
struct Part<R> {
    source: R,
    start: u64,
    /// Length of the source in bytes.
    length: u64,
    /// Length of the part in bytes; what lies past the end of the source reads as zeros.
    padded: u64,
}

impl<R: ReadAt> Concat<R> {
    /// Concatenates the sources, each padded with zeros to a multiple of `align` bytes.
    ///
    /// # Errors
    ///
    /// Fails if the length of a source can't be determined, or if the total is too large.
    pub fn new(sources: impl IntoIterator<Item = R>, align: u64) -> io::Result<Self> {
        let mut parts = Vec::new();
        let mut size = 0u64;
        for source in sources {
            let length = source.size()?;
            let end = length
                .checked_next_multiple_of(align.max(1))
                .and_then(|padded| size.checked_add(padded))
                .ok_or(io::ErrorKind::FileTooLarge)?;
            parts.push(Part {
                source,
                start: size,
                length,
                padded: end - size,
            });
            size = end;
        }
        Ok(Self { parts, size })
    }
}

impl<R: ReadAt> ReadAt for Concat<R> {
    fn read_exact_at(&self, mut buf: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buf.is_empty() {
            let index = self
                .parts
                .partition_point(|part| part.start + part.padded <= offset);
            let part = self.parts.get(index).ok_or(io::ErrorKind::UnexpectedEof)?;
            let at = offset - part.start;
            let end = if at < part.length {
                part.length
            } else {
                part.padded
            };
            let count = in_memory((end - at).min(buf.len() as u64));
            let (now, later) = buf.split_at_mut(count);
            if at < part.length {
                part.source.read_exact_at(now, at)?;
            } else {
                now.fill(0);
            }
            buf = later;
            offset += count as u64;
        }
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_returns_what_the_source_has() {
        let bytes: Vec<u8> = (0..5_000_000u32).map(|i| (i / 7) as u8).collect();
        let cached = Cached::new(&bytes).unwrap();
        let mut buf = [0; 1000];
        for i in 0..20_000u64 {
            let offset = i * 7919 % (5_000_000 - 1000);
            cached.read_exact_at(&mut buf, offset).unwrap();
            assert_eq!(buf, bytes[offset as usize..][..1000]);
        }
        assert!(cached.read_exact_at(&mut buf, 5_000_000 - 999).is_err());
        assert!(cached.read_exact_at(&mut buf, u64::MAX - 3).is_err());
    }

    #[test]
    fn parts_are_padded_with_zeros() {
        let concat = Concat::new([&b"abc"[..], &b"defgh"[..], &b""[..], &b"i"[..]], 4).unwrap();
        let mut all = vec![1; concat.size().unwrap() as usize];
        concat.read_exact_at(&mut all, 0).unwrap();
        assert_eq!(&all, b"abc\0defgh\0\0\0i\0\0\0");
        assert!(concat.read_exact_at(&mut all[..2], 15).is_err());
    }
}
