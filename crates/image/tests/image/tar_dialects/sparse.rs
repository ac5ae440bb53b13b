//! Sparse files, in the four dialects that there are for them.

use std::os::unix::fs::MetadataExt;

use crate::layer::archive::{Archive, BLOCK};
use crate::layer::{layer, refusal};

/// Returns the file that all sparse dialects below describe: data at 1 MiB and at its end.
fn sparse_contents() -> (Vec<u8>, Vec<u8>) {
    let data: Vec<u8> = (0..5000u32).map(|i| (i % 255 + 1) as u8).collect();
    let mut whole = vec![0; (2 << 20) + 1000];
    whole[1 << 20..(1 << 20) + 4000].copy_from_slice(&data[..4000]);
    whole[2 << 20..].copy_from_slice(&data[4000..]);
    (whole, data)
}

#[test]
fn sparse_files_are_read_in_all_four_dialects() {
    let (whole, data) = sparse_contents();
    let size = whole.len().to_string();
    let octal = |number: usize| format!("{number:011o}\0");

    let old_gnu = Archive::new()
        .header(257, "ustar  \0")
        .header(
            386,
            octal(1 << 20) + &octal(4000) + &octal(2 << 20) + &octal(1000),
        )
        .header(482, "\0")
        .header(483, octal(whole.len()))
        .member(b'S', b"sparse", b"", 0o644, &data);
    let pax_0_0 = Archive::new()
        .pax(&[
            ("GNU.sparse.size", size.as_bytes()),
            ("GNU.sparse.numblocks", b"2"),
            ("GNU.sparse.offset", b"1048576"),
            ("GNU.sparse.numbytes", b"4000"),
            ("GNU.sparse.offset", b"2097152"),
            ("GNU.sparse.numbytes", b"1000"),
        ])
        .file("sparse", &data);
    let pax_0_1 = Archive::new()
        .pax(&[
            ("GNU.sparse.size", size.as_bytes()),
            ("GNU.sparse.numblocks", b"2"),
            ("GNU.sparse.map", b"1048576,4000,2097152,1000"),
            ("GNU.sparse.name", b"sparse"),
        ])
        .file("GNUSparseFile.1/sparse", &data);
    let mut with_map = b"2\n1048576\n4000\n2097152\n1000\n".to_vec();
    with_map.resize(BLOCK, 0);
    with_map.extend(&data);
    let pax_1_0 = Archive::new()
        .pax(&[
            ("GNU.sparse.major", b"1"),
            ("GNU.sparse.minor", b"0"),
            ("GNU.sparse.name", b"sparse"),
            ("GNU.sparse.realsize", size.as_bytes()),
        ])
        .file("GNUSparseFile.1/sparse", &with_map);

    for (dialect, archive) in [
        ("old GNU", old_gnu),
        ("0.0", pax_0_0),
        ("0.1", pax_0_1),
        ("1.0", pax_1_0),
    ] {
        let layer = layer(&archive.file("next", "x").finish());
        assert_eq!(layer.paths(), ["d/", "f/next", "f/sparse"], "{dialect}");
        assert!(layer.read("sparse") == whole, "{dialect}");
        // Holes stay holes: this is a file of 2 MiB in an image of a few blocks.
        assert!(layer.layer.record.blocks < 20, "{dialect}");
    }
}

#[test]
fn an_old_sparse_map_continues_in_further_blocks() {
    let octal = |number: usize| format!("{number:011o}\0");
    let extents: Vec<_> = (0..30).map(|i| (i * 10_000, 100)).collect();
    let text = |extents: &[(usize, usize)]| {
        extents
            .iter()
            .map(|&(at, length)| octal(at) + &octal(length))
            .collect::<String>()
    };
    let mut blocks = Vec::new();
    for (index, chunk) in extents[4..].chunks(21).enumerate() {
        let mut block = text(chunk).into_bytes();
        block.resize(504, 0);
        block.push(u8::from(index == 0));
        block.resize(BLOCK, 0);
        blocks.extend(block);
    }
    let data: Vec<u8> = (0..3000u32).map(|i| (i % 250 + 1) as u8).collect();
    let header = Archive::new()
        .header(257, "ustar  \0")
        .header(386, text(&extents[..4]))
        .header(482, "\x01")
        .header(483, octal(300_000))
        .header(124, octal(data.len()))
        .member(b'S', b"sparse", b"", 0o644, b"");
    let layer = layer(
        &header
            .blocks(&blocks)
            .blocks(&data)
            .file("next", "")
            .finish(),
    );
    let contents = layer.read("sparse");
    for (index, (at, length)) in extents.into_iter().enumerate() {
        assert_eq!(contents[at..at + length], data[index * 100..][..100]);
    }
    assert_eq!(contents.len(), 300_000);
    assert!(layer.find("next").is_some());
}

#[test]
fn a_sparse_file_may_be_a_hole_alone_and_very_large() {
    let archive = Archive::new()
        .pax(&[
            ("GNU.sparse.size", b"9000000000000"),
            ("GNU.sparse.map", b"9000000000000,0"),
        ])
        .file("hole", "")
        .pax(&[
            ("GNU.sparse.size", b"9000000000000"),
            ("GNU.sparse.map", b"0,1,8999999999999,1,9000000000000,0"),
        ])
        .file("ends", "ab");
    let layer = layer(&archive.finish());
    for path in ["hole", "ends"] {
        assert_eq!(layer.inode(path).size, 9_000_000_000_000);
    }
    let mut byte = [0];
    let inode = layer.inode("ends");
    layer
        .reader
        .read(&inode, 8_999_999_999_999, &mut byte)
        .unwrap();
    assert_eq!(&byte, b"b");
    // Terabytes in the file, gigabytes in the image, kilobytes on the disk.
    let blocks = std::fs::metadata(&layer.layer.path).unwrap().blocks();
    assert!(blocks * 512 < 1 << 20, "{blocks}");
}

#[test]
fn invalid_sparse_maps_are_refused() {
    let with_map = |map: &str, data: &str| {
        Archive::new()
            .pax(&[
                ("GNU.sparse.size", b"100"),
                ("GNU.sparse.map", map.as_bytes()),
            ])
            .file("f", data)
            .finish()
    };
    for archive in [
        with_map("0,4", "12345"),
        with_map("0,6", "12345"),
        with_map("5,3,0,2", "12345"),
        with_map("98,5", "12345"),
        with_map("18446744073709551615,5", "12345"),
        with_map("0,x", "12345"),
        with_map("0", "12345"),
    ] {
        let message = refusal(&archive);
        assert!(
            message.contains("sparse file") && message.contains("`f`"),
            "{message}"
        );
    }
}
