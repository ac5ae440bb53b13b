//! Reads an image from its chunks.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};

use micabox_oci::Digest;

use crate::list::{List, Place};

/// Packs that are open at a time.
const OPEN: usize = 64;
/// Chunks that are kept, of 256 KiB at most: metadata is read in small pieces.
const KEPT: usize = 16;

/// An image that is read from its chunks. Each is checked before a byte of it is returned.
pub struct Image<O> {
    list: List,
    open: O,
    packs: Mutex<HashMap<Digest, Arc<File>>>,
    /// Those that were read last, by number, the last one first.
    kept: Mutex<VecDeque<(usize, Arc<[u8]>)>>,
}

impl<O: Fn(&Digest) -> io::Result<File>> Image<O> {
    /// Makes an image of a list; `open` opens a pack.
    pub fn new(list: List, open: O) -> Self {
        Self {
            list,
            open,
            packs: Mutex::default(),
            kept: Mutex::default(),
        }
    }

    /// Returns what it is made of.
    pub fn list(&self) -> &List {
        &self.list
    }

    /// Fills `buffer` from `offset`, in bytes.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::UnexpectedEof`] beyond the end; [`io::ErrorKind::InvalidData`] for a chunk that is damaged; those
    /// of `open` and of reading a pack.
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

    fn kept(&self, number: usize) -> io::Result<Option<Arc<[u8]>>> {
        let lock = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let mut kept = lock();
        if let Some(at) = kept.iter().position(|(kept, _)| *kept == number) {
            let found = kept.remove(at);
            let bytes = found.as_ref().map(|(_, bytes)| Arc::clone(bytes));
            kept.extend(found);
            return Ok(bytes);
        }
        drop(kept);
        let Some(bytes) = self.chunk(number)? else {
            return Ok(None);
        };
        let bytes: Arc<[u8]> = bytes.into();
        let mut kept = lock();
        if kept.len() >= KEPT {
            kept.pop_front();
        }
        kept.push_back((number, Arc::clone(&bytes)));
        Ok(Some(bytes))
    }

    /// Reads and checks a chunk; `None` if it is zeros, or there is none with this number.
    ///
    /// # Errors
    ///
    /// Those of [`Image::read_exact_at`].
    pub fn chunk(&self, number: usize) -> io::Result<Option<Vec<u8>>> {
        let chunk = self.list.chunks().get(number);
        let Some((length, place)) = chunk.and_then(|chunk| Some((chunk.length, chunk.place?)))
        else {
            return Ok(None);
        };
        let damaged = |problem: &str| {
            let pack = self.list.packs().get(place.pack as usize);
            let pack = pack.map(ToString::to_string).unwrap_or_default();
            let at = place.offset;
            let problem = format!("the chunk at {at} of pack {pack} {problem}");
            io::Error::new(io::ErrorKind::InvalidData, problem)
        };
        let mut frame = vec![0; place.packed as usize];
        self.pack(&place)?
            .read_exact_at(&mut frame, place.offset)
            .map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => damaged("is behind its end"),
                _ => error,
            })?;
        let bytes = zstd::bulk::decompress(&frame, length as usize);
        let bytes = bytes.map_err(|error| damaged(&format!("can't be inflated: {error}")))?;
        if bytes.len() != length as usize || Digest::of(&bytes) != place.digest {
            return Err(damaged("has other bytes than its list says"));
        }
        Ok(Some(bytes))
    }

    fn pack(&self, place: &Place) -> io::Result<Arc<File>> {
        let digest = self.list.packs().get(place.pack as usize);
        let digest = digest.ok_or(io::ErrorKind::NotFound)?;
        let mut packs = self.packs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = packs.get(digest) {
            return Ok(Arc::clone(file));
        }
        let file = Arc::new((self.open)(digest)?);
        if packs.len() >= OPEN {
            packs.clear();
        }
        packs.insert(*digest, Arc::clone(&file));
        Ok(file)
    }

    /// Writes the image into an empty file: zeros are holes. `watch` is called with the number of bytes that are done, and
    /// returns whether to go on; with [`io::ErrorKind::Interrupted`] it did not.
    ///
    /// # Errors
    ///
    /// Those of [`Image::read_exact_at`], and of writing.
    pub fn write_to(&self, file: &File, watch: &mut dyn FnMut(u64) -> bool) -> io::Result<()> {
        let mut at = 0;
        for (number, chunk) in self.list.chunks().iter().enumerate() {
            if let Some(bytes) = self.chunk(number)? {
                file.write_all_at(&bytes, at)?;
            }
            at += u64::from(chunk.length);
            if !watch(at) {
                return Err(io::ErrorKind::Interrupted.into());
            }
        }
        file.set_len(at)
    }
}

impl<O> std::fmt::Debug for Image<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Image")
            .field("size", &self.list.size())
            .field("chunks", &self.list.chunks().len())
            .finish_non_exhaustive()
    }
}
