//! Layers that consist of metadata: limits of the host's memory that they may take.

use micabox_image::convert::{Reason, convert_layer};
use micabox_image::{Limit, Limits};

use crate::layer::archive::Archive;
use crate::layer::{assert_no_trace, convert, expect, gzip, store};

const MIB: usize = 1 << 20;

/// Asserts that an archive is refused for its metadata, and names `entry`.
#[track_caller]
fn assert_too_much(archive: &[u8], entry: &str) {
    let limits = Limits {
        metadata_size: MIB as u64,
        ..Limits::default()
    };
    let store = store();
    let blob = gzip(archive);
    let error = convert_layer(&store, &blob[..], &expect(&blob, archive), &limits).unwrap_err();
    match &error.reason {
        Reason::Limit {
            setting: Limit::MetadataSize,
            limit: 0x10_0000,
            entry: Some(name),
        } => assert!(name.contains(entry), "{error}"),
        _ => panic!("{error}"),
    }
    assert_no_trace(&store);
}

#[test]
fn attributes_of_a_layer_are_limited() {
    let mut archive = Archive::new();
    for i in 0..20 {
        let value = format!("{i:08}{}", "A".repeat(60_000));
        archive = archive
            .pax(&[("SCHILY.xattr.user.a", value.as_bytes())])
            .file(&format!("f{i}"), "");
    }
    assert_too_much(&archive.finish(), "f8");
}

#[test]
fn entries_are_limited_by_their_memory() {
    let archive = (0..3000).fold(Archive::new(), |archive, i| {
        archive.file(&i.to_string(), "")
    });
    assert_too_much(&archive.finish(), "20");
}

#[test]
fn implied_directories_are_limited_by_their_memory() {
    let deep = "d/".repeat(1000);
    let archive = (0..3).fold(Archive::new(), |archive, i| {
        let path = format!("{i}/{deep}f");
        archive.pax(&[("path", path.as_bytes())]).file("x", "")
    });
    assert_too_much(&archive.finish(), "d/d");
}

#[test]
fn lists_of_sparse_segments_are_limited() {
    // Two bytes in a file of a terabyte: a kilobyte of archive makes a list of many thousand
    // pieces.
    let size = (1u64 << 40).to_string();
    let last = format!("0,1,{},1", (1u64 << 40) - 1);
    let archive = (0..40).fold(Archive::new(), |archive, i| {
        archive
            .pax(&[
                ("GNU.sparse.size", size.as_bytes()),
                ("GNU.sparse.map", last.as_bytes()),
            ])
            .file(&format!("sparse{i}"), "xy")
    });
    assert_too_much(&archive.finish(), "sparse");
}

#[test]
fn a_small_blob_takes_little_memory() {
    // A hundred megabytes of attributes in a few hundred kilobytes.
    let mut archive = Archive::new();
    for i in 0..1200 {
        let value = format!("{i:08}{}", "A".repeat(59_990));
        let value = value.as_bytes();
        archive = archive
            .pax(&[
                ("SCHILY.xattr.user.a", value),
                ("SCHILY.xattr.user.b", value),
            ])
            .file(&format!("f{i}"), "");
    }
    let archive = archive.finish();
    let (store, blob) = (store(), gzip(&archive));
    let limits = Limits::default();
    let error = convert_layer(&store, &blob[..], &expect(&blob, &archive), &limits).unwrap_err();
    let is_named = matches!(
        error.reason,
        Reason::Limit {
            setting: Limit::MetadataRatio,
            limit: 128,
            ..
        }
    );
    assert!(is_named, "{error}");
    // The same attributes in a blob of their size are those of a layer like any other.
    convert_layer(&store, &archive[..], &expect(&archive, &archive), &limits).unwrap();
}

#[test]
fn layers_that_are_converted_at_once_share_the_memory_for_them() {
    let limits = Limits {
        metadata_size: 900,
        ..Limits::default()
    };
    assert_eq!(limits.shared_by(3).metadata_size, 300);
    assert_eq!(limits.shared_by(0), limits);
}

#[test]
fn ordinary_layers_are_far_below_the_default_limit() {
    let archive = (0..20_000).fold(Archive::new(), |archive, i| {
        let name = format!("usr/lib/python3/dist-packages/module{}/file{i}.py", i / 20);
        archive.file(&name, "")
    });
    let limits = Limits::default();
    assert!(limits.metadata_size >= 80 * (20_000 * 600));
    convert(&store(), &archive.finish()).unwrap();
}
