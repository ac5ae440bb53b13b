//! Layers that are used before they are here, and lie although all digests are right.

use std::fs;
use std::ops::Range;
use std::sync::Arc;

use micabox_chunk::Index;
use micabox_image::Digest;
use micabox_image::progress::Silent;
use micabox_transfer::complete_blocking;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{converted, lazy, read, whole};
use crate::erofs::{Converted, served_with};

/// The layer that lies: the one of 6 MiB.
const LAYER: usize = 3;

/// Bytes of the index's header, and of an entry.
const HEADER: usize = 32;
const ENTRY: usize = 48;

/// A layer's blob, in parts.
struct Blob {
    /// Where each chunk is in the image, and its frame.
    chunks: Vec<(u64, Vec<u8>)>,
    /// The header of the frame that has the index.
    frame: [u8; 8],
    header: [u8; HEADER],
}

impl Blob {
    fn of(bytes: &[u8], frame: usize) -> Self {
        let index = Index::parse(&bytes[frame + 8..], frame as u64).unwrap();
        let field = |number: usize| {
            let at = frame + 8 + HEADER + number * ENTRY + 8;
            u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
        };
        let chunks = (0..index.len()).map(|number| {
            let range = index.range(number).unwrap();
            let packed = &bytes[range.start as usize..range.end as usize];
            (field(number), packed.to_vec())
        });
        Self {
            chunks: chunks.collect(),
            frame: bytes[frame..frame + 8].try_into().unwrap(),
            header: bytes[frame + 8..][..HEADER].try_into().unwrap(),
        }
    }

    /// Returns the bytes, with an index whose checksums are right, and where its frame begins.
    fn bytes(&self, lie: fn(&mut Vec<u8>)) -> (Vec<u8>, usize) {
        let mut bytes = Vec::new();
        let mut index = self.header.to_vec();
        for (offset, packed) in &self.chunks {
            index.extend((bytes.len() as u64).to_le_bytes());
            index.extend(offset.to_le_bytes());
            index.extend(Sha256::digest(packed));
            bytes.extend(packed);
        }
        lie(&mut index);
        let start = bytes.len();
        bytes.extend(self.frame);
        bytes.extend(index);
        (bytes, start)
    }

    /// Returns the chunk that has a byte of the image, and the bytes of the image that it has.
    fn chunk(&self, at: u64) -> (usize, Range<u64>) {
        let number = self.chunks.partition_point(|chunk| chunk.0 <= at) - 1;
        let size = u64::from_le_bytes(self.header[8..16].try_into().unwrap());
        let end = self.chunks.get(number + 1).map_or(size, |next| next.0);
        (number, self.chunks[number].0..end)
    }

    fn inflated(&self, number: usize) -> Vec<u8> {
        let (bytes, frame) = self.bytes(|_| {});
        let index = Index::parse(&bytes[frame + 8..], frame as u64).unwrap();
        index.decode(number, &self.chunks[number].1).unwrap()
    }

    /// Changes a byte of the image.
    fn flip(&mut self, at: u64) {
        let (number, range) = self.chunk(at);
        let mut bytes = self.inflated(number);
        bytes[(at - range.start) as usize] ^= 1;
        self.chunks[number].1 = frame(&bytes);
    }
}

/// Returns a zstd frame of blocks that are not compressed.
fn frame(bytes: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0xe0];
    frame.extend((bytes.len() as u64).to_le_bytes());
    let blocks: Vec<_> = bytes.chunks(64 << 10).collect();
    for (number, block) in blocks.iter().enumerate() {
        let is_last = u32::from(number + 1 == blocks.len());
        let header = is_last | (block.len() as u32) << 3;
        frame.extend(&header.to_le_bytes()[..3]);
        frame.extend(*block);
    }
    if blocks.is_empty() {
        frame.extend([1, 0, 0]);
    }
    frame
}

/// What becomes of a layer that lies.
#[derive(Debug)]
enum Outcome {
    /// There is no image, for this reason.
    Refused(String),
    /// It was fetched whole before it was used.
    Whole,
    /// It never becomes whole, for this reason.
    Incomplete(String),
}

/// Pulls an image lazily whose layer was changed, with all that it has digests of, and makes it whole.
fn outcome(
    converted: &Converted,
    of_blob: fn(&mut Blob, u64),
    of_index: fn(&mut Vec<u8>),
    of_annotations: fn(&mut Value),
    truth: &[u8],
) -> Outcome {
    let mut manifest = converted.manifest();
    let entry = &mut manifest["layers"][LAYER];
    let bytes = converted.blob(entry["digest"].as_str().unwrap());
    let annotations = &mut entry["annotations"];
    let word = |name: &str| annotations[name].as_str().unwrap().to_owned();
    let start = word("org.erofs.chunk-index.range");
    let start = start.split_once(':').unwrap().0.parse().unwrap();
    let tree = word("org.erofs.dmverity.hash_offset").parse().unwrap();
    let mut blob = Blob::of(&bytes, start);
    assert!(blob.bytes(|_| {}) == (bytes, start));
    of_blob(&mut blob, tree);
    let (bytes, start) = blob.bytes(of_index);
    annotations["org.erofs.chunk-index.range"] = json!(format!("{start}:{}", bytes.len()));
    annotations["org.erofs.chunk-index.digest"] = json!(Digest::of(&bytes[start + 8..]));
    of_annotations(annotations);
    entry["digest"] = json!(Digest::of(&bytes));
    entry["size"] = json!(bytes.len());
    let (_registry, name) = served_with(converted, &manifest, &[bytes]);

    let puller = lazy();
    let image = match puller.try_pull(&name) {
        Ok(image) => image,
        Err(error) => {
            assert_eq!(puller.store.images().unwrap(), []);
            assert_eq!(puller.store.fsck(false).unwrap().findings, []);
            return Outcome::Refused(error.to_string());
        }
    };
    let layer = &image.layers[LAYER];
    let outcome = if puller.store.is_lazy(layer) {
        // Whatever that is, it ends.
        let _ = read(&puller, layer);
        match complete_blocking(&image, &puller.options, Arc::new(Silent)) {
            Ok(()) => Outcome::Whole,
            Err(error) => {
                assert!(!puller.store.is_whole(layer));
                Outcome::Incomplete(error.to_string())
            }
        }
    } else {
        Outcome::Whole
    };
    if puller.store.is_whole(layer) {
        assert!(fs::read(&layer.path).unwrap() == truth, "{outcome:?}");
    }
    assert_eq!(puller.store.fsck(false).unwrap().findings, []);
    outcome
}

/// What is expected of a lie.
#[derive(Debug, Clone, Copy)]
enum Expected {
    Refused(&'static str),
    Whole,
    Incomplete(&'static str),
}

fn assert_outcome(name: &str, outcome: &Outcome, expected: Expected) {
    let is_expected = match (outcome, expected) {
        (Outcome::Refused(said), Expected::Refused(part))
        | (Outcome::Incomplete(said), Expected::Incomplete(part)) => said.contains(part),
        (Outcome::Whole, Expected::Whole) => true,
        _ => false,
    };
    assert!(is_expected, "{name}: {outcome:?}, not {expected:?}");
}

fn truth(converted: &Converted) -> Vec<u8> {
    let (_puller, image) = whole(converted);
    fs::read(&image.layers[LAYER].path).unwrap()
}

/// The number of the last entry.
const LAST: usize = usize::MAX;

/// Writes a number into an entry of an index.
fn set(index: &mut [u8], number: usize, field: usize, value: u64) {
    let number = number.min((index.len() - HEADER) / ENTRY - 1);
    let at = HEADER + number * ENTRY + field * 8;
    index[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn get(index: &[u8], number: usize, field: usize) -> u64 {
    let at = HEADER + number * ENTRY + field * 8;
    u64::from_le_bytes(index[at..at + 8].try_into().unwrap())
}

fn resize(index: &mut [u8], by: i64) {
    let size = u64::from_le_bytes(index[8..16].try_into().unwrap());
    index[8..16].copy_from_slice(&size.wrapping_add_signed(by).to_le_bytes());
}

#[test]
fn an_index_that_lies_in_any_field_is_not_believed() {
    use Expected::{Incomplete, Refused, Whole};
    type Lie = fn(&mut Vec<u8>);
    let lies: [(&str, Lie, Expected); 27] = [
        ("magic", |i| i[0] ^= 1, Refused("its magic is another one")),
        ("version", |i| i[4] = 2, Whole),
        ("no compression", |i| i[5] = 0, Refused("not compressed")),
        ("compression", |i| i[5] = 2, Whole),
        ("flags", |i| i[7] = 1, Whole),
        ("a larger image", |i| resize(i, 4096), Whole),
        ("a smaller image", |i| resize(i, -4096), Whole),
        ("no image", |i| i[8..16].fill(0), Refused("no bytes")),
        ("an image without end", |i| i[8..16].fill(0xff), Whole),
        ("fewer chunks", |i| i[16] -= 1, Refused("its length")),
        ("more chunks", |i| i[18] += 1, Refused("its length")),
        ("no checksums", |i| i[20] = 0, Refused("their algorithm's")),
        ("other checksums", |i| i[20] = 2, Whole),
        ("short checksums", |i| i[21] = 31, Refused("algorithm's")),
        ("long checksums", |i| i[21] = 64, Refused("its length")),
        ("reserved", |i| i[31] = 1, Whole),
        (
            "cut",
            |i| i.truncate(31),
            Refused("shorter than its header"),
        ),
        ("a cut entry", |i| i.truncate(100), Refused("its length")),
        ("the start", |i| set(i, 0, 0, 1), Refused("at the start")),
        ("a start", |i| set(i, 0, 1, 1), Refused("at the start")),
        (
            "a place",
            |i| {
                let at = get(i, 1, 0);
                set(i, 1, 0, at + 1);
            },
            Refused("another checksum"),
        ),
        (
            "a place in the image",
            |i| {
                let at = get(i, 1, 1);
                set(i, 1, 1, at + 1);
            },
            Refused("does not inflate"),
        ),
        (
            "places in another order",
            |i| {
                let at = get(i, 2, 0);
                set(i, 1, 0, at + 1);
            },
            Refused("after the one before"),
        ),
        (
            "a place behind the end",
            |i| set(i, LAST, 0, u64::MAX),
            Refused("after the one before"),
        ),
        (
            "a place in the image behind its end",
            |i| set(i, LAST, 1, u64::MAX),
            Refused("after the one before"),
        ),
        (
            "two chunks of the image the other way round",
            |i| {
                let (one, other) = (get(i, 3, 1), get(i, 4, 1));
                set(i, 3, 1, other);
                set(i, 4, 1, one);
            },
            Refused("after the one before"),
        ),
        (
            "a checksum",
            |i| set(i, LAST, 2, 7),
            Incomplete("another checksum"),
        ),
    ];
    let converted = converted();
    let truth = truth(&converted);
    for (name, lie, expected) in lies {
        let outcome = outcome(&converted, |_, _| {}, lie, |_| {}, &truth);
        assert_outcome(name, &outcome, expected);
    }
}

#[test]
fn chunks_and_trees_that_lie_with_right_digests_are_never_the_layer() {
    use Expected::{Incomplete, Refused, Whole};
    type Lie = fn(&mut Blob, u64);
    /// A chunk of contents.
    const CHUNK: usize = 2;
    let lies: [(&str, Lie, Expected); 14] = [
        (
            "contents",
            |b, _| b.flip(5 << 20),
            Incomplete("uncompressed it has the diff ID"),
        ),
        (
            "superblock",
            |b, _| b.flip(1024),
            Refused("not an EROFS image"),
        ),
        (
            "the tree's superblock",
            |b, tree| b.flip(tree),
            Incomplete("uncompressed it has the diff ID"),
        ),
        (
            "the tree's salt",
            |b, tree| b.flip(tree + 88),
            Incomplete("uncompressed it has the diff ID"),
        ),
        (
            "the tree's first level",
            |b, tree| b.flip(tree + 4096),
            Incomplete("uncompressed it has the diff ID"),
        ),
        (
            "the tree's last level",
            |b, tree| {
                let (number, range) = b.chunk(u64::MAX);
                assert!(range.start <= tree || number > 0);
                b.flip(range.end - 4000);
            },
            Incomplete("uncompressed it has the diff ID"),
        ),
        (
            "a longer chunk",
            |b, _| {
                let mut bytes = b.inflated(CHUNK);
                bytes.push(0);
                b.chunks[CHUNK].1 = frame(&bytes);
            },
            Incomplete("uncompressed it has the diff ID"),
        ),
        (
            "a shorter chunk",
            |b, _| {
                let mut bytes = b.inflated(CHUNK);
                bytes.pop();
                b.chunks[CHUNK].1 = frame(&bytes);
            },
            Incomplete("uncompressed it has the diff ID"),
        ),
        (
            "an empty chunk",
            |b, _| b.chunks[CHUNK].1 = frame(&[]),
            Incomplete("shorter than its superblock"),
        ),
        (
            "no frame",
            |b, _| b.chunks[CHUNK].1.fill(0x5a),
            Incomplete("Unknown frame descriptor"),
        ),
        (
            // Zstandard has them as one.
            "a chunk of two frames",
            |b, _| {
                let bytes = b.inflated(CHUNK);
                let (one, other) = bytes.split_at(100);
                b.chunks[CHUNK].1 = [frame(one), frame(other)].concat();
            },
            Whole,
        ),
        (
            "a cut frame",
            |b, _| {
                b.chunks[CHUNK].1.pop();
            },
            Incomplete("Unknown frame descriptor"),
        ),
        (
            "another frame of the index",
            |b, _| b.frame[0] ^= 0x80,
            Incomplete("Unknown frame descriptor"),
        ),
        (
            "a shorter frame of the index",
            |b, _| b.frame[4..].copy_from_slice(&1u32.to_le_bytes()),
            Incomplete("Unknown frame descriptor"),
        ),
    ];
    let converted = converted();
    let truth = truth(&converted);
    for (name, lie, expected) in lies {
        let outcome = outcome(&converted, lie, |_| {}, |_| {}, &truth);
        assert_outcome(name, &outcome, expected);
    }
}

#[test]
fn an_image_that_its_policy_refuses_is_not_begun() {
    let converted = converted();
    let (registry, name) = served_with(&converted, &converted.manifest(), &[]);
    let policy = converted.directory.path().join("policy.json");
    fs::write(
        &policy,
        json!({"default": [{"type": "reject"}]}).to_string(),
    )
    .unwrap();
    let puller = lazy().edit_settings(|settings| settings.policy = Some(policy));
    let said = puller.try_pull(&name).unwrap_err().to_string();
    assert!(said.contains("rejects it"), "{said}");
    let requests = registry.requests();
    for layer in converted.manifest()["layers"].as_array().unwrap() {
        let digest = layer["digest"].as_str().unwrap();
        assert!(
            requests
                .iter()
                .all(|request| !request.target.contains(digest))
        );
    }
    assert_eq!(puller.store.usage().unwrap().lazy_layers, 0);
}

#[test]
fn annotations_of_a_lazy_layer_that_lie_are_never_believed() {
    use Expected::{Incomplete, Refused, Whole};
    type Lie = fn(&mut Value);
    let lies: [(&str, Lie, Expected); 6] = [
        (
            "the digest of what is in it",
            |a| a["org.erofs.uncompressed-digest"] = json!(Digest::of(b"")),
            Incomplete("uncompressed it has the diff ID"),
        ),
        (
            "its role",
            |a| a["org.erofs.role"] = json!("fsmeta"),
            Refused("org.erofs.role"),
        ),
        // `--verity` refuses these: `erofs::a_guest_checks_a_converted_image_by_the_digests_that_were_published`.
        (
            "the root of its tree",
            |a| a["org.erofs.dmverity.root_digest"] = json!(Digest::of(b"")),
            Whole,
        ),
        (
            "the blocks of its tree",
            |a| a["org.erofs.dmverity.block_size"] = json!("512"),
            Whole,
        ),
        (
            "the algorithm of its tree",
            |a| a["org.erofs.dmverity.hash_algorithm"] = json!("sha512"),
            Whole,
        ),
        (
            "its archive",
            |a| a["org.micabox.archive"] = json!(Digest::of(b"")),
            Refused("archive"),
        ),
    ];
    let converted = converted();
    let truth = truth(&converted);
    for (name, lie, expected) in lies {
        let outcome = outcome(&converted, |_, _| {}, |_| {}, lie, &truth);
        assert_outcome(name, &outcome, expected);
    }
}
