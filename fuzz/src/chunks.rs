//! Chunk indexes of EROFS images in registries, and chunks.

use micabox_chunk::{CHUNK, Entry, Index, Map, Writer};

/// Parses an index whose chunks end at the offset that the first 4 bytes say, and inflates what follows as each chunk.
///
/// # Panics
///
/// If chunks are not the whole blob and the whole image, one after the other, or a chunk has another length than said.
pub fn index(bytes: &[u8]) {
    let Some((end, bytes)) = bytes.split_first_chunk::<4>() else {
        return;
    };
    let end = u64::from(u32::from_le_bytes(*end));
    let Ok(index) = Index::parse(bytes, end) else {
        return;
    };
    let (mut at, mut offset) = (0, 0);
    for number in 0..index.len() {
        let range = index.range(number).expect("it has this chunk");
        let contents = index.contents(number).expect("it has this chunk");
        assert_eq!((range.start, contents.start), (at, offset));
        assert!(range.end > at && contents.end > offset);
        assert_eq!(index.find(offset), Some(number));
        assert_eq!(index.find(contents.end - 1), Some(number));
        (at, offset) = (range.end, contents.end);
    }
    assert_eq!((at, offset), (end, index.size()));
    assert_eq!(index.find(offset), None);
    // No chunk is after the last one, whose bytes are whatever there are.
    assert!(index.decode(index.len(), bytes).is_err());
    for number in 0..index.len().min(4) {
        if let Ok(inflated) = index.decode(number, bytes) {
            let contents = index.contents(number).expect("it has this chunk");
            assert_eq!(inflated.len() as u64, contents.end - contents.start);
        }
    }
}

/// Indexes that a writer made.
///
/// # Panics
///
/// Never: memory is written to.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let blobs: [(&str, &[&[u8]]); 3] = [
        ("none", &[]),
        ("one", &[b"one"]),
        ("three", &[b"first", b"second", b"third"]),
    ];
    blobs
        .map(|(name, chunks)| {
            let mut writer = Writer::new(Vec::new()).expect("zstd");
            for chunk in chunks {
                writer.chunk(chunk).expect("memory");
            }
            let (blob, written) = writer.finish().expect("memory");
            let start = written.index.start as usize;
            let mut seed = (start as u32).to_le_bytes().to_vec();
            seed.extend(blob.get(start + 8..).unwrap_or_default());
            (name, seed)
        })
        .into()
}

/// Packs that maps may name.
const PACKS: usize = 3;

/// Parses the map of a sparse file.
///
/// # Panics
///
/// If chunks are not in order and within the file, or the map is not written as it was.
pub fn map(bytes: &[u8]) {
    let Ok(map) = Map::parse(bytes, PACKS) else {
        return;
    };
    let mut end = 0;
    for entry in map.entries() {
        let range = map.range(entry);
        assert!(range.start >= end && !range.is_empty() && range.end <= map.size());
        assert!((entry.pack as usize) < PACKS);
        assert!(entry.offset.checked_add(range.end - range.start).is_some());
        end = range.end;
    }
    assert_eq!(map.to_bytes(), bytes);
}

/// Maps that were made.
///
/// # Panics
///
/// Never: their chunks are in order.
pub fn map_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let of = |numbers: &[u32]| {
        let mut map = Map::new(8 * CHUNK + 100);
        for &number in numbers {
            let entry = Entry {
                number,
                pack: number % PACKS as u32,
                offset: u64::from(number) * 1000,
                sha256: [number as u8; 32],
            };
            map.push(entry).expect("in order");
        }
        map.to_bytes()
    };
    vec![("none", of(&[])), ("three", of(&[0, 4, 8]))]
}
