//! Layers that are EROFS images already.

mod layer;

use std::fs;
use std::path::Path;
use std::process::Command;

use layer::archive::Archive;
use layer::tree::run;
use layer::{OpenLayer, assert_no_trace, check_structure, expect, store};
use micabox_image::Limits;
use micabox_image::convert::{Expect, Reason, convert_layer};

/// An image as `mkfs.erofs` makes it of a tree.
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
    Expect {
        media_type: Some(media_type.to_owned()),
        ..expect(blob, image)
    }
}

const PLAIN: &str = "application/vnd.erofs.layer.v1";

#[test]
fn an_image_of_mkfs_becomes_one_of_ours() {
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
        // Nothing is packed into inodes any more: every byte can be mapped.
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
    // One of our own images is a layer too, with all that an archive may say.
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
    // There never was an archive of it.
    let error = store.archive(&layer).unwrap_err().to_string();
    assert!(error.contains("came as an EROFS image"), "{error}");
    let layer = OpenLayer::new(store, layer);
    assert_eq!(layer.paths(), original.paths());
    assert!(layer.is_whiteout("d/gone") && layer.is_opaque("o"));
    assert_eq!(layer.read("sparse"), original.read("sparse"));
    assert_eq!(layer.layer.record.blocks, original.layer.record.blocks);
}

#[test]
fn images_that_are_not_what_they_should_be_are_refused() {
    let image = mkfs(some_tree, &[]);
    let compressed = mkfs(some_tree, &["-zlz4"]);
    let mut damaged = image.clone();
    damaged[1024] ^= 1;
    // A link into a lower layer: the marker that only our own conversion may set.
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
            setting: "entries",
            ..
        }
    ));
    assert_no_trace(&store);
}
