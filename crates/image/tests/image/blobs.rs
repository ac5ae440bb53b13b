//! Blobs on their way to a layer: with every compression, every kind of damage, every false claim,
//! and over every limit.

use std::io::{self, Read};

use micabox_image::convert::{Error, Expect, Reason, convert_layer};
use micabox_image::store::Layer;
use micabox_image::{Digest, Limit, Limits};

use crate::layer::archive::Archive;
use crate::layer::{
    self, TestStore, assert_no_trace, check_structure, expect, expect_typed, gzip, store,
};

fn archive() -> Vec<u8> {
    let noise: Vec<u8> = (0..300_000u64)
        .map(|i| (i.wrapping_mul(i ^ 0x9e37) >> 5) as u8)
        .collect();
    let mut archive = Archive::new().directory("d/");
    for i in 0..13 {
        archive = archive.file(&format!("d/{i}"), &noise[i * 1000..]);
    }
    archive.finish()
}

fn zstd(data: &[u8]) -> Vec<u8> {
    zstd::encode_all(data, 1).unwrap()
}

fn convert_blob(store: &TestStore, blob: &[u8], expect: &Expect) -> Result<Layer, Error> {
    let layer = convert_layer(store, blob, expect, &Limits::default())?;
    layer::archive_of(store, &layer);
    Ok(layer)
}

/// Returns the reason for which a blob is refused, after checking that nothing is left of it.
fn refusal(blob: impl Read + Send, expect: &Expect, limits: &Limits) -> Reason {
    let store = store();
    let error = convert_layer(&store, blob, expect, limits).unwrap_err();
    assert_no_trace(&store);
    assert_eq!(
        error.layer,
        expect
            .blob
            .as_ref()
            .map_or(expect.diff_id, |blob| blob.digest)
    );
    assert!(error.to_string().contains(&error.layer.to_string()));
    error.reason
}

#[test]
fn every_compression_gives_the_same_layer() {
    let archive = archive();
    let store = store();
    let layer = convert_blob(&store, &archive, &expect(&archive, &archive)).unwrap();
    check_structure(&layer.path);
    let image = std::fs::read(&layer.path).unwrap();
    for blob in [gzip(&archive), zstd(&archive)] {
        let store = self::store();
        let layer = convert_blob(&store, &blob, &expect(&blob, &archive)).unwrap();
        assert_eq!(layer.record.uncompressed_size, archive.len() as u64);
        assert!(std::fs::read(&layer.path).unwrap() == image);
        assert_eq!(
            store.diff_id_of_blob(&Digest::of(&blob)).unwrap(),
            Some(layer.diff_id)
        );
    }
}

#[test]
fn gzip_of_many_members_is_read_to_its_end() {
    let archive = archive();
    let members: Vec<_> = archive.chunks(70_000).map(gzip).collect();
    let empty = gzip(b"");
    let blob = [&members.concat()[..], &empty, &empty].concat();
    let store = store();
    let layer = convert_blob(&store, &blob, &expect(&blob, &archive)).unwrap();
    assert_eq!(layer.record.entries, 14);
}

#[test]
fn zstd_of_many_frames_and_skippable_ones_is_read_to_its_end() {
    let archive = archive();
    let skippable = b"\x50\x2a\x4d\x18\x05\0\0\0hello";
    let mut blob = skippable.to_vec();
    for chunk in archive.chunks(70_000) {
        blob.extend(zstd(chunk));
        blob.extend(skippable);
    }
    let store = store();
    let layer = convert_blob(&store, &blob, &expect(&blob, &archive)).unwrap();
    assert_eq!(layer.record.entries, 14);
}

#[test]
fn both_digests_of_a_layer_are_checked() {
    let archive = archive();
    let other = Digest::of(b"something else");
    for blob in [archive.clone(), gzip(&archive), zstd(&archive)] {
        let honest = expect(&blob, &archive);
        let limits = Limits::default();
        let mut lie = honest.clone();
        if let Some(blob) = &mut lie.blob {
            blob.digest = other;
        }
        let reason = refusal(&blob[..], &lie, &limits);
        assert!(
            matches!(reason, Reason::BlobDigest { actual } if actual == Digest::of(&blob)),
            "{reason}"
        );
        let lie = Expect {
            diff_id: other,
            ..honest
        };
        let reason = refusal(&blob[..], &lie, &limits);
        let actual_id = Digest::of(&archive);
        // Without compression the two digests are the same.
        match reason {
            Reason::DiffId { expected, actual } => {
                assert_eq!((expected, actual), (other, actual_id))
            }
            reason => panic!("{reason}"),
        }
    }
}

#[test]
fn a_blob_shorter_than_declared_is_a_broken_transfer() {
    let archive = archive();
    for blob in [archive.clone(), gzip(&archive), zstd(&archive)] {
        let honest = expect(&blob, &archive);
        for end in [0, 3, blob.len() / 2, blob.len() - 1] {
            let reason = refusal(&blob[..end], &honest, &Limits::default());
            assert!(
                matches!(reason, Reason::TooShort { got, .. } if got == end as u64),
                "{end}: {reason}"
            );
        }
    }
}

#[test]
fn a_blob_longer_than_declared_is_left_at_once() {
    /// An endless source that counts how far it was read.
    struct Endless(u64);
    impl Read for Endless {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            assert!(self.0 < 10 << 20, "still reading");
            buffer.fill(b'x');
            self.0 += buffer.len() as u64;
            Ok(buffer.len())
        }
    }
    let archive = archive();
    for blob in [archive.clone(), gzip(&archive), zstd(&archive)] {
        let honest = expect(&blob, &archive);
        let source = blob.chain(Endless(0));
        let reason = refusal(source, &honest, &Limits::default());
        assert!(matches!(reason, Reason::TooLong { .. }), "{reason}");
    }
}

#[test]
fn damage_in_transfer_is_told_from_damage_at_the_origin() {
    let archive = archive();
    for blob in [archive.clone(), gzip(&archive), zstd(&archive)] {
        let mut damaged = blob.clone();
        for at in [600, blob.len() / 2, blob.len() - 5] {
            damaged[at] ^= 0x10;
            // Damaged in transfer: the digest isn't the manifest's.
            let reason = refusal(&damaged[..], &expect(&blob, &archive), &Limits::default());
            assert!(
                matches!(reason, Reason::BlobDigest { .. }),
                "{at}: {reason}"
            );
            // Damaged at the origin: the digest is right, but the layer is invalid.
            let reason = refusal(
                &damaged[..],
                &expect(&damaged, &archive),
                &Limits::default(),
            );
            assert!(
                matches!(reason, Reason::Compressed(_) | Reason::DiffId { .. }),
                "{at}: {reason}"
            );
            damaged[at] ^= 0x10;
        }
    }
}

#[test]
fn compressed_data_that_ends_early_is_damage_at_the_origin() {
    let archive = archive();
    for blob in [gzip(&archive), zstd(&archive)] {
        let cut = &blob[..blob.len() - 1];
        let reason = refusal(cut, &expect(cut, &archive), &Limits::default());
        assert!(matches!(&reason, Reason::Compressed(text) if text.contains("ends in the middle")));
    }
}

#[test]
fn an_archive_that_is_cut_and_right_by_its_digests_is_refused() {
    let archive = archive();
    let cut = &archive[..archive.len() / 2];
    for blob in [cut.to_vec(), gzip(cut)] {
        let reason = refusal(&blob[..], &expect(&blob, cut), &Limits::default());
        assert!(reason.to_string().contains("`d/"), "{reason}");
    }
}

#[test]
fn a_source_that_fails_is_named_as_the_cause() {
    struct Failing;
    impl Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::new(io::ErrorKind::ConnectionReset, "gone"))
        }
    }
    let archive = archive();
    for blob in [archive.clone(), gzip(&archive), zstd(&archive)] {
        let honest = expect(&blob, &archive);
        let half = io::Cursor::new(&blob[..blob.len() / 2]).chain(Failing);
        let store = store();
        let error = convert_layer(&store, half, &honest, &Limits::default()).unwrap_err();
        assert!(error.is_transfer());
        assert!(error.to_string().contains("gone"), "{error}");
        assert_no_trace(&store);
        // The next attempt succeeds.
        convert_blob(&store, &blob, &honest).unwrap();
    }
}

#[test]
fn decompression_bombs_are_refused() {
    let zeros = Archive::new().file("zeros", vec![0; 64 << 20]).finish();
    for blob in [gzip(&zeros), zstd(&zeros)] {
        let honest = expect(&blob, &zeros);
        let size = Limits {
            layer_size: 8 << 20,
            ..Limits::default()
        };
        let ratio = Limits {
            compression_ratio: 100,
            compression_ratio_from: 8 << 20,
            ..Limits::default()
        };
        for (limits, name) in [(size, "layer-size"), (ratio, "compression-ratio")] {
            let reason = refusal(&blob[..], &honest, &limits);
            assert!(
                matches!(reason, Reason::Limit { setting, .. } if setting.to_string() == name),
                "{name}: {reason}"
            );
        }
        // By the defaults this is not a bomb, only a file of zeros that costs nothing.
        let store = store();
        let layer = convert_blob(&store, &blob, &honest).unwrap();
        use std::os::unix::fs::MetadataExt;
        assert!(std::fs::metadata(&layer.path).unwrap().blocks() * 512 < 1 << 20);
    }
}

#[test]
fn every_limit_names_its_setting_and_the_entry() {
    let limits = |change: fn(&mut Limits)| {
        let mut limits = Limits::default();
        change(&mut limits);
        limits
    };
    let deep = Archive::new().file("a/b/c/d/e", "");
    let xattrs = Archive::new()
        .pax(&[("SCHILY.xattr.user.big", &[b'x'; 4000])])
        .file("f", "");
    let sparse = Archive::new()
        .pax(&[
            ("GNU.sparse.size", b"9"),
            ("GNU.sparse.map", b"0,1,2,1,4,1"),
        ])
        .file("s", "abc");
    let cases = [
        (
            deep.clone(),
            limits(|l| l.path_depth = 4),
            "path-depth",
            "a/b/c/d/e",
        ),
        (
            deep.clone(),
            limits(|l| l.entries = 3),
            "entries",
            "a/b/c/d/e",
        ),
        (
            deep.clone(),
            limits(|l| l.path_length = 8),
            "path-length",
            "a/b/c/d/e",
        ),
        (
            deep.hard_link("h", "x/y/z/0/1/2"),
            limits(|l| l.path_depth = 5),
            "path-depth",
            "h",
        ),
        (
            xattrs.clone(),
            limits(|l| l.xattr_size = 4000),
            "xattr-size",
            "f",
        ),
        (
            sparse,
            limits(|l| l.sparse_segments = 2),
            "sparse-segments",
            "s",
        ),
    ];
    for (archive, limits, name, path) in cases {
        let archive = archive.finish();
        match refusal(&archive[..], &expect(&archive, &archive), &limits) {
            Reason::Limit { setting, entry, .. } => {
                assert_eq!(setting.to_string(), name);
                assert_eq!(entry.as_deref(), Some(path));
            }
            reason => panic!("{name}: {reason}"),
        }
    }
    let archive = xattrs.finish();
    let header = limits(|l| l.header_size = 4000);
    let reason = refusal(&archive[..], &expect(&archive, &archive), &header);
    assert!(
        matches!(
            reason,
            Reason::Limit {
                setting: Limit::HeaderSize,
                ..
            }
        ),
        "{reason}"
    );
}

#[test]
fn headers_with_false_sizes_allocate_nothing() {
    // A name of 4 GiB, and a file of 8 EiB.
    let name = Archive::new()
        .header(124, "37777777777\0")
        .member(b'L', b"x", b"", 0, b"");
    let reason = refusal(
        &name.clone().finish()[..],
        &expect(&name.clone().finish(), &name.finish()),
        &Limits::default(),
    );
    assert!(
        matches!(
            reason,
            Reason::Limit {
                setting: Limit::HeaderSize,
                ..
            }
        ),
        "{reason}"
    );
    let file = Archive::new()
        .pax(&[("size", b"9223372036854775807")])
        .file("f", "")
        .finish();
    let reason = refusal(&file[..], &expect(&file, &file), &Limits::default());
    assert!(reason.to_string().contains("`f`"), "{reason}");
}

#[test]
fn the_data_decides_on_the_compression_and_the_media_type_on_the_kind() {
    let archive = archive();
    let blob = gzip(&archive);
    let with_type = |media_type: &str| expect_typed(&blob, &archive, media_type);
    for media_type in [
        "application/vnd.oci.image.layer.v1.tar+zstd",
        "application/vnd.oci.image.layer.v1.tar",
        "application/vnd.docker.image.rootfs.diff.tar.gzip",
    ] {
        let store = store();
        convert_blob(&store, &blob, &with_type(media_type)).unwrap();
    }
    for (media_type, problem) in [
        (
            "application/vnd.oci.image.layer.v1.tar+gzip+encrypted",
            "encrypted",
        ),
        (
            "application/vnd.wasm.content.layer.v1+wasm",
            "not a layer of an image",
        ),
        (
            "application/vnd.oci.image.layer.v1.tarball",
            "not a layer of an image",
        ),
        (
            "application/vnd.oci.image.config.v1+json",
            "not a layer of an image",
        ),
    ] {
        let reason = refusal(&blob[..], &with_type(media_type), &Limits::default());
        let message = reason.to_string();
        assert!(
            message.contains(media_type) && message.contains(problem),
            "{message}"
        );
    }
}

#[test]
fn compressions_that_layers_never_have_are_named() {
    for (head, name) in [
        (&b"\xfd7zXZ\0\0\0"[..], "xz"),
        (b"BZh91AY&SY", "bzip2"),
        (b"\x04\x22\x4d\x18\0\0\0", "lz4"),
    ] {
        let reason = refusal(head, &expect(head, head), &Limits::default());
        assert!(matches!(reason, Reason::Compression(found) if found.to_string() == name));
    }
}

#[test]
fn a_layer_in_the_store_is_not_converted_again() {
    struct Untouchable;
    impl Read for Untouchable {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            panic!("read although the layer is there")
        }
    }
    let archive = archive();
    let store = store();
    let first = convert_blob(&store, &archive, &expect(&archive, &archive)).unwrap();
    let honest = expect(&archive, &archive);
    let again = convert_layer(&store, Untouchable, &honest, &Limits::default()).unwrap();
    assert_eq!(first, again);
}
