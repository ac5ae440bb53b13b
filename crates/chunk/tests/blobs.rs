//! Blobs: `zstd` reads them, and one chunk of them is read alone.

#![allow(missing_docs)]

use std::fs;
use std::process::Command;

use micabox_chunk::{ChunkError, Compression, Index, IndexError, Writer, Written};
use micabox_oci::Digest;

fn blob(chunks: &[&[u8]]) -> (Vec<u8>, Written) {
    let mut writer = Writer::new(Vec::new()).unwrap();
    chunks.iter().for_each(|chunk| writer.chunk(chunk).unwrap());
    writer.finish().unwrap()
}

fn part(blob: &[u8], range: std::ops::Range<u64>) -> &[u8] {
    &blob[range.start as usize..range.end as usize]
}

/// The index's bytes, without the header of their frame.
fn index(blob: &[u8], written: &Written) -> Vec<u8> {
    part(blob, written.index.start + 8..written.index.end).to_vec()
}

fn sample() -> (Vec<u8>, Written, Vec<u8>) {
    let noise: Vec<u8> = (0..100_000u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    let chunks: [&[u8]; 4] = [b"first", &noise, &[0; 70_000], b"the last chunk"];
    let (blob, written) = blob(&chunks);
    (blob, written, chunks.concat())
}

#[test]
fn zstd_reads_a_blob_from_end_to_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("blob.zst");
    let (mut blob, written, image) = sample();
    fs::write(&path, &blob).unwrap();
    let output = Command::new("zstd")
        .args(["-dc"])
        .arg(&path)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stdout == image);
    assert_eq!(written.uncompressed, Digest::of(&image));
    assert_eq!(
        (written.uncompressed_size, written.size),
        (image.len() as u64, blob.len() as u64)
    );
    assert_eq!(written.digest, Digest::of(&blob));
    assert_eq!(written.index_digest, Digest::of(&index(&blob, &written)));
    assert_eq!(
        (written.index.start % 4, written.index.end),
        (0, written.size)
    );

    // The same chunks are the same blob; no chunks are one, too.
    assert_eq!(sample().0, blob);
    (blob, _) = self::blob(&[b""]);
    assert_eq!(zstd::stream::decode_all(&blob[..]).unwrap(), b"");
    assert!(Index::parse(&blob[8..], 0).unwrap().is_empty());
}

#[test]
fn each_chunk_is_read_alone() {
    let (blob, written, image) = sample();
    let index = Index::parse(&index(&blob, &written), written.index.start).unwrap();
    assert_eq!((index.len(), index.size()), (4, image.len() as u64));
    assert_eq!(
        (index.compression(), index.has_checksums()),
        (Compression::Zstd, true)
    );
    for number in 0..index.len() {
        let bytes = part(&blob, index.range(number).unwrap());
        let contents = index.contents(number).unwrap();
        assert!(index.decode(number, bytes).unwrap() == part(&image, contents.clone()));
        assert_eq!(index.find(contents.start), Some(number));
        assert_eq!(index.find(contents.end - 1), Some(number));

        let mut other = bytes.to_vec();
        other[bytes.len() / 2] ^= 1;
        let error = index.decode(number, &other).unwrap_err();
        assert!(
            matches!(error, ChunkError::Checksum(n) if n == number),
            "{error}"
        );
    }
    assert_eq!(index.find(index.size()), None);
    assert_eq!((index.range(4), index.contents(4)), (None, None));
    let error = index.decode(4, b"").unwrap_err();
    assert!(matches!(error, ChunkError::Number(4)), "{error}");
}

/// An index with one byte, or more, replaced.
fn changed(bytes: &[u8], at: usize, by: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at..at + by.len()].copy_from_slice(by);
    bytes
}

#[test]
fn an_index_that_lies_is_refused_field_by_field() {
    let (blob, written, _) = sample();
    let good = index(&blob, &written);
    let end = written.index.start;
    let parse = |bytes: &[u8]| Index::parse(bytes, end);
    let first = 32;
    let second = first + 48;
    let u64s = |n: u64| n.to_le_bytes();
    let corrupt = [
        ("magic", changed(&good, 0, b"x")),
        ("size of the image", changed(&good, 8, &u64s(1))),
        ("number of chunks", changed(&good, 16, &[3])),
        ("length of checksums", changed(&good, 21, &[64])),
        ("no length of checksums", changed(&good, 21, &[0])),
        ("no checksums", changed(&good, 20, &[0])),
        ("offset of the first", changed(&good, first, &u64s(1))),
        ("contents of the first", changed(&good, first + 8, &u64s(1))),
        ("the same offset", changed(&good, second, &u64s(0))),
        ("the same contents", changed(&good, second + 8, &u64s(0))),
        (
            "an offset beyond the end",
            changed(&good, second, &u64s(end + 1)),
        ),
        (
            "an offset far beyond the end",
            changed(&good, second, &u64s(u64::MAX)),
        ),
        (
            "contents beyond the end",
            changed(&good, second + 8, &u64s(u64::MAX)),
        ),
        ("a byte more", [&good[..], b"x"].concat()),
        ("a byte less", good[..good.len() - 1].to_vec()),
        ("half a header", good[..16].to_vec()),
        ("nothing", Vec::new()),
        ("a header alone", good[..32].to_vec()),
    ];
    for (name, bytes) in corrupt {
        let error = parse(&bytes).unwrap_err();
        assert!(matches!(error, IndexError::Corrupt(_)), "{name}: {error}");
    }
    let unknown = [
        ("version", changed(&good, 4, &[2])),
        ("compression", changed(&good, 5, &[2])),
        ("flags", changed(&good, 6, &[1])),
        ("algorithm", changed(&good, 20, &[2])),
        ("reserved", changed(&good, 31, &[1])),
        ("a chunk of over 64 MiB", changed(&good, 8, &u64s(1 << 40))),
    ];
    for (name, bytes) in unknown {
        let error = parse(&bytes).unwrap_err();
        assert!(matches!(error, IndexError::Unknown(_)), "{name}: {error}");
    }
    // Where the blob ends is the caller's.
    assert!(Index::parse(&good, end - 1).is_ok());
    assert!(Index::parse(&good, 0).is_err());
    assert!(parse(&good).is_ok());
}

#[test]
fn a_chunk_without_a_checksum_has_the_length_that_the_index_says() {
    let frame = zstd::bulk::compress(b"four", 3).unwrap();
    let header = |compression: u8, size: u64| {
        let mut bytes = vec![0xcd, 0xe4, 0xec, 0x67, 1, compression, 0, 0];
        bytes.extend(size.to_le_bytes());
        bytes.extend(1u32.to_le_bytes());
        bytes.extend([0; 12 + 16]);
        bytes
    };
    let end = frame.len() as u64;
    for (size, is_right) in [(3, false), (4, true), (5, false)] {
        let index = Index::parse(&header(1, size), end).unwrap();
        assert!(!index.has_checksums());
        assert_eq!(index.decode(0, &frame).is_ok(), is_right, "{size}");
    }
    let index = Index::parse(&header(1, 4), end).unwrap();
    assert!(matches!(
        index.decode(0, b"no frame").unwrap_err(),
        ChunkError::Inflate { .. }
    ));

    // Not compressed: the blob is the image.
    let index = Index::parse(&header(0, 4), 4).unwrap();
    assert_eq!(index.decode(0, b"four").unwrap(), b"four");
    assert!(index.decode(0, b"three").is_err());
    assert!(Index::parse(&header(0, 4), 5).is_err());
}

#[test]
fn checksums_of_sha_512_are_checked() {
    use sha2::Digest as _;
    let frame = zstd::bulk::compress(b"four", 3).unwrap();
    let mut bytes = vec![
        0xcd, 0xe4, 0xec, 0x67, 1, 1, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 64,
    ];
    bytes.extend([0; 10 + 16]);
    bytes.extend(sha2::Sha512::digest(&frame));
    let index = Index::parse(&bytes, frame.len() as u64).unwrap();
    assert_eq!(index.decode(0, &frame).unwrap(), b"four");
    *bytes.last_mut().unwrap() ^= 1;
    let index = Index::parse(&bytes, frame.len() as u64).unwrap();
    assert!(matches!(
        index.decode(0, &frame).unwrap_err(),
        ChunkError::Checksum(0)
    ));
}
