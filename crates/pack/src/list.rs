//! What an image is made of.
//!
//! All numbers are little-endian.
//!
//! | bytes | |
//! |---|---|
//! | 8 | magic, `mica-cl` and the format's version, 1 |
//! | 8 | length of the image |
//! | 4 | number of packs |
//! | 4 | number of chunks |
//! | 32 for each pack | its digest (SHA-256) |
//! | 52 for each chunk | digest of its bytes in the image (SHA-256); offset in its pack (8); number of its pack, or `ff ff ff ff` for zeros, which are in none (4); its length in the pack (4); its length in the image (4) |
//! | 32 | SHA-256 of all before |

use micabox_oci::Digest;

use crate::cut::LARGEST;

const MAGIC: [u8; 8] = *b"mica-cl\x01";
/// Bytes before the digests of packs: enough for [`image_size`].
pub const HEADER: usize = 24;
const DIGEST: usize = 32;
const CHUNK: usize = DIGEST + 20;
const ZEROS: u32 = u32::MAX;

/// Bytes that a chunk may have in its pack: zstd makes what it can't compress a little longer.
const LARGEST_PACKED: u32 = LARGEST as u32 + (LARGEST as u32 >> 4);

/// What an image is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List {
    size: u64,
    packs: Vec<Digest>,
    chunks: Vec<Chunk>,
    /// The offsets in the image at which chunks begin.
    starts: Vec<u64>,
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
    /// Number of its pack in the list's.
    pub pack: u32,
    /// Offset of its zstd frame in the pack.
    pub offset: u64,
    /// Length of that frame.
    pub packed: u32,
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

/// Returns the length in bytes of the image whose list begins with `header`, [`HEADER`] bytes; `None` if it is no list.
#[must_use]
pub fn image_size(header: &[u8]) -> Option<u64> {
    let (magic, rest) = header.split_first_chunk()?;
    let (size, _) = rest.split_first_chunk()?;
    (*magic == MAGIC).then(|| u64::from_le_bytes(*size))
}

impl List {
    /// Makes a list of chunks that follow each other. `None` if they are not as [`Chunk`] and [`Place`] say.
    pub(crate) fn new(packs: Vec<Digest>, chunks: Vec<Chunk>) -> Result<Self, ListError> {
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
            let end = place.offset.checked_add(place.packed.into());
            if place.packed == 0 || place.packed > LARGEST_PACKED || end.is_none() {
                return Err(ListError::Invalid("a chunk has a wrong place"));
            }
            if place.pack as usize >= packs.len() {
                return Err(ListError::Invalid(
                    "a chunk is in a pack that it does not name",
                ));
            }
        }
        Ok(Self {
            size,
            packs,
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
        let (packs, chunks) = (fields.u32(), fields.u32());
        let (packs, chunks) = (packs.ok_or_else(invalid)?, chunks.ok_or_else(invalid)?);
        let wanted = u64::from(packs) * DIGEST as u64 + u64::from(chunks) * CHUNK as u64;
        if fields.0.len() as u64 != wanted {
            return Err(ListError::Invalid("its length is not that of its chunks"));
        }
        let packs = (0..packs).map_while(|_| fields.digest()).collect();
        let chunks = (0..chunks).map_while(|_| fields.chunk()).collect();
        let list = Self::new(packs, chunks)?;
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
        let length = HEADER + self.packs.len() * DIGEST + self.chunks.len() * CHUNK + DIGEST;
        let mut bytes = Vec::with_capacity(length);
        bytes.extend(MAGIC);
        bytes.extend(self.size.to_le_bytes());
        // Neither has more than memory has for them.
        bytes.extend((self.packs.len() as u32).to_le_bytes());
        bytes.extend((self.chunks.len() as u32).to_le_bytes());
        for pack in &self.packs {
            bytes.extend(pack.as_bytes());
        }
        for chunk in &self.chunks {
            let zeros = Place {
                digest: Digest::from([0; DIGEST]),
                pack: ZEROS,
                offset: 0,
                packed: 0,
            };
            let place = chunk.place.unwrap_or(zeros);
            bytes.extend(place.digest.as_bytes());
            bytes.extend(place.offset.to_le_bytes());
            for number in [place.pack, place.packed, chunk.length] {
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

    /// Returns the packs that its chunks are in.
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

    /// Returns the list with chunks of one pack in another one: `to` gives a frame's new offset by its old one.
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
        let mut chunks = self.chunks.clone();
        let places = chunks.iter_mut().filter_map(|chunk| chunk.place.as_mut());
        for place in places.filter(|place| is_from(place.pack)) {
            let offset = to(place.offset);
            place.offset = offset.ok_or(ListError::Invalid("a chunk was not moved"))?;
        }
        let rename = |digest: &Digest| if digest == from { *pack } else { *digest };
        Self::new(self.packs.iter().map(rename).collect(), chunks)
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

    fn chunk(&mut self) -> Option<Chunk> {
        let (digest, offset) = (self.digest()?, self.u64()?);
        let (pack, packed, length) = (self.u32()?, self.u32()?, self.u32()?);
        let place = Place {
            digest,
            pack,
            offset,
            packed,
        };
        Some(Chunk {
            length,
            place: (pack != ZEROS).then_some(place),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn list() -> List {
        let place = |byte: u8, pack, offset| {
            Some(Place {
                digest: Digest::from([byte; DIGEST]),
                pack,
                offset,
                packed: 10,
            })
        };
        let chunk = |length, place| Chunk { length, place };
        let chunks = vec![
            chunk(4096, place(1, 0, 8)),
            chunk(1 << 30, None),
            chunk(1, place(2, 1, 99)),
            chunk(LARGEST as u32, place(1, 0, 8)),
        ];
        List::new(vec![Digest::of(b"a"), Digest::of(b"b")], chunks).unwrap()
    }

    #[test]
    fn a_list_is_read_as_it_was_written() {
        let list = list();
        let bytes = list.to_bytes();
        assert_eq!(List::parse(&bytes), Ok(list.clone()));
        assert_eq!(image_size(&bytes[..HEADER]), Some(list.size()));
        assert_eq!(list.find(0), Some((0, 0)));
        assert_eq!(list.find(4096), Some((1, 4096)));
        assert_eq!(list.find((1 << 30) + 4095), Some((1, 4096)));
        assert_eq!(list.find((1 << 30) + 4096), Some((2, (1 << 30) + 4096)));
        assert_eq!(list.find(list.size() - 1).unwrap().0, 3);
        assert_eq!(list.find(list.size()), None);
    }

    #[test]
    fn chunks_of_a_pack_move_to_another_one() {
        let list = list();
        let new = Digest::of(b"new");
        let moved = list.moved(&list.packs()[0], &new, |at| (at == 8).then_some(500));
        let moved = moved.unwrap();
        assert_eq!(moved.packs(), [new, Digest::of(b"b")]);
        let offsets = moved.chunks().iter().filter_map(|chunk| chunk.place);
        let offsets: Vec<_> = offsets.map(|place| place.offset).collect();
        assert_eq!(offsets, [500, 99, 500]);
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
        let chunk = HEADER + 2 * DIGEST;
        for (what, at, value) in [
            ("the image's length", 8, 2),
            ("the number of packs", 16, 3),
            ("the number of packs, large", 19, 0xff),
            ("the number of chunks", 20, 3),
            ("a pack", chunk + 40, 2),
            ("no bytes in the pack", chunk + 44, 0),
            ("many bytes in the pack", chunk + 47, 1),
            ("more bytes in the image", chunk + 48, 1),
            ("many bytes in the image", chunk + 51, 1),
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
