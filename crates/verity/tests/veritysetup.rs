//! Trees as cryptsetup's `veritysetup` sees them.

#![allow(missing_docs)]

use std::fs;
use std::process::Command;

use micabox_verity::{BLOCK, Tree};

/// cryptsetup's program, which Debian keeps out of a user's PATH.
fn veritysetup() -> Command {
    let mut command = Command::new("veritysetup");
    command.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
    command
}

fn tree(image: &[u8], piece: usize) -> (String, Vec<u8>) {
    let mut tree = Tree::new([7; 16]);
    image.chunks(piece).for_each(|piece| tree.update(piece));
    let (root, bytes) = tree.finish();
    (
        root.iter().map(|byte| format!("{byte:02x}")).collect(),
        bytes,
    )
}

/// Bytes without a pattern.
fn image(blocks: usize) -> Vec<u8> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..blocks * BLOCK).map(|_| next()).collect()
}

fn verifies(path: &std::path::Path, offset: usize, root: &str) -> bool {
    let path = path.to_str().unwrap();
    let output = veritysetup()
        .args(["verify", path, path, root])
        .arg(format!("--hash-offset={offset}"))
        .output()
        .unwrap();
    output.status.success()
}

#[test]
fn veritysetup_verifies_images_with_trees_of_every_depth() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    // No level, one that isn't full, a full one, two, three.
    for blocks in [1, 2, 127, 128, 129, 16_384, 16_385] {
        let mut image = image(blocks);
        let (root, tree) = tree(&image, 1 << 20);
        image.extend(&tree);
        fs::write(&path, &image).unwrap();
        let offset = blocks * BLOCK;
        assert!(verifies(&path, offset, &root), "{blocks} blocks");

        // Any other byte is noticed: in the image, and in the tree.
        let length = image.len();
        for at in [0, offset - 1, offset + BLOCK]
            .into_iter()
            .filter(|&at| at < length)
        {
            image[at] ^= 1;
            fs::write(&path, &image).unwrap();
            assert!(
                !verifies(&path, offset, &root),
                "{blocks} blocks, byte {at}"
            );
            image[at] ^= 1;
        }
    }
}

#[test]
fn the_tree_is_veritysetups_own() {
    let directory = tempfile::tempdir().unwrap();
    let (data, hashes) = (
        directory.path().join("data"),
        directory.path().join("hashes"),
    );
    let image = image(300);
    fs::write(&data, &image).unwrap();
    let output = veritysetup()
        .args([
            "format",
            "--salt=-",
            "--uuid=07070707-0707-0707-0707-070707070707",
        ])
        .args([&data, &hashes])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let (root, tree) = tree(&image, 1 << 20);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains(&root), "{root}: {said}");
    assert_eq!(fs::read(&hashes).unwrap(), tree);
}

#[test]
fn pieces_of_any_length_make_the_same_tree() {
    let mut image = image(5);
    image.truncate(5 * BLOCK - 3);
    let whole = tree(&image, image.len());
    for piece in [1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK] {
        assert_eq!(tree(&image, piece), whole, "{piece}");
    }
    image.extend([0; 3]);
    assert_eq!(tree(&image, BLOCK), whole);
    let (root, tree) = tree(&[], 1);
    assert_eq!((root, tree.len()), ("00".repeat(32), BLOCK));
}

#[test]
fn a_part_of_an_image_has_the_root_that_it_has_alone() {
    let (first, second) = (image(130), image(3));
    let mut whole = Tree::new([7; 16]);
    whole.update(&first);
    whole.zeros(5);
    whole.update(&second);
    let roots = [0..130, 135..138].map(|blocks| whole.root_of(blocks).unwrap());
    for (image, root) in [&first, &second].into_iter().zip(roots) {
        let alone: String = root.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(tree(image, image.len()).0, alone);
    }
    assert_eq!((whole.blocks(), whole.root_of(0..139)), (138, None));
    let bytes = [&first[..], &[0; 5 * BLOCK], &second].concat();
    let written = whole.finish().1;
    assert_eq!(tree(&bytes, bytes.len()).1, written);
}
