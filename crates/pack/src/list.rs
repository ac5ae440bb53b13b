//! What an image is made of.
//!
//! All numbers are little-endian.
//!
//! | bytes | |
//! |---|---|
//! | 8 | magic, `mica-cl` and the format's version, 1 |
//! | 8 | length of the image |
//! | 4, 4, 4 | number of packs, of frames, of chunks |
//! | 32 for each pack | its digest (SHA-256) |
//! | 20 for each frame | offset in its pack (8); number of its pack (4); length in the pack (4); length of its content (4) |
//! | 44 for each chunk | digest of its bytes (SHA-256); number of its frame, or `ff ff ff ff` for zeros, which are in none (4); offset in the frame's content (4); its length (4) |
//! | 32 | SHA-256 of all before |

use micabox_oci::Digest;

use crate::cut::LARGEST;
use crate::packer::FRAME;

const MAGIC: [u8; 8] = *b"mica-cl\x01";
/// Bytes before the digests of packs.
const HEADER: usize = 28;
const DIGEST: usize = 32;
const FRAME_ENTRY: usize = 20;
const CHUNK: usize = DIGEST + 12;
const ZEROS: u32 = u32::MAX;

/// Bytes that a frame may have in its pack: zstd makes what it can't compress a little longer.
const LARGEST_PACKED: u32 = FRAME as u32 + (FRAME as u32 >> 4);

/// What an image is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List {
    size: u64,
    packs: Vec<Digest>,
    frames: Vec<Frame>,
    chunks: Vec<Chunk>,
    /// The offsets in the image at which chunks begin.
    starts: Vec<u64>,
}

/// Chunks that were compressed together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Number of its pack in the list's.
    pub pack: u32,
    /// Offset of the zstd frame in the pack.
    pub offset: u64,
    /// Length of that frame.
    pub packed: u32,
    /// Length of its content, at most [`FRAME`].
    pub length: u32,
}

/// A part of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// Its length in the image in bytes, not 0. At most [`LARGEST`], unless it is zeros.
    pub length: u32,
    /// Where its bytes are; `None` for zeros.
    pub place: Option<Place>,
}

/// Where a chunk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Digest of its bytes in the image.
    pub digest: Digest,
    /// Number of its frame in the list's.
    pub frame: u32,
    /// Offset in the frame's content.
    pub within: u32,
}

/// Why a list can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// It is of another format, or of none.
    #[error("it is no list of chunks, or one of another version")]
    Magic,
    /// Its bytes are not those that were written.
    #[error("its checksum is another one's")]
    Checksum,
    /// It contradicts itself.
    #[error("{0}")]
    Invalid(&'static str),
}

impl List {
    /// Makes a list of chunks that follow each other, which have to be as [`Frame`], [`Chunk`] and [`Place`] say.
    pub(crate) fn new(
        packs: Vec<Digest>,
        frames: Vec<Frame>,
        chunks: Vec<Chunk>,
    ) -> Result<Self, ListError> {
        for frame in &frames {
            let end = frame.offset.checked_add(frame.packed.into());
            let is_long = frame.packed > LARGEST_PACKED || frame.length as usize > FRAME;
            if frame.packed == 0 || is_long || end.is_none() {
                return Err(ListError::Invalid("a frame has a wrong place"));
            }
            if frame.pack as usize >= packs.len() {
                return Err(ListError::Invalid(
                    "a frame is in a pack that it does not name",
                ));
            }
        }
        let mut starts = Vec::with_capacity(chunks.len());
        let mut size = 0_u64;
        for chunk in &chunks {
            starts.push(size);
            let is_long = chunk.place.is_some() && chunk.length as usize > LARGEST;
            if chunk.length == 0 || is_long {
                return Err(ListError::Invalid("a chunk has a wrong length"));
            }
            size = size
                .checked_add(chunk.length.into())
                .ok_or(ListError::Invalid("its chunks have too many bytes"))?;
            let Some(place) = &chunk.place else {
                continue;
            };
            let frame = frames.get(place.frame as usize);
            let frame = frame.ok_or(ListError::Invalid(
                "a chunk is in a frame that is not named",
            ))?;
            let end = place.within.checked_add(chunk.length);
            if end.is_none_or(|end| end > frame.length) {
                return Err(ListError::Invalid("a chunk is not in its frame"));
            }
        }
        Ok(Self {
            size,
            packs,
            frames,
            chunks,
            starts,
        })
    }

    /// Parses a list.
    ///
    /// # Errors
    ///
    /// [`ListError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ListError> {
        let invalid = || ListError::Invalid("it is shorter than it says");
        let (magic, _) = bytes.split_first_chunk().ok_or(ListError::Magic)?;
        if *magic != MAGIC {
            return Err(ListError::Magic);
        }
        let (body, checksum) = bytes.split_last_chunk::<DIGEST>().ok_or_else(invalid)?;
        if Digest::of(body).as_bytes() != checksum {
            return Err(ListError::Checksum);
        }
        let mut fields = Fields(body.get(MAGIC.len()..).unwrap_or_default());
        let size = fields.u64().ok_or_else(invalid)?;
        let packs = fields.u32().ok_or_else(invalid)?;
        let frames = fields.u32().ok_or_else(invalid)?;
        let chunks = fields.u32().ok_or_else(invalid)?;
        let length = |count: u32, entry: usize| u64::from(count) * entry as u64;
        let wanted = length(packs, DIGEST) + length(frames, FRAME_ENTRY) + length(chunks, CHUNK);
        if fields.0.len() as u64 != wanted {
            return Err(ListError::Invalid("its length is not that of its chunks"));
        }
        let packs = (0..packs).map_while(|_| fields.digest()).collect();
        let frames = (0..frames).map_while(|_| fields.frame()).collect();
        let chunks = (0..chunks).map_while(|_| fields.chunk()).collect();
        let list = Self::new(packs, frames, chunks)?;
        if list.size != size {
            return Err(ListError::Invalid(
                "its chunks are not as long as its image",
            ));
        }
        Ok(list)
    }

    /// Returns the bytes of the list.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let entries = self.frames.len() * FRAME_ENTRY + self.chunks.len() * CHUNK;
        let length = HEADER + self.packs.len() * DIGEST + entries + DIGEST;
        let mut bytes = Vec::with_capacity(length);
        bytes.extend(MAGIC);
        bytes.extend(self.size.to_le_bytes());
        // None has more than memory has for them.
        for count in [self.packs.len(), self.frames.len(), self.chunks.len()] {
            bytes.extend((count as u32).to_le_bytes());
        }
        for pack in &self.packs {
            bytes.extend(pack.as_bytes());
        }
        for frame in &self.frames {
            bytes.extend(frame.offset.to_le_bytes());
            for number in [frame.pack, frame.packed, frame.length] {
                bytes.extend(number.to_le_bytes());
            }
        }
        for chunk in &self.chunks {
            let zeros = Place {
                digest: Digest::from([0; DIGEST]),
                frame: ZEROS,
                within: 0,
            };
            let place = chunk.place.unwrap_or(zeros);
            bytes.extend(place.digest.as_bytes());
            for number in [place.frame, place.within, chunk.length] {
                bytes.extend(number.to_le_bytes());
            }
        }
        let checksum = Digest::of(&bytes);
        bytes.extend(checksum.as_bytes());
        bytes
    }

    /// Returns the length of the image in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the frames that its chunks are in, each once.
    #[must_use]
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// Returns the packs that its frames are in.
    #[must_use]
    pub fn packs(&self) -> &[Digest] {
        &self.packs
    }

    /// Returns its chunks, in the order of the image.
    #[must_use]
    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// Returns the number of the chunk that has this byte of the image, and the offset at which that chunk begins;
    /// `None` beyond the end.
    #[must_use]
    pub fn find(&self, offset: u64) -> Option<(usize, u64)> {
        if offset >= self.size {
            return None;
        }
        let number = self.starts.partition_point(|start| *start <= offset);
        let number = number.checked_sub(1)?;
        Some((number, *self.starts.get(number)?))
    }

    /// Returns the offset in the image at which a chunk begins.
    pub(crate) fn start(&self, number: usize) -> Option<u64> {
        self.starts.get(number).copied()
    }

    /// Returns the list with frames of one pack in another one: `to` gives a frame's new offset by its old one.
    ///
    /// # Errors
    ///
    /// [`ListError::Invalid`] if `to` does not know a frame.
    pub fn moved(
        &self,
        from: &Digest,
        pack: &Digest,
        to: impl Fn(u64) -> Option<u64>,
    ) -> Result<Self, ListError> {
        let is_from = |number: u32| self.packs.get(number as usize) == Some(from);
        let mut frames = self.frames.clone();
        for frame in frames.iter_mut().filter(|frame| is_from(frame.pack)) {
            let offset = to(frame.offset);
            frame.offset = offset.ok_or(ListError::Invalid("a frame was not moved"))?;
        }
        let rename = |digest: &Digest| if digest == from { *pack } else { *digest };
        let packs = self.packs.iter().map(rename).collect();
        Self::new(packs, frames, self.chunks.clone())
    }
}

/// What is left to be parsed.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn digest(&mut self) -> Option<Digest> {
        self.take().map(Digest::from)
    }

    fn frame(&mut self) -> Option<Frame> {
        Some(Frame {
            offset: self.u64()?,
            pack: self.u32()?,
            packed: self.u32()?,
            length: self.u32()?,
        })
    }

    fn chunk(&mut self) -> Option<Chunk> {
        let (digest, frame) = (self.digest()?, self.u32()?);
        let (within, length) = (self.u32()?, self.u32()?);
        let place = Place {
            digest,
            frame,
            within,
        };
        Some(Chunk {
            length,
            place: (frame != ZEROS).then_some(place),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn list() -> List {
        let frame = |pack, offset| Frame {
            pack,
            offset,
            packed: 10,
            length: FRAME as u32,
        };
        let place = |byte: u8, frame, within| {
            Some(Place {
                digest: Digest::from([byte; DIGEST]),
                frame,
                within,
            })
        };
        let chunk = |length, place| Chunk { length, place };
        let chunks = vec![
            chunk(4096, place(1, 0, 8)),
            chunk(1 << 30, None),
            chunk(1, place(2, 1, FRAME as u32 - 1)),
            chunk(LARGEST as u32, place(1, 0, 8)),
        ];
        let packs = vec![Digest::of(b"a"), Digest::of(b"b")];
        List::new(packs, vec![frame(0, 8), frame(1, 99)], chunks).unwrap()
    }

    #[test]
    fn a_list_is_read_as_it_was_written() {
        let list = list();
        let bytes = list.to_bytes();
        assert_eq!(List::parse(&bytes), Ok(list.clone()));
        assert_eq!(list.find(0), Some((0, 0)));
        assert_eq!(list.find(4096), Some((1, 4096)));
        assert_eq!(list.find((1 << 30) + 4095), Some((1, 4096)));
        assert_eq!(list.find((1 << 30) + 4096), Some((2, (1 << 30) + 4096)));
        assert_eq!(list.find(list.size() - 1).unwrap().0, 3);
        assert_eq!(list.find(list.size()), None);
    }

    #[test]
    fn frames_of_a_pack_move_to_another_one() {
        let list = list();
        let new = Digest::of(b"new");
        let moved = list.moved(&list.packs()[0], &new, |at| (at == 8).then_some(500));
        let moved = moved.unwrap();
        assert_eq!(moved.packs(), [new, Digest::of(b"b")]);
        let offsets: Vec<_> = moved.frames().iter().map(|frame| frame.offset).collect();
        assert_eq!(offsets, [500, 99]);
        assert_eq!(moved.chunks(), list.chunks());
        assert!(list.moved(&list.packs()[0], &new, |_| None).is_err());
    }

    /// Gives bytes a checksum that is right.
    fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
        bytes.truncate(bytes.len() - DIGEST);
        let checksum = Digest::of(&bytes);
        bytes.extend(checksum.as_bytes());
        bytes
    }

    #[test]
    fn a_list_that_lies_in_any_field_is_refused() {
        let bytes = list().to_bytes();
        let frame = HEADER + 2 * DIGEST;
        let chunk = frame + 2 * FRAME_ENTRY;
        for (what, at, value) in [
            ("the image's length", 8, 2),
            ("the number of packs", 16, 3),
            ("the number of packs, large", 19, 0xff),
            ("the number of frames", 20, 3),
            ("the number of frames, large", 23, 0xff),
            ("the number of chunks", 24, 3),
            ("a pack", frame + 8, 2),
            ("no bytes in the pack", frame + 12, 0),
            ("many bytes in the pack", frame + 15, 1),
            ("many bytes in the frame", frame + 19, 1),
            ("few bytes in the frame", frame + 18, 0),
            ("a frame", chunk + 32, 2),
            ("behind the frame", chunk + 39, 1),
            ("more bytes in the image", chunk + 40, 1),
            ("many bytes in the image", chunk + 43, 1),
        ] {
            let mut changed = bytes.clone();
            changed[at] = value;
            assert_eq!(List::parse(&changed), Err(ListError::Checksum), "{what}");
            let parsed = List::parse(&sealed(changed));
            assert!(
                matches!(parsed, Err(ListError::Invalid(_))),
                "{what}: {parsed:?}"
            );
        }
        assert_eq!(List::parse(b"mica-cl\x02 and more"), Err(ListError::Magic));
    }

    proptest! {
        #[test]
        fn any_change_is_noticed(at: prop::sample::Index, bit in 0..8u8, cut: prop::sample::Index) {
            let bytes = list().to_bytes();
            let mut changed = bytes.clone();
            changed[at.index(bytes.len())] ^= 1 << bit;
            prop_assert!(List::parse(&changed).is_err());
            prop_assert!(List::parse(&bytes[..cut.index(bytes.len())]).is_err());
        }
    }
}
