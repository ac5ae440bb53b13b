//! Checks malicious images: the reader, the check and the merge return an error or a tree.

#[path = "../../../../fuzz/src/erofs.rs"]
#[allow(missing_docs)]
mod exercise;

use micabox_erofs::{BLOCK_SIZE, Error, Reader, check};
use proptest::prelude::*;

use crate::support::spec::{self, Entry, directory, entry, file, hard_link, meta, symlink};

/// Builds an image with one of everything that has a parser.
fn sample() -> Vec<u8> {
    let mut entries = vec![
        directory("/"),
        file("/file", "some data ".repeat(20)),
        hard_link("/link", "/file"),
        symlink("/symlink", "file").xattr("user.a", "shared by two"),
        directory("/dir").xattr("user.a", "shared by two"),
        file("/dir/x", "x").xattr("trusted.own", "own"),
        entry("/null", meta(0o600), spec::What::Char(1, 3)),
        entry(
            "/sparse",
            meta(0o600),
            spec::What::File(spec::Content::Sparse(60_000, vec![(20_000, vec![1; 9])])),
        ),
        directory("/large"),
    ];
    entries.extend((0..45).map(|i| file(format!("/large/{i:0100}"), "")));
    spec::image(&entries)
}

/// Returns the position of an inode.
fn position(image: &[u8], path: &[u8]) -> usize {
    let reader = Reader::open(image).unwrap();
    let mut found = None;
    reader
        .walk(|other, inode| {
            if other == path {
                found = Some(inode.nid);
            }
            Ok(())
        })
        .unwrap();
    let meta_block = u32::from_le_bytes(image[1024 + 40..1024 + 44].try_into().unwrap());
    meta_block as usize * 4096 + found.expect("the path exists") as usize * 32
}

/// Replaces bytes that occur once.
fn replace(image: &mut [u8], old: &[u8], new: &[u8]) {
    assert_eq!(old.len(), new.len());
    let at: Vec<usize> = (0..image.len() - old.len())
        .filter(|&at| &image[at..at + old.len()] == old)
        .collect();
    assert_eq!(at.len(), 1, "{} places", at.len());
    image[at[0]..at[0] + old.len()].copy_from_slice(new);
}

/// Returns the error of a walk; the check must report a problem as well.
#[track_caller]
fn walk_error(image: &[u8]) -> String {
    let findings = check::check(&image);
    assert!(!findings.is_empty(), "the check found nothing");
    exercise::image(image);
    let reader = match Reader::open(image) {
        Ok(reader) => reader,
        Err(error) => return error.to_string(),
    };
    reader.walk(|_, _| Ok(())).unwrap_err().to_string()
}

#[test]
fn a_sound_image_has_no_findings() {
    assert_eq!(check::check(&sample()), []);
    exercise::image(&sample());
}

#[test]
fn arbitrary_bytes_are_not_an_image() {
    for bytes in [&b""[..], &[0; 1024], &[0xff; 4096], &[0; 100_000]] {
        assert!(matches!(Reader::open(bytes), Err(Error::NotErofs)));
    }
}

#[test]
fn every_truncation_is_noticed() {
    let image = sample();
    for length in (0..image.len()).step_by(512) {
        assert!(
            !check::check(&image[..length].to_vec()).is_empty(),
            "{length}"
        );
    }
}

#[test]
fn a_flipped_bit_in_the_superblock_is_noticed() {
    let image = sample();
    for bit in (1024 * 8)..(1024 + 128) * 8 {
        let mut broken = image.clone();
        broken[bit / 8] ^= 1 << (bit % 8);
        // The bit for the presence of a checksum is the only one that can't be protected.
        if bit != (1024 + 8) * 8 {
            assert!(!check::check(&broken).is_empty(), "bit {bit}");
        }
    }
}

#[test]
fn directories_in_a_circle_end() {
    let mut image = spec::image(&[
        directory("/"),
        directory("/a"),
        directory("/a/b"),
        directory("/a/b/c"),
    ]);
    // `c` becomes another entry for `a`: a cycle.
    let (a, c) = (position(&image, b"/a"), position(&image, b"/a/b/c"));
    let meta_block = u32::from_le_bytes(image[1064..1068].try_into().unwrap()) as usize;
    let nid = |at: usize| ((at - meta_block * 4096) / 32) as u64;
    let b = position(&image, b"/a/b");
    let entries = b + 32..b + 32 + 36;
    let old = nid(c).to_le_bytes();
    let at = image[entries.clone()]
        .chunks_exact(12)
        .position(|dirent| dirent[..8] == old)
        .unwrap();
    let at = entries.start + at * 12;
    image[at..at + 8].copy_from_slice(&nid(a).to_le_bytes());
    assert!(walk_error(&image).contains("directory with several names"));
}

#[test]
fn names_out_of_order_are_noticed() {
    let entries = [file("/aaa", ""), file("/bbb", ""), file("/ccc", "")];
    let mut image = spec::image(&entries);
    replace(&mut image, b"aaabbbccc", b"bbbaaaccc");
    assert!(walk_error(&image).contains("ascending order"));
}

#[test]
fn names_with_slashes_or_nul_bytes_are_refused() {
    let entries: [Entry; 2] = [file("/aaa", ""), file("/bbb", "")];
    for evil in [&b"a/ab"[..], b"\0aab", b"aab/"] {
        let mut image = spec::image(&entries);
        replace(&mut image, b"aaab", evil);
        let error = walk_error(&image);
        assert!(
            error.contains("invalid name") || error.contains("ascending order"),
            "{error}"
        );
    }
}

#[test]
fn directories_that_share_their_entries_are_bounded() {
    // Each directory gets the blocks of the large one.
    let mut entries = vec![directory("/"), directory("/large")];
    entries.extend((0..2000).map(|i| file(format!("/large/{i:0200}"), "")));
    entries.extend((0..20).map(|i| directory(format!("/{i}"))));
    let sound = spec::image(&entries);
    let mut image = sound.clone();
    let large = position(&sound, b"/large");
    assert_eq!(sound[large], 2 << 1, "compact, with an inline tail");
    let size = u32::from_le_bytes(sound[large + 8..large + 12].try_into().unwrap());
    for i in 0..20 {
        let at = position(&sound, format!("/{i}").as_bytes());
        // Plain layout, without the tail, which does not exist.
        image[at] = 0;
        image[at + 8..at + 12].copy_from_slice(&(size / 4096 * 4096).to_le_bytes());
        image[at + 16..at + 20].copy_from_slice(&sound[large + 16..large + 20]);
    }
    assert!(walk_error(&image).contains("overlap"));
}

#[test]
fn sizes_beyond_the_image_are_refused() {
    let sound = sample();
    for (path, field) in [("/file", 8), ("/symlink", 8), ("/dir", 8), ("/sparse", 8)] {
        let mut image = sound.clone();
        let at = position(&image, path.as_bytes());
        image[at + field..at + field + 4].copy_from_slice(&0x7fff_f000u32.to_le_bytes());
        let error = walk_error(&image);
        assert!(error.contains("inode"), "{path}: {error}");
    }
    // Start blocks.
    for path in ["/file", "/large"] {
        let mut image = sound.clone();
        let at = position(&image, path.as_bytes());
        image[at + 16..at + 20].copy_from_slice(&(u32::MAX - 1).to_le_bytes());
        assert!(walk_error(&image).contains("outside the image"), "{path}");
    }
}

#[test]
fn data_on_top_of_metadata_is_noticed() {
    let mut image = sample();
    let file = position(&image, b"/file");
    let meta_block = image[1064..1068].to_vec();
    image[file + 16..file + 20].copy_from_slice(&meta_block);
    let findings = check::check(&image);
    assert!(
        findings.iter().any(|f| f.problem.contains("overlaps")),
        "{findings:?}"
    );
}

#[test]
fn wrong_link_counts_are_noticed() {
    let mut image = sample();
    let file = position(&image, b"/file");
    image[file + 6] = 3;
    let findings = check::check(&image);
    assert!(
        findings
            .iter()
            .any(|f| f.problem.contains("link count is 3")),
        "{findings:?}"
    );
}

#[test]
fn features_of_newer_kernels_are_named() {
    for (bit, name) in [
        (0x2, "compressed"),
        (0x40, "prefixes"),
        (0x80, "48-bit"),
        (1 << 20, "newer"),
    ] {
        let mut image = sample();
        image[1024 + 8] &= !1;
        let at = 1024 + 80;
        let features = u32::from_le_bytes(image[at..at + 4].try_into().unwrap()) | bit;
        image[at..at + 4].copy_from_slice(&features.to_le_bytes());
        let error = Reader::open(&image).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
}

/// Sets every byte of the metadata to a few values, one at a time.
#[test]
fn every_altered_byte_of_metadata_is_survived() {
    let image = sample();
    let meta_block = u32::from_le_bytes(image[1064..1068].try_into().unwrap());
    let metadata = (u64::from(meta_block) * BLOCK_SIZE) as usize..image.len();
    for at in (1024..1152).chain(metadata) {
        for value in [0, 0xff, image[at] ^ 1, image[at] ^ 0x80] {
            let mut broken = image.clone();
            broken[at] = value;
            exercise::image(&broken);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.max(2000),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn arbitrary_bytes_are_survived(mut bytes in prop::collection::vec(any::<u8>(), 4096..20_000)) {
        exercise::image(&bytes);
        // Also as an image: the rest of the superblock is unchanged.
        bytes[1024..1028].copy_from_slice(&[0xe2, 0xe1, 0xf5, 0xe0]);
        bytes[1036] = 12;
        bytes[1024 + 80..1024 + 84].copy_from_slice(&[4, 0, 0, 0]);
        bytes[1060..1064].copy_from_slice(&1u32.to_le_bytes());
        bytes[1064..1068].copy_from_slice(&0u32.to_le_bytes());
        exercise::image(&bytes);
    }

    #[test]
    fn mutated_images_are_survived(
        lower in mutations(),
        upper in mutations(),
    ) {
        let image = sample();
        let meta_block = u32::from_le_bytes(image[1064..1068].try_into().unwrap());
        let start = meta_block as usize * 4096;
        let mutate = |mutations: &[(prop::sample::Index, u8)]| {
            let mut image = image.clone();
            for (index, value) in mutations {
                let at = start + index.index(image.len() - start);
                image[at] = *value;
            }
            image
        };
        let (lower, upper) = (mutate(&lower), mutate(&upper));
        exercise::image(&lower);
        exercise::stack(&[lower, upper]);
    }
}

fn mutations() -> impl Strategy<Value = Vec<(prop::sample::Index, u8)>> {
    prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8)
}

#[test]
fn a_very_deep_tree_costs_no_more_than_a_wide_one() {
    let mut writer = micabox_erofs::Writer::new(
        std::io::Cursor::new(Vec::new()),
        micabox_erofs::Options {
            uuid: [0; 16],
            root: meta(0o755),
        },
    )
    .unwrap();
    let tree = writer.tree();
    let mut directory = tree.root();
    for _ in 0..20_000 {
        let child = tree.add(meta(0o755), micabox_erofs::Kind::directory());
        tree.link(directory, &[b'd'; 255], child).unwrap();
        directory = child;
    }
    let (meta, kind) = micabox_erofs::overlay::link_to_lower(meta(0o644), b"/nowhere");
    let link = tree.add(meta, kind);
    tree.link(directory, b"link", link).unwrap();
    let mut image = writer.finish().unwrap().0.into_inner();
    assert_eq!(check::check(&image), []);

    // Errors at the bottom give the path, or a useful part of it.
    let layer = micabox_erofs::merge::Layer {
        image: &image,
        tag: b"deep",
    };
    let error = micabox_erofs::merge::Merge::of(&[layer], 1).unwrap_err();
    assert!(error.to_string().contains("/link"));
    let meta_block = u32::from_le_bytes(image[1064..1068].try_into().unwrap()) as usize;
    let reader = Reader::open(&image).unwrap();
    let mut last = 0;
    reader
        .walk(|_, inode| {
            last = inode.nid;
            Ok(())
        })
        .unwrap();
    image[meta_block * 4096 + last as usize * 32 + 6] = 9;
    let findings = check::check(&image);
    assert_eq!(findings.len(), 1);
    assert!(findings[0].path.len() < 5000 && findings[0].path.ends_with(b"/link"));
}
