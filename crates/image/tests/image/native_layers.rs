//! Layers that are EROFS images.

use std::fs;
use std::path::Path;
use std::process::Command;

use micabox_erofs::{Kind, Xattr, overlay};
use micabox_image::convert::{Expect, Reason, convert_layer};
use micabox_image::{Limit, Limits};
use micabox_testing::run;

use crate::devices::image as image_of;
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

/// Files that compress well and badly, of all lengths around those of blocks and clusters.
fn compressible_tree(root: &Path) {
    some_tree(root);
    let text: Vec<u8> = (0..400_000u32)
        .flat_map(|number| number.to_string().into_bytes())
        .collect();
    let mut state = 1u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as u8
    })
    .take(300_000)
    .collect();
    for length in [1, 4095, 4096, 4097, 5000, 65_536, 70_001, 1_000_003] {
        fs::write(root.join(format!("text {length}")), &text[..length]).unwrap();
    }
    for length in [1, 4097, 300_000] {
        fs::write(root.join(format!("noise {length}")), &noise[..length]).unwrap();
    }
    let mixed = [&noise[..100_001], &text[..200_003], &noise[5..70_000]].concat();
    fs::write(root.join("mixed"), mixed).unwrap();
    fs::write(root.join("zeros"), vec![0; 3_000_001]).unwrap();
}

/// Programs that make EROFS images: Debian's, and a newer one where there is one.
fn programs() -> Vec<String> {
    let newer = std::env::var("MICABOX_MKFS_EROFS").ok();
    [Some("mkfs.erofs".to_owned()), newer]
        .into_iter()
        .flatten()
        .collect()
}

#[test]
fn files_that_are_compressed_within_an_image_are_inflated() {
    let plain = tempfile::tempdir().unwrap();
    compressible_tree(plain.path());
    let options: [&[&str]; 12] = [
        &["-zlz4"],
        &["-zlz4hc", "-C65536"],
        &["-zlz4", "-Elegacy-compress"],
        &["-zlz4", "-C65536", "-Elegacy-compress"],
        &["-zlz4", "-Eztailpacking"],
        &["-zlz4", "-C16384", "-Efragments"],
        &["-zlz4", "-Eall-fragments"],
        &["-zlz4", "-Ededupe"],
        &["-zlz4", "-C65536", "-Ededupe,fragments,ztailpacking"],
        &["-zdeflate", "-C65536", "-Efragments"],
        &["-zzstd", "-C65536", "-Eztailpacking"],
        &["-zzstd", "-C131072", "-Ededupe,all-fragments"],
    ];
    let mut made = 0;
    for program in programs() {
        for options in options {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("image");
            let mut mkfs = Command::new(&program);
            mkfs.arg("--quiet")
                .args(options)
                .arg(&path)
                .arg(plain.path());
            // Not each version knows all of them.
            if !mkfs.output().unwrap().status.success() {
                continue;
            }
            made += 1;
            let image = fs::read(&path).unwrap();
            let store = store();
            let expect = native(&image, &image, PLAIN);
            let layer = convert_layer(&store, &image[..], &expect, &Limits::default());
            let layer = layer.unwrap_or_else(|error| panic!("{program} {options:?}: {error}"));
            check_structure(&layer.path);
            let layer = OpenLayer::new(store, layer);
            for entry in fs::read_dir(plain.path()).unwrap() {
                let entry = entry.unwrap();
                let name = entry.file_name().into_string().unwrap();
                if entry.file_type().unwrap().is_file() {
                    let is = layer.read(&name);
                    let should = fs::read(entry.path()).unwrap();
                    assert!(is == should, "{program} {options:?}: {name}");
                }
            }
            assert_eq!(
                layer.read("a/b/large"),
                "0123456789".repeat(10_000).into_bytes()
            );
        }
    }
    assert!(made >= 6, "only {made} images");
}

#[test]
fn damaged_compressed_images_are_refused_or_read_to_their_end() {
    // Each byte of metadata and of data may be another one.
    let image = mkfs(some_tree, &["-zlz4", "-C65536", "-Ededupe,fragments"]);
    let mut state = 7u64;
    for _ in 0..400 {
        let mut damaged = image.clone();
        for _ in 0..3 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let at = 1152 + (state >> 33) as usize % (damaged.len() - 1152);
            damaged[at] = (state >> 20) as u8;
        }
        // No checksum is claimed.
        damaged[1032] &= !1;
        let store = store();
        let expect = native(&damaged, &damaged, PLAIN);
        let _ = convert_layer(&store, &damaged[..], &expect, &Limits::default());
    }
}

/// Makes an image of a file with an attribute, and returns it with the position of the attribute's entry.
fn attributed() -> (Vec<u8>, usize) {
    let tree = |root: &Path| {
        fs::write(root.join("file"), "contents").unwrap();
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(root.join("file"), "user.suffix", b"value", flags).unwrap();
    };
    let mut image = mkfs(tree, &[]);
    // No checksum is claimed.
    image[1032] &= !1;
    let name = image.windows(6).position(|bytes| bytes == b"suffix");
    (image, name.unwrap() - 4)
}

/// Returns the attributes of the file, or why the image is refused.
fn attributes_of(image: &[u8]) -> Result<Vec<Xattr>, String> {
    let store = store();
    let expect = native(image, image, PLAIN);
    let layer = convert_layer(&store, image, &expect, &Limits::default());
    let layer = OpenLayer::new(store, layer.map_err(|error| error.to_string())?);
    Ok(layer.reader.xattrs(&layer.inode("file")).unwrap())
}

#[test]
fn prefixes_of_attributes_that_the_image_has_itself_are_part_of_the_names() {
    let (mut image, entry) = attributed();
    let expected = |name: &str| Ok(vec![Xattr::new(name.as_bytes(), *b"value")]);
    assert_eq!(attributes_of(&image), expected("user.suffix"));
    // The second one of two, after the image's other blocks.
    let blocks = (image.len() / 4096) as u32;
    image.extend(b"\x01\0\x04\0\x0a\0\x01in.the.mi");
    image.resize((blocks as usize + 1) * 4096, 0);
    image[1060..1064].copy_from_slice(&(blocks + 1).to_le_bytes());
    image[1104] |= 0x40;
    image[1115] = 2;
    image[1116..1120].copy_from_slice(&(blocks * 1024).to_le_bytes());
    image[entry + 1] = 0x81;
    assert_eq!(attributes_of(&image), expected("user.in.the.misuffix"));
    // Those of no namespace have no names.
    let mut nameless = image.clone();
    nameless[blocks as usize * 4096 + 6] = 0;
    assert_eq!(attributes_of(&nameless), Ok(Vec::new()));
    // One that is not there, of an unknown namespace, or outside.
    for (at, byte) in [
        (entry + 1, 0x82),
        (blocks as usize * 4096 + 6, 9),
        (1118, 0xff),
    ] {
        let mut wrong = image.clone();
        wrong[at] = byte;
        let error = attributes_of(&wrong).unwrap_err();
        assert!(error.contains("attribute"), "{at}: {error}");
    }
}

#[test]
fn zeros_after_the_attributes_are_none() {
    let (mut image, entry) = attributed();
    image[entry..entry + 16].fill(0);
    assert_eq!(attributes_of(&image), Ok(Vec::new()));
    // Nothing comes after zeros.
    image[entry + 12] = 1;
    let error = attributes_of(&image).unwrap_err();
    assert!(
        error.contains("an extended attribute is invalid"),
        "{error}"
    );
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
    let mut damaged = image.clone();
    damaged[1024] ^= 1;
    // Contents from elsewhere, as no conversion of ours has them.
    let redirect = vec![Xattr::new(overlay::REDIRECT, *b"/b")];
    let redirected = image_of("a", Kind::EMPTY_FILE, redirect);
    let cases = [
        (&damaged[..], "EROFS"),
        (b"no image at all", "EROFS"),
        (&redirected, "trusted.overlay."),
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
