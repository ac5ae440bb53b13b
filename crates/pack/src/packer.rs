//! Writes a pack.

use std::collections::HashMap;
use std::io::{self, Write};

use micabox_oci::{Digest, HashingWriter};
use zstd::bulk::Compressor;

use crate::cut::LARGEST;
use crate::known::Known;
use crate::list::{Chunk, Frame, List, Place};

/// The first bytes of each pack; the last one is the format's version. Frames follow: of zstd, with the length of their
/// content and without a checksum.
pub const MAGIC: [u8; 8] = *b"mica-pk\x01";

/// Bytes of a frame's content at most: chunks that follow each other are compressed together, so that small files take
/// no more than in an archive.
pub const FRAME: usize = 1 << 20;

/// zstd's level of compression.
const LEVEL: i32 = 3;

/// Bytes of zeros that one entry of a list stands for at most.
const ZEROS: u64 = 1 << 30;

/// Makes an image's list, and writes those of its chunks that are in no pack yet into a new one.
pub struct Packer<'a, W> {
    out: HashingWriter<W>,
    known: &'a Known,
    compressor: Compressor<'static>,
    /// Bytes of the pack so far.
    at: u64,
    /// Content of the frame that is not written yet.
    content: Vec<u8>,
    /// That frame's number, if it has content.
    current: Option<u32>,
    /// Chunks of this pack.
    own: HashMap<Digest, Place>,
    /// Other packs that have chunks of this image, with their numbers in the list; the pack itself has number 0.
    others: HashMap<Digest, u32>,
    frames: Vec<Frame>,
    /// Numbers of frames of other packs.
    known_frames: HashMap<Frame, u32>,
    chunks: Vec<Chunk>,
}

/// A packed image.
#[derive(Debug)]
pub struct Packed<W> {
    /// What the image is made of.
    pub list: List,
    /// The new pack; `None` if each chunk is in one already.
    pub pack: Option<Pack>,
    /// The output, which isn't flushed: with no pack it has nothing of use.
    pub out: W,
}

/// A pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pack {
    /// Digest of its bytes, which names it.
    pub digest: Digest,
    /// Its length in bytes.
    pub size: u64,
}

impl<'a, W: Write> Packer<'a, W> {
    /// Begins an image.
    ///
    /// # Errors
    ///
    /// The output's; there is no memory.
    pub fn new(out: W, known: &'a Known) -> io::Result<Self> {
        let mut compressor = Compressor::new(LEVEL)?;
        // The list has each chunk's digest.
        compressor.include_checksum(false)?;
        let mut out = HashingWriter::new(out);
        out.write_all(&MAGIC)?;
        Ok(Self {
            out,
            known,
            compressor,
            at: MAGIC.len() as u64,
            content: Vec::with_capacity(FRAME),
            current: None,
            own: HashMap::new(),
            others: HashMap::new(),
            frames: Vec::new(),
            known_frames: HashMap::new(),
            chunks: Vec::new(),
        })
    }

    /// Adds the image's next bytes, 1 to [`LARGEST`] of them, as a chunk.
    ///
    /// # Errors
    ///
    /// The output's; [`io::ErrorKind::InvalidInput`] for another number of bytes.
    pub fn chunk(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() || bytes.len() > LARGEST {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let (digest, length) = (Digest::of(bytes), bytes.len() as u32);
        let place = match (self.own.get(&digest), self.known.find(&digest, length)) {
            (Some(place), _) => *place,
            (None, Some((pack, frame, within))) => Place {
                digest,
                frame: self.known_frame(pack, frame),
                within,
            },
            (None, None) => self.add(digest, bytes)?,
        };
        self.chunks.push(Chunk {
            length,
            place: Some(place),
        });
        Ok(())
    }

    /// Returns the number of a frame of another pack.
    fn known_frame(&mut self, pack: Digest, frame: Frame) -> u32 {
        let next = self.others.len() as u32 + 1;
        let pack = *self.others.entry(pack).or_insert(next);
        let frame = Frame { pack, ..frame };
        *self.known_frames.entry(frame).or_insert_with(|| {
            self.frames.push(frame);
            self.frames.len() as u32 - 1
        })
    }

    /// Adds a chunk to the frame that is not written yet.
    fn add(&mut self, digest: Digest, bytes: &[u8]) -> io::Result<Place> {
        if self.content.len() + bytes.len() > FRAME {
            self.end_frame()?;
        }
        let frame = *self.current.get_or_insert_with(|| {
            self.frames.push(Frame {
                pack: 0,
                offset: self.at,
                packed: 0,
                length: 0,
            });
            self.frames.len() as u32 - 1
        });
        let place = Place {
            digest,
            frame,
            within: self.content.len() as u32,
        };
        self.content.extend(bytes);
        self.own.insert(digest, place);
        Ok(place)
    }

    fn end_frame(&mut self) -> io::Result<()> {
        let current = self.current.take();
        let Some(frame) = current.and_then(|number| self.frames.get_mut(number as usize)) else {
            return Ok(());
        };
        let packed = self.compressor.compress(&self.content)?;
        self.out.write_all(&packed)?;
        frame.packed = packed.len() as u32;
        frame.length = self.content.len() as u32;
        self.at += packed.len() as u64;
        self.content.clear();
        Ok(())
    }

    /// Adds so many zeros, which take no space.
    pub fn zeros(&mut self, mut count: u64) {
        if let Some(Chunk {
            length,
            place: None,
        }) = self.chunks.last_mut()
        {
            let more = count.min(ZEROS.saturating_sub(u64::from(*length)));
            *length += more as u32;
            count -= more;
        }
        while count > 0 {
            let length = count.min(ZEROS);
            self.chunks.push(Chunk {
                length: length as u32,
                place: None,
            });
            count -= length;
        }
    }

    /// Ends the image.
    ///
    /// # Errors
    ///
    /// The output's; [`io::ErrorKind::FileTooLarge`] if the image has more bytes than a number.
    pub fn finish(mut self) -> io::Result<Packed<W>> {
        self.end_frame()?;
        let (out, digest, size) = self.out.finish();
        let pack = (!self.own.is_empty()).then_some(Pack { digest, size });
        let mut others: Vec<_> = self.others.into_iter().collect();
        others.sort_unstable_by_key(|(_, number)| *number);
        let others = others.into_iter().map(|(digest, _)| digest);
        let packs = pack.map(|pack| pack.digest).into_iter().chain(others);
        if pack.is_none() {
            // Number 0 is no one's.
            self.frames.iter_mut().for_each(|frame| frame.pack -= 1);
        }
        let list = List::new(packs.collect(), self.frames, self.chunks)
            .map_err(|error| io::Error::new(io::ErrorKind::FileTooLarge, error))?;
        Ok(Packed { list, pack, out })
    }
}

impl<W> std::fmt::Debug for Packer<'_, W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packer")
            .field("chunks", &self.chunks.len())
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}
