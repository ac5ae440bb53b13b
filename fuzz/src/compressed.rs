//! Compressed blobs: gzip's members, zstd's frames, and invalid data.

use std::io::{Read, Write};

use micabox_image::{Limits, fuzzing};

const LAYER_SIZE: u64 = 1 << 20;

fn limits() -> Limits {
    Limits {
        layer_size: LAYER_SIZE,
        compression_ratio: 100,
        compression_ratio_from: 64 << 10,
        zstd_window: 1 << 22,
        ..Limits::default()
    }
}

/// Inflates a blob, or makes one first, in pieces and ways that the first bytes choose.
pub fn blob(bytes: &[u8]) {
    match bytes.split_first_chunk::<3>() {
        Some(([b'c', way, cut], body)) => packed(body, *way, usize::from(*cut)),
        _ => foreign(bytes),
    }
}

/// Checks that any blob ends within the limits, and that other readers agree.
fn foreign(blob: &[u8]) {
    let found = fuzzing::inflate(Pieces(blob, 61), &limits());
    let whole = fuzzing::inflate(blob, &limits());
    let is_bomb = |found: &Result<Vec<u8>, String>| matches!(found, Err(problem) if problem.contains("compression-ratio"));
    // The less of a bomb has been read, the earlier it is detected.
    if is_bomb(&found) || is_bomb(&whole) {
        return;
    }
    // The error's text may differ.
    let bytes = |found: &Result<Vec<u8>, String>| found.clone().ok();
    assert!(bytes(&found) == bytes(&whole), "pieces make a difference");
    let bytes = match found {
        Ok(bytes) => bytes,
        Err(problem) => {
            assert!(!problem.contains(char::is_control), "{problem:?}");
            return;
        }
    };
    let length = bytes.len() as u64;
    assert!(length <= LAYER_SIZE, "{length} bytes");
    let ratio = length / limits().compression_ratio;
    assert!(length <= 64 << 10 || ratio <= blob.len() as u64, "a bomb");
    if blob.starts_with(&[0x1f, 0x8b]) {
        if let Some(expected) = gunzip(blob) {
            assert!(bytes == expected, "gzip");
        }
    } else if blob.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        let expected = zstd::decode_all(blob).expect("it was decoded");
        assert!(bytes == expected, "zstd");
    } else if blob.get(1..4).is_none_or(|rest| rest != [0x2a, 0x4d, 0x18]) {
        assert!(bytes == blob, "it was not compressed");
    }
}

/// Checks that a packed body is returned complete, and not at all if one byte is missing.
fn packed(body: &[u8], way: u8, cut: usize) {
    let (first, second) = body.split_at(cut.min(body.len()));
    let level = u32::from(way >> 4) % 10;
    let gzip = |bytes| {
        let mut encoder =
            flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(level));
        encoder.write_all(bytes).expect("into memory");
        encoder.finish().expect("into memory")
    };
    let zstd = |bytes| zstd::encode_all(bytes, level as i32).expect("into memory");
    let mut blob = match way & 1 {
        0 => [gzip(first), gzip(second), vec![0; cut]].concat(),
        _ => [
            zstd(first),
            b"\x50\x2a\x4d\x18\x03\0\0\0abc".to_vec(),
            zstd(second),
        ]
        .concat(),
    };
    let free = Limits {
        compression_ratio: u64::MAX,
        zstd_window: 1 << 27,
        ..limits()
    };
    let found = fuzzing::inflate(Pieces(&blob, 1 + cut), &free);
    assert!(found.as_deref() == Ok(body), "{found:?}");
    let padding = if way & 1 == 0 { cut } else { 0 };
    blob.truncate(blob.len() - padding - 1);
    assert!(
        fuzzing::inflate(&blob[..], &free).is_err(),
        "its end is missing"
    );
}

/// Decompresses member by member, with another reader for headers and trailers.
fn gunzip(mut blob: &[u8]) -> Option<Vec<u8>> {
    let mut all = Vec::new();
    while blob.iter().any(|byte| *byte != 0) {
        let mut member = flate2::bufread::GzDecoder::new(blob);
        member.read_to_end(&mut all).ok()?;
        blob = member.into_inner();
    }
    Some(all)
}

/// A reader that returns a few bytes at a time.
struct Pieces<'a>(&'a [u8], usize);

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = buffer.len().min(self.1).min(self.0.len());
        let (now, later) = self.0.split_at(count);
        buffer[..count].copy_from_slice(now);
        self.0 = later;
        Ok(count)
    }
}

/// Blobs of each kind, and bodies to pack.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    // A name, a comment, an extra field and a checksum in the header; then the body, stored.
    let mut gzip = b"\x1f\x8b\x08\x0e\0\0\0\0\0\xff\x02\0ab".to_vec();
    gzip.extend(b"name\0comment\0");
    gzip.extend(b"\x01\x04\0\xfb\xffbody\xc8\xfa\x61\x63\x04\0\0\0");
    let text = b"the same and the same and the same and something else".repeat(3);
    let mut deflated = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    deflated.write_all(&text).expect("into memory");
    let deflated = deflated.finish().expect("into memory");
    let frame = zstd::encode_all(&text[..], 3).expect("into memory");
    let frames = [&b"\x50\x2a\x4d\x18\x01\0\0\0x"[..], &frame, &frame].concat();
    vec![
        ("header", gzip),
        ("members", [&deflated[..], &deflated, &[0; 20]].concat()),
        ("frame", frame),
        ("frames", frames),
        (
            "zeros",
            zstd::encode_all(&[0; 300_000][..], 3).expect("into memory"),
        ),
        ("plain", text.clone()),
        ("gzip", [b"c\x60\x09", &text[..]].concat()),
        ("zstd", [b"c\x31\x30", &text[..]].concat()),
    ]
}
