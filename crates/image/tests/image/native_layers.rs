//! Layers that are EROFS images.

use std::fs;
use std::path::Path;
use std::process::Command;

use micabox_image::convert::{Expect, Reason, convert_layer};
use micabox_image::{Limit, Limits};
use micabox_testing::run;

use crate::layer::archive::Archive;
use crate::layer::{self, OpenLayer, assert_no_trace, check_structure, expect_typed, store};

/// Makes an image of a tree with `mkfs.erofs`.
fn mkfs(tree: impl Fn(&Path), options: &[&str]) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("tree");
    fs::create_dir(&root).unwrap();
    tree(&root);
    let image = directory.path().join("image");
    run(Command::new("mkfs.erofs")
        .args(options)
        .args([&image, &root]));
    fs::read(image).unwrap()
}

fn some_tree(root: &Path) {
    fs::create_dir_all(root.join("a/b")).unwrap();
    fs::write(root.join("a/small"), "small enough to lie in its inode").unwrap();
    fs::write(root.join("a/b/large"), "0123456789".repeat(10_000)).unwrap();
    fs::write(root.join("a/empty"), "").unwrap();
    fs::hard_link(root.join("a/small"), root.join("linked")).unwrap();
    std::os::unix::fs::symlink("a/small", root.join("symlink")).unwrap();
    for i in 0..500 {
        fs::write(root.join(format!("a/b/{i}")), i.to_string()).unwrap();
    }
}

fn native(blob: &[u8], image: &[u8], media_type: &str) -> Expect {
    expect_typed(blob, image, media_type)
}

const PLAIN: &str = "application/vnd.erofs.layer.v1";

#[test]
fn an_image_of_mkfs_erofs_becomes_a_layer() {
    let image = mkfs(some_tree, &[]);
    let zstd = zstd::encode_all(&image[..], 3).unwrap();
    for (blob, media_type) in [(&image, PLAIN), (&zstd, "application/vnd.erofs+zstd")] {
        let store = store();
        let expect = native(blob, &image, media_type);
        let layer = convert_layer(&store, &blob[..], &expect, &Limits::default()).unwrap();
        check_structure(&layer.path);
        let layer = OpenLayer::new(store, layer);
        assert_eq!(layer.paths().len(), 508);
        assert_eq!(layer.read("a/small"), b"small enough to lie in its inode");
        assert_eq!(
            layer.read("a/b/large"),
            "0123456789".repeat(10_000).into_bytes()
        );
        assert_eq!(layer.read("a/b/499"), b"499");
        assert_eq!(layer.inode("linked"), layer.inode("a/small"));
        assert_eq!(layer.inode("linked").nlink, 2);
        // No file is packed into inodes any more: every byte can be mapped.
        for path in ["a/small", "a/b/large"] {
            let extents = layer.reader.extents(&layer.inode(path)).unwrap();
            assert!(
                extents
                    .iter()
                    .all(|e| e.address.unwrap().is_multiple_of(4096)),
                "{path}"
            );
        }
    }
}

#[test]
fn markers_of_overlayfs_are_kept_and_holes_stay_holes() {
    // One of our own images is a valid layer, too, with everything that an archive may contain.
    let size = (8 << 20).to_string();
    let archive = Archive::new()
        .whiteout("d/.wh.gone")
        .whiteout("o/.wh..wh..opq")
        .pax(&[
            ("GNU.sparse.size", size.as_bytes()),
            ("GNU.sparse.map", b"4194304,5"),
        ])
        .file("sparse", "12345")
        .directory("d/")
        .directory("o/")
        .directory("./");
    let original = layer::layer(&archive.finish());
    let blob = original.reader.source();
    let store = store();
    let expect = native(blob, blob, PLAIN);
    let layer = convert_layer(&store, &blob[..], &expect, &Limits::default()).unwrap();
    // The layer wasn't made from an archive.
    let error = store.archive(&layer).unwrap_err().to_string();
    assert!(error.contains("came as an EROFS image"), "{error}");
    let layer = OpenLayer::new(store, layer);
    assert_eq!(layer.paths(), original.paths());
    assert!(layer.is_whiteout("d/gone") && layer.is_opaque("o"));
    assert_eq!(layer.read("sparse"), original.read("sparse"));
    assert_eq!(layer.layer.record.blocks, original.layer.record.blocks);
}

#[test]
fn damaged_or_unusual_images_are_refused() {
    let image = mkfs(some_tree, &[]);
    let compressed = mkfs(some_tree, &["-zlz4"]);
    let mut damaged = image.clone();
    damaged[1024] ^= 1;
    // A link into a lower layer: a marker that only our own conversion may set.
    let links = layer::layer(&Archive::new().hard_link("a", "b").directory("./").finish());
    let cases = [
        (&compressed[..], "EROFS"),
        (&damaged, "EROFS"),
        (b"no image at all", "EROFS"),
        (links.reader.source(), "trusted.overlay."),
    ];
    for (blob, expected) in cases {
        let store = store();
        let expect = native(blob, blob, PLAIN);
        let error = convert_layer(&store, blob, &expect, &Limits::default()).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert_no_trace(&store);
    }
    let store = self::store();
    let lie = native(&image, b"another", PLAIN);
    let error = convert_layer(&store, &image[..], &lie, &Limits::default()).unwrap_err();
    assert!(matches!(error.reason, Reason::DiffId { .. }));
    let few = Limits {
        entries: 100,
        ..Limits::default()
    };
    let error = convert_layer(&store, &image[..], &native(&image, &image, PLAIN), &few);
    assert!(matches!(
        error.unwrap_err().reason,
        Reason::Limit {
            setting: Limit::Entries,
            ..
        }
    ));
    assert_no_trace(&store);
}

/// Makes an image of `files` files that share the same `blocks` blocks.
fn shared_blocks(files: usize, blocks: usize) -> Vec<u8> {
    const BLOCK: usize = 4096;
    let inode_blocks = (32 * (files + 1)).div_ceil(BLOCK);
    let mut names: Vec<(String, u64, u8)> = vec![(".".into(), 0, 2), ("..".into(), 0, 2)];
    names.extend((0..files).map(|i| (format!("f{i:06}"), i as u64 + 1, 1)));
    let (mut directory, mut last) = (Vec::new(), 0);
    while !names.is_empty() {
        let mut room = BLOCK;
        let fits = names.iter().take_while(|(name, ..)| {
            let needed = 12 + name.len();
            let fits = needed <= room;
            room = room.saturating_sub(needed);
            fits
        });
        let fits = fits.count();
        let mut offset = 12 * fits;
        let (mut heads, mut text) = (Vec::new(), Vec::new());
        for (name, nid, kind) in names.drain(..fits) {
            heads.extend(nid.to_le_bytes());
            heads.extend((offset as u16).to_le_bytes());
            heads.extend([kind, 0]);
            offset += name.len();
            text.extend(name.bytes());
        }
        last = offset;
        directory.extend([heads, text].concat());
        directory.resize(directory.len().next_multiple_of(BLOCK), 0);
    }
    let directory_size = directory.len() - BLOCK + last;
    let (first_directory, meta) = (1 + inode_blocks, 1u32);
    let data = first_directory + directory.len() / BLOCK;
    let inode = |mode: u16, nlink: u16, size: usize, block: usize, number: usize| {
        let mut inode = vec![0; 4];
        inode.extend(mode.to_le_bytes());
        inode.extend(nlink.to_le_bytes());
        inode.extend((size as u32).to_le_bytes());
        inode.extend([0; 4]);
        inode.extend((block as u32).to_le_bytes());
        inode.extend((number as u32).to_le_bytes());
        inode.resize(32, 0);
        inode
    };
    let mut image = vec![0; BLOCK];
    image[1024..1028].copy_from_slice(&0xe0f5_e1e2u32.to_le_bytes());
    image[1036] = 12;
    image[1040..1048].copy_from_slice(&(files as u64 + 1).to_le_bytes());
    image[1060..1064].copy_from_slice(&((data + blocks) as u32).to_le_bytes());
    image[1064..1068].copy_from_slice(&meta.to_le_bytes());
    image.extend(inode(0o40755, 2, directory_size, first_directory, 1));
    for i in 0..files {
        image.extend(inode(0o100_644, 1, blocks * BLOCK, data, i + 2));
    }
    image.resize(first_directory * BLOCK, 0);
    image.extend(directory);
    image.resize((data + blocks) * BLOCK, b'A');
    image
}

/// Returns the setting that a conversion of `blob`, which contains `image`, exceeds.
#[track_caller]
fn exceeded(blob: &[u8], image: &[u8], limits: &Limits) -> Limit {
    let store = store();
    let expect = native(blob, image, "application/vnd.erofs.layer.v1+zstd");
    let error = convert_layer(&store, blob, &expect, limits).unwrap_err();
    assert_no_trace(&store);
    match error.reason {
        Reason::Limit { setting, .. } => setting,
        reason => panic!("{reason}"),
    }
}

#[test]
fn files_that_share_their_blocks_count_in_full() {
    let image = shared_blocks(64, 512);
    let blob = zstd::encode_all(&image[..], 3).unwrap();
    let size = Limits {
        layer_size: 16 << 20,
        ..Limits::default()
    };
    assert_eq!(exceeded(&blob, &image, &size), Limit::LayerSize);
    let ratio = Limits {
        compression_ratio_from: 32 << 20,
        ..Limits::default()
    };
    assert_eq!(exceeded(&blob, &image, &ratio), Limit::CompressionRatio);
    // Within the limits it is a normal layer.
    let store = store();
    let expect = native(&blob, &image, "application/vnd.erofs.layer.v1+zstd");
    let layer = convert_layer(&store, &blob[..], &expect, &Limits::default()).unwrap();
    let layer = OpenLayer::new(store, layer);
    assert_eq!(layer.read("f000063"), vec![b'A'; 512 * 4096]);
}

#[test]
fn metadata_of_an_image_is_limited_before_it_is_read() {
    let image = mkfs(some_tree, &[]);
    let limits = Limits {
        metadata_size: 100 << 10,
        ..Limits::default()
    };
    assert_eq!(exceeded(&image, &image, &limits), Limit::MetadataSize);
    // An image with a wrong count of inodes is measured by its real size.
    let mut lie = image;
    lie[1040..1048].copy_from_slice(&3u64.to_le_bytes());
    lie[1032..1036].copy_from_slice(&0u32.to_le_bytes()); // no checksum is claimed
    let store = store();
    let error = convert_layer(&store, &lie[..], &native(&lie, &lie, PLAIN), &limits);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("more inodes than its superblock"), "{error}");
}

#[test]
fn an_image_of_no_bytes_is_refused_though_an_archive_of_none_is_empty() {
    let store = store();
    let empty = native(b"", b"", PLAIN);
    let error = convert_layer(&store, &b""[..], &empty, &Limits::default()).unwrap_err();
    assert!(matches!(error.reason, Reason::ForeignErofs(_)), "{error}");
    assert_no_trace(&store);
    // The archive's layer isn't used for it either.
    layer::convert(&store, b"").unwrap();
    let error = convert_layer(&store, &b""[..], &empty, &Limits::default()).unwrap_err();
    assert!(matches!(error.reason, Reason::Kind { .. }), "{error}");
}

#[test]
fn an_image_that_came_as_an_archive_is_not_taken_for_its_layer() {
    // The image begins with zeros, which end an archive.
    let image = mkfs(some_tree, &[]);
    let store = store();
    layer::convert(&store, &image).unwrap();
    let honest = native(&image, &image, PLAIN);
    let error = convert_layer(&store, &image[..], &honest, &Limits::default()).unwrap_err();
    assert!(matches!(error.reason, Reason::Kind { .. }), "{error}");
}

#[test]
fn symbolic_links_have_the_mode_that_linux_gives_them() {
    let mut image = mkfs(some_tree, &[]);
    // S_IFLNK and 0777 occur in one inode only.
    let mode = 0o120_777u16.to_le_bytes();
    let at = image.windows(2).position(|bytes| bytes == mode).unwrap();
    image[at..at + 2].copy_from_slice(&0o120_600u16.to_le_bytes());
    image[1032..1036].copy_from_slice(&0u32.to_le_bytes());
    let store = store();
    let layer = convert_layer(
        &store,
        &image[..],
        &native(&image, &image, PLAIN),
        &Limits::default(),
    );
    let layer = OpenLayer::new(store, layer.unwrap());
    assert_eq!(layer.inode("symlink").mode, 0o777);
}
