//! EROFS images that are taken over as layers, byte for byte, since merged metadata points into them.

use std::io::Cursor;

use micabox_erofs::{Kind, Metadata, Options, Timestamp, Writer, Xattr, overlay};
use micabox_image::convert::{Expect, Reason, check_kind, convert_layer};
use micabox_image::{Digest, Limits, fuzzing, identity};

use crate::layer::archive::Archive;
use crate::layer::{assert_no_trace, convert, expect_typed, store};

const EROFS: &str = "application/vnd.erofs+zstd";

fn metadata(xattrs: Vec<Xattr>) -> Metadata {
    Metadata {
        mode: 0o755,
        uid: 0,
        gid: 0,
        mtime: Timestamp::EPOCH,
        xattrs,
    }
}

/// An image with one entry.
pub fn image(name: &str, kind: Kind, xattrs: Vec<Xattr>) -> Vec<u8> {
    let options = Options {
        uuid: [1; 16],
        root: metadata(Vec::new()),
    };
    let mut writer = Writer::new(Cursor::new(Vec::new()), options).unwrap();
    let entry = writer.tree().add(metadata(xattrs), kind);
    let root = writer.tree().root();
    writer.tree().link(root, name.as_bytes(), entry).unwrap();
    writer.finish().unwrap().0.into_inner()
}

fn taken(image: &[u8]) -> Result<Vec<u8>, String> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let out = file.reopen().unwrap();
    fuzzing::device(image, &Limits::default(), out)?;
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(file.as_file_mut(), &mut bytes).unwrap();
    Ok(bytes)
}

#[test]
fn an_image_has_only_what_a_conversion_writes() {
    let y = |name: &[u8]| vec![Xattr::new(name, *b"y")];
    let link = |to: &str| {
        let metacopy = Xattr::new(overlay::METACOPY, *b"");
        vec![metacopy, Xattr::new(overlay::REDIRECT, to.as_bytes())]
    };
    let file = || Kind::EMPTY_FILE;
    let good = [
        image("a", file(), vec![Xattr::new(*b"user.a", *b"b")]),
        image("a", file(), link("/a/b..c/.d")),
        image("a", Kind::directory(), y(overlay::OPAQUE)),
        image("a", Kind::directory(), y(overlay::IMPLIED)),
        image(
            "a",
            Kind::directory(),
            vec![Xattr::new(overlay::ORIGIN, *b"")],
        ),
        image("a", Kind::CharDevice(0), Vec::new()),
    ];
    for (number, image) in good.iter().enumerate() {
        assert!(taken(image).unwrap() == *image, "{number}");
        // What follows an image is not part of it.
        let more = [&image[..], b"more"].concat();
        assert!(taken(&more).unwrap() == *image, "{number}");
        let less = &image[..image.len() - 1];
        assert!(taken(less).unwrap_err().contains("shorter"), "{number}");
    }
    let bad = [
        image("a", file(), y(b"trusted.overlay.foo")),
        image("a", file(), y(overlay::OPAQUE)),
        image("a", file(), y(overlay::IMPLIED)),
        image("a", file(), y(overlay::METACOPY)),
        image("a", file(), vec![Xattr::new(overlay::REDIRECT, *b"/b")]),
        image("a", file(), vec![Xattr::new(overlay::METACOPY, *b"")]),
        image("a", file(), link("b")),
        image("a", file(), link("/../b")),
        image("a", file(), link("/b//c")),
        image("a", file(), link("/b/.")),
        image("a", file(), y(overlay::XWHITEOUT)),
        image(
            "a",
            Kind::directory(),
            vec![Xattr::new(overlay::OPAQUE, *b"x")],
        ),
        image("a", Kind::directory(), y(overlay::ORIGIN)),
        image("a", Kind::directory(), link("/b")),
        image(".wh.a", file(), Vec::new()),
        image(".wh..wh..opq", file(), Vec::new()),
    ];
    for (number, image) in bad.iter().enumerate() {
        let problem = taken(image).unwrap_err();
        let is_named = problem.contains("is of no layer") || problem.contains("of a whiteout");
        assert!(is_named, "{number}: {problem}");
    }
}

#[test]
fn a_layer_that_was_taken_over_is_that_of_its_archive_alone() {
    let archive = Archive::new().file("file", b"contents").finish();
    let origin = store();
    let converted = convert(&origin, &archive).unwrap();
    let mut image = std::fs::read(&converted.path).unwrap();
    image.truncate(converted.image_size() as usize);
    let device = |archive: &[u8]| Expect {
        archive: Some(Digest::of(archive)),
        checksum: None,
        ..expect_typed(&image, &image, EROFS)
    };
    let limits = Limits::default();

    let refused = store();
    let error = convert_layer(&refused, &image[..], &device(b"another"), &limits).unwrap_err();
    assert!(
        error.to_string().contains("its UUID is not that"),
        "{error}"
    );
    assert_no_trace(&refused);

    let store = store();
    let taken = convert_layer(&store, &image[..], &device(&archive), &limits).unwrap();
    assert_eq!(taken.record.archive, Some(Digest::of(&archive)));
    assert_eq!(taken.record.checksum, converted.record.checksum);
    assert_eq!(*taken.identity(), Digest::of(&archive));
    let uuid = identity::layer_uuid(&Digest::of(&archive));
    assert!(image.windows(16).any(|bytes| bytes == uuid));
    // The store has it under the digest of its own bytes, for this archive, and for nothing else.
    assert_eq!(taken.diff_id, Digest::of(&image));
    assert_eq!(store.layer(&Digest::of(&archive)).unwrap(), None);
    check_kind(&taken, &device(&archive)).unwrap();
    let error = convert_layer(&store, &image[..], &device(b"another"), &limits).unwrap_err();
    assert!(matches!(error.reason, Reason::Kind { .. }), "{error}");
    // It is as good as a copy of its tree, as in a stack of layers; a copy is no device.
    let stacked = expect_typed(&image, &image, EROFS);
    let same = convert_layer(&store, &image[..], &stacked, &limits).unwrap();
    assert_eq!(same, taken);
    let copies = crate::layer::store();
    convert_layer(&copies, &image[..], &stacked, &limits).unwrap();
    let error = convert_layer(&copies, &image[..], &device(&archive), &limits).unwrap_err();
    assert!(matches!(error.reason, Reason::Kind { .. }), "{error}");
}
