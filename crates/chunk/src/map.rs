//! The map of a sparse file: which bytes of which packs its chunks are. A pack is a blob of zstd frames with a chunk
//! index, and has the chunks of any number of files.
//!
//! All numbers are little-endian.
//!
//! | bytes | header |
//! |---|---|
//! | 8 | `micamap` and a byte 1, the version |
//! | 8 | length of the file |
//! | 4 | length of a chunk, [`CHUNK`]; the file's last one may be shorter |
//! | 4 | number of entries |
//!
//! | bytes | an entry: a chunk that is not all zeros |
//! |---|---|
//! | 4 | its number in the file: its offset divided by [`CHUNK`] |
//! | 4 | number of a pack |
//! | 8 | offset of its bytes in what the pack contains, uncompressed |
//! | 32 | SHA-256 of its bytes |
//!
//! Entries ascend by number. A chunk without an entry is zeros.

use std::ops::Range;

/// Bytes of a chunk, at a multiple of which each one begins: so equal pages of two files are equal chunks.
pub const CHUNK: u64 = 16 << 10;

/// Bytes of the longest map: of some 90 GB that are not zeros.
pub const MOST_MAP: u64 = 256 << 20;

const MAGIC: [u8; 8] = *b"micamap\x01";
const HEADER: usize = 24;
const ENTRY: usize = 48;

/// The map of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Map {
    size: u64,
    entries: Vec<Entry>,
}

/// A chunk of a file, and where its bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Its number in the file, from 0.
    pub number: u32,
    /// The number of the pack, from 0.
    pub pack: u32,
    /// Offset of its bytes in what the pack contains, uncompressed.
    pub offset: u64,
    /// SHA-256 of its bytes.
    pub sha256: [u8; 32],
}

/// Why a map can't be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the map is damaged: {0}")]
pub struct MapError(&'static str);

impl Map {
    /// Returns the most bytes that the map of a file of `size` bytes has.
    pub fn longest(size: u64) -> u64 {
        let entries = size.div_ceil(CHUNK).saturating_mul(ENTRY as u64);
        entries.saturating_add(HEADER as u64).min(MOST_MAP)
    }

    /// Returns how many entries a map of `length` bytes has.
    #[must_use]
    pub fn count(length: u64) -> u64 {
        length.saturating_sub(HEADER as u64) / ENTRY as u64
    }

    /// Begins the map of a file of `size` bytes, without chunks.
    #[must_use]
    pub fn new(size: u64) -> Self {
        Self {
            size,
            entries: Vec::new(),
        }
    }

    /// Adds a chunk behind the others.
    ///
    /// # Errors
    ///
    /// It is not behind the others or not in the file, or there are too many.
    pub fn push(&mut self, entry: Entry) -> Result<(), MapError> {
        let last = self.entries.last();
        if last.is_some_and(|last| last.number >= entry.number) {
            return Err(MapError("its chunks are not in order"));
        }
        if u64::from(entry.number) * CHUNK >= self.size {
            return Err(MapError("a chunk is beyond the end of the file"));
        }
        if (HEADER + (self.entries.len() + 1) * ENTRY) as u64 > MOST_MAP {
            return Err(MapError("it has too many chunks"));
        }
        let end = entry.offset.checked_add(self.length(&entry));
        if end.is_none() {
            return Err(MapError("a chunk is beyond the end of its pack"));
        }
        self.entries.push(entry);
        Ok(())
    }

    /// Parses a map of chunks in `packs` packs.
    ///
    /// # Errors
    ///
    /// [`MapError`]: a field contradicts another, or is of a later version.
    pub fn parse(bytes: &[u8], packs: usize) -> Result<Self, MapError> {
        let (header, entries) = bytes
            .split_first_chunk::<HEADER>()
            .ok_or(MapError("it is shorter than its header"))?;
        let mut header = Fields(header);
        if header.take() != MAGIC {
            return Err(MapError("its magic or version is another one"));
        }
        let size = u64::from_le_bytes(header.take());
        if u64::from(u32::from_le_bytes(header.take())) != CHUNK {
            return Err(MapError("its chunks have another length"));
        }
        let count = u64::from(u32::from_le_bytes(header.take()));
        if entries.len() as u64 != count * ENTRY as u64 {
            return Err(MapError("its length is not that of its chunks"));
        }
        let mut map = Self {
            size,
            entries: Vec::with_capacity(count as usize),
        };
        for entry in entries.chunks_exact(ENTRY) {
            let mut fields = Fields(entry);
            let entry = Entry {
                number: u32::from_le_bytes(fields.take()),
                pack: u32::from_le_bytes(fields.take()),
                offset: u64::from_le_bytes(fields.take()),
                sha256: fields.take(),
            };
            if entry.pack as usize >= packs {
                return Err(MapError("it names a pack that there is not"));
            }
            map.push(entry)?;
        }
        Ok(map)
    }

    /// Writes the map.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + self.entries.len() * ENTRY);
        bytes.extend(MAGIC);
        bytes.extend(self.size.to_le_bytes());
        bytes.extend((CHUNK as u32).to_le_bytes());
        // `push` allows a few million.
        bytes.extend((self.entries.len() as u32).to_le_bytes());
        for entry in &self.entries {
            bytes.extend(entry.number.to_le_bytes());
            bytes.extend(entry.pack.to_le_bytes());
            bytes.extend(entry.offset.to_le_bytes());
            bytes.extend(entry.sha256);
        }
        bytes
    }

    /// Returns the length of the file in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the chunks that are not all zeros, in the file's order.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the bytes of the file that a chunk is.
    #[must_use]
    pub fn range(&self, entry: &Entry) -> Range<u64> {
        let start = u64::from(entry.number) * CHUNK;
        start..start + self.length(entry)
    }

    /// Returns how many bytes a chunk of the file has.
    fn length(&self, entry: &Entry) -> u64 {
        let start = u64::from(entry.number) * CHUNK;
        CHUNK.min(self.size.saturating_sub(start))
    }
}

/// What is left of a structure's bytes, which has as many as are taken.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk() {
            Some((field, rest)) => {
                self.0 = rest;
                *field
            }
            None => [0; N],
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(number: u32, pack: u32, offset: u64) -> Entry {
        Entry {
            number,
            pack,
            offset,
            sha256: [number as u8; 32],
        }
    }

    fn sample() -> Map {
        let mut map = Map::new(5 * CHUNK + 100);
        for chunk in [entry(0, 1, 0), entry(2, 0, CHUNK), entry(5, 1, CHUNK)] {
            map.push(chunk).unwrap();
        }
        map
    }

    #[test]
    fn a_map_is_read_as_it_was_written_and_knows_where_its_chunks_are() {
        let map = sample();
        assert_eq!(Map::parse(&map.to_bytes(), 2), Ok(map.clone()));
        let ranges: Vec<_> = map.entries().iter().map(|one| map.range(one)).collect();
        let last = 5 * CHUNK..5 * CHUNK + 100;
        assert_eq!(ranges, [0..CHUNK, 2 * CHUNK..3 * CHUNK, last]);
        let empty = Map::new(1 << 40);
        assert_eq!(Map::parse(&empty.to_bytes(), 0), Ok(empty));
    }

    #[test]
    fn a_map_that_lies_in_any_field_is_refused_or_is_another_map() {
        let map = sample();
        let bytes = map.to_bytes();
        let refused = |at: usize, value: &[u8], packs, problem: &str| {
            let mut bytes = bytes.clone();
            bytes[at..at + value.len()].copy_from_slice(value);
            let error = Map::parse(&bytes, packs).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        };
        refused(0, b"x", 2, "magic or version");
        refused(7, &[2], 2, "magic or version");
        refused(
            8,
            &(5 * CHUNK).to_le_bytes(),
            2,
            "beyond the end of the file",
        );
        refused(16, &4096_u32.to_le_bytes(), 2, "another length");
        refused(20, &2_u32.to_le_bytes(), 2, "length is not that");
        refused(20, &u32::MAX.to_le_bytes(), 2, "length is not that");
        refused(24, &2_u32.to_le_bytes(), 2, "not in order");
        refused(
            24 + 96,
            &6_u32.to_le_bytes(),
            2,
            "beyond the end of the file",
        );
        refused(28, &2_u32.to_le_bytes(), 2, "a pack that there is not");
        refused(32, &u64::MAX.to_le_bytes(), 2, "beyond the end of its pack");
        refused(0, b"", 1, "a pack that there is not");
        assert!(Map::parse(&bytes[..20], 2).is_err());
        assert!(Map::parse(&bytes[..bytes.len() - 1], 2).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_map_that_is_written_the_same_or_an_error(
            tail in prop::collection::vec(any::<u8>(), 0..200),
            at in 0..168_usize,
            value: u8,
        ) {
            let mut bytes = sample().to_bytes();
            bytes[at] = value;
            for bytes in [bytes, [&MAGIC[..], &tail].concat()] {
                if let Ok(map) = Map::parse(&bytes, 2) {
                    prop_assert_eq!(map.to_bytes(), bytes);
                }
            }
        }
    }
}
