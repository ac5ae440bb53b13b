//! Checks the reader on images made by `mkfs.erofs`.

use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use micabox_erofs::{Error, Reader, check};

use crate::support::snapshot::{self, Ignore, Snapshot, assert_same};

/// Creates a tree, as far as an unprivileged user can.
fn make_tree(root: &Path) {
    let write = |name: &str, bytes: &[u8]| std::fs::write(root.join(name), bytes).unwrap();
    write("empty", b"");
    write("small", b"packed into its inode");
    write("block", &[1; 4096]);
    write("block and tail", &[2; 5000]);
    write(
        "large",
        &(0..1_000_000u32)
            .map(|i| (i % 251) as u8)
            .collect::<Vec<_>>(),
    );
    write("+page.svelte", b"+");
    // mkfs.erofs 1.5 rejects 255 bytes.
    write(&"n".repeat(254), b"long name");
    std::fs::hard_link(root.join("small"), root.join("small too")).unwrap();
    symlink("small", root.join("link")).unwrap();
    symlink("x".repeat(4000), root.join("long link")).unwrap();
    let sparse = std::fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(3 << 20).unwrap();
    sparse.write_all_at(b"data", 1 << 20).unwrap();
    std::fs::create_dir_all(root.join("dir/sub")).unwrap();
    std::fs::set_permissions(root.join("dir/sub"), PermissionsExt::from_mode(0o1700)).unwrap();
    std::fs::create_dir(root.join("many")).unwrap();
    for i in 0..2000 {
        write(&format!("many/{i}-{}", "m".repeat(i % 100)), b"");
    }
    for name in ["small", "block", "dir", "empty"] {
        let set = |key: &str, value: &[u8]| {
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(root.join(name), key, value, flags).unwrap();
        };
        set("user.shared by all", b"the same value in every inode");
        set("user.own", name.as_bytes());
        set("user.big", &vec![b'b'; 2000]);
    }
}

fn mkfs(image: &Path, root: &Path, options: &[&str]) {
    let output = Command::new("mkfs.erofs")
        .arg("--quiet")
        .args(options)
        .arg(image)
        .arg(root)
        .output()
        .expect("mkfs.erofs runs (Debian package erofs-utils)");
    assert!(
        output.status.success(),
        "mkfs.erofs {options:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Returns the input of mkfs, and the tree that the reader must return for it.
fn tree() -> (tempfile::TempDir, Snapshot) {
    let root = tempfile::tempdir().unwrap();
    make_tree(root.path());
    let snapshot = snapshot::of_directory(root.path());
    (root, snapshot)
}

#[test]
fn uncompressed_images_are_read() {
    let (root, expected) = tree();
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    let variants: [&[&str]; 7] = [
        &[],
        &["-x1"],
        &["-x0"],
        &["-Eforce-inode-extended"],
        &["-Enoinline_data"],
        &["--chunksize=4096"],
        &["--chunksize=65536", "-Eforce-chunk-indexes"],
    ];
    for options in variants {
        mkfs(&image, root.path(), options);
        let bytes = std::fs::read(&image).unwrap();
        let reader = Reader::open(&bytes).unwrap();
        let read = snapshot::of_image(&reader);
        assert_same(&format!("{options:?}"), &read, &expected, Ignore::default());
        assert_eq!(check::check(&bytes), [], "{options:?}");
    }
}

#[test]
fn lookups_find_every_name_and_no_other() {
    let (root, _) = tree();
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    mkfs(&image, root.path(), &[]);
    let reader = Reader::open(std::fs::File::open(&image).unwrap()).unwrap();
    let top = reader.inode(reader.root()).unwrap();
    let many = reader.lookup(&top, b"many").unwrap().unwrap();
    let many = reader.inode(many.nid).unwrap();
    let entries = reader.read_dir(&many).unwrap();
    assert_eq!(entries.len(), 2000);
    for entry in &entries {
        assert_eq!(
            reader.lookup(&many, &entry.name).unwrap().as_ref(),
            Some(entry)
        );
        let longer = [&entry.name, &b"\x01"[..]].concat();
        assert_eq!(reader.lookup(&many, &longer).unwrap(), None);
    }
    for absent in [&b""[..], b"\x01", b"\xff", b".", b".."] {
        assert_eq!(reader.lookup(&many, absent).unwrap(), None);
    }
}

#[test]
fn compressed_images_are_refused_by_name() {
    let (root, _) = tree();
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    for options in [
        &["-zlz4"][..],
        &["-zlz4", "-Eztailpacking"],
        &["-zlz4", "-Efragments"],
    ] {
        mkfs(&image, root.path(), options);
        let bytes = std::fs::read(&image).unwrap();
        let error = Reader::open(&bytes)
            .and_then(|reader| reader.walk(|_, _| Ok(())))
            .unwrap_err();
        assert!(
            matches!(error, Error::Compressed("lz4")),
            "{options:?}: {error}"
        );
    }
}

#[test]
fn packed_files_are_refused_as_layers() {
    use micabox_erofs::merge::{Layer, Merge};
    let (root, _) = tree();
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    mkfs(&image, root.path(), &[]);
    let bytes = std::fs::read(&image).unwrap();
    let layer = Layer {
        image: &bytes,
        tag: b"packed",
    };
    let error = Merge::of(&[layer], 1).unwrap_err();
    assert!(error.to_string().contains("packed into inodes"), "{error}");
    mkfs(&image, root.path(), &["-Enoinline_data"]);
    let bytes = std::fs::read(&image).unwrap();
    let layer = Layer {
        image: &bytes,
        tag: b"plain",
    };
    Merge::of(&[layer], 1).unwrap();
}
