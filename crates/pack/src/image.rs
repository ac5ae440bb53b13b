//! Reads an image from its chunks.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use micabox_oci::Digest;

use crate::list::{Frame, List};
use crate::recent::Recent;

/// Chunks that are kept, of 256 KiB at most: metadata is read in small pieces.
const CHUNKS: usize = 16;
/// Frames that are kept, of 1 MiB at most: their chunks follow each other in most images.
const FRAMES: usize = 8;

/// An image that is read from its chunks. Each is checked before a byte of it is returned.
pub struct Image {
    list: List,
    /// In the order of the list's.
    packs: Vec<File>,
    cache: Arc<Cache>,
}

/// What was read last, of any number of images: at most 12 MiB.
#[derive(Debug)]
pub struct Cache {
    /// By digest.
    chunks: Recent<Digest>,
    /// By the digest of the pack, and offset and lengths there.
    frames: Recent<(Digest, u64, u32, u32)>,
}

impl Default for Cache {
    fn default() -> Self {
        Self {
            chunks: Recent::new(CHUNKS),
            frames: Recent::new(FRAMES),
        }
    }
}

impl Image {
    /// Makes an image of a list; `open` opens a pack. All are opened, so they may be removed afterwards.
    ///
    /// # Errors
    ///
    /// Those of `open`.
    pub fn new(list: List, open: impl Fn(&Digest) -> io::Result<File>) -> io::Result<Self> {
        let packs: io::Result<_> = list.packs().iter().map(open).collect();
        Ok(Self {
            list,
            packs: packs?,
            cache: Arc::default(),
        })
    }

    /// Returns the same image, which keeps what it reads where others do too.
    #[must_use]
    pub fn with_cache(mut self, cache: &Arc<Cache>) -> Self {
        self.cache = Arc::clone(cache);
        self
    }

    /// Returns what it is made of.
    pub fn list(&self) -> &List {
        &self.list
    }

    /// Returns the offset of the next byte that isn't in a hole, from `at` on; the image's length if there is none.
    pub fn next_data(&self, at: u64) -> u64 {
        let Some((number, _)) = self.list.find(at) else {
            return self.list.size();
        };
        let chunks = self.list.chunks().iter().enumerate().skip(number);
        let mut data = chunks.filter(|(_, chunk)| chunk.place.is_some());
        let start = data.next().and_then(|(number, _)| self.list.start(number));
        start.map_or(self.list.size(), |start| start.max(at))
    }

    /// Fills `buffer` from `offset`, in bytes.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::UnexpectedEof`] beyond the end; [`io::ErrorKind::InvalidData`] for a chunk that is damaged; those
    /// of reading a pack.
    pub fn read_exact_at(&self, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buffer.is_empty() {
            let found = self.list.find(offset);
            let (number, start) = found.ok_or(io::ErrorKind::UnexpectedEof)?;
            let length = self
                .list
                .chunks()
                .get(number)
                .map_or(0, |chunk| chunk.length);
            let within = offset - start;
            let count = (u64::from(length) - within).min(buffer.len() as u64) as usize;
            let (now, later) = buffer.split_at_mut(count);
            match self.kept(number)? {
                Some(bytes) => {
                    let within = within as usize;
                    now.copy_from_slice(bytes.get(within..within + count).unwrap_or_default());
                }
                None => now.fill(0),
            }
            buffer = later;
            offset += count as u64;
        }
        Ok(())
    }

    fn kept(&self, number: usize) -> io::Result<Option<Arc<Vec<u8>>>> {
        let chunk = self.list.chunks().get(number);
        let Some(place) = chunk.and_then(|chunk| chunk.place) else {
            return Ok(None);
        };
        let bytes = self.cache.chunks.get(place.digest, || {
            let chunk = self.with_chunk(number, <[u8]>::to_vec)?;
            chunk.ok_or_else(|| io::ErrorKind::NotFound.into())
        });
        bytes.map(Some)
    }

    /// Passes a chunk to `used` once it is checked, and returns what that does; `None` if it is zeros, or there is none
    /// with this number.
    ///
    /// # Errors
    ///
    /// Those of [`Image::read_exact_at`].
    pub fn with_chunk<T>(
        &self,
        number: usize,
        used: impl FnOnce(&[u8]) -> T,
    ) -> io::Result<Option<T>> {
        let chunk = self.list.chunks().get(number);
        let Some((length, place)) = chunk.and_then(|chunk| Some((chunk.length, chunk.place?)))
        else {
            return Ok(None);
        };
        let (frame, content) = self.frame(place.frame as usize)?;
        let within = place.within as usize;
        let bytes = content.get(within..within + length as usize);
        match bytes.filter(|bytes| Digest::of(bytes) == place.digest) {
            Some(bytes) => Ok(Some(used(bytes))),
            None => Err(self.damaged(&frame, "has other bytes than its list says")),
        }
    }

    /// Reads and inflates a frame.
    fn frame(&self, number: usize) -> io::Result<(Frame, Arc<Vec<u8>>)> {
        let frame = *self
            .list
            .frames()
            .get(number)
            .ok_or(io::ErrorKind::NotFound)?;
        let pack = self.list.packs().get(frame.pack as usize);
        let pack = *pack.ok_or(io::ErrorKind::NotFound)?;
        let key = (pack, frame.offset, frame.packed, frame.length);
        let content = self.cache.frames.get(key, || {
            let mut packed = vec![0; frame.packed as usize];
            let pack = self.packs.get(frame.pack as usize);
            pack.ok_or(io::ErrorKind::NotFound)?
                .read_exact_at(&mut packed, frame.offset)
                .map_err(|error| match error.kind() {
                    io::ErrorKind::UnexpectedEof => self.damaged(&frame, "is behind its end"),
                    _ => error,
                })?;
            let content = zstd::bulk::decompress(&packed, frame.length as usize);
            content.map_err(|error| self.damaged(&frame, &format!("can't be inflated: {error}")))
        });
        Ok((frame, content?))
    }

    fn damaged(&self, frame: &Frame, problem: &str) -> io::Error {
        let pack = self.list.packs().get(frame.pack as usize);
        let pack = pack.map(ToString::to_string).unwrap_or_default();
        let problem = format!("the frame at {} of pack {pack} {problem}", frame.offset);
        io::Error::new(io::ErrorKind::InvalidData, problem)
    }
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Image")
            .field("size", &self.list.size())
            .field("chunks", &self.list.chunks().len())
            .finish_non_exhaustive()
    }
}
