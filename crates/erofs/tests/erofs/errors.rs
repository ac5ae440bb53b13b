//! Checks that what can't be stored or merged is rejected with an error that names it.

use std::io::{self, Cursor, Read, Write};

use micabox_erofs::merge::{Layer, Merge};
use micabox_erofs::{
    Error, InodeId, Kind, Metadata, Options, Reader, Segment, Tree, Writer, Xattr, overlay,
};

use crate::support;
use crate::support::spec::{self, Entry, directory, file, implied, link_to_lower, meta, symlink};

type MemoryWriter = Writer<Cursor<Vec<u8>>>;

fn writer() -> MemoryWriter {
    let options = Options {
        uuid: [0; 16],
        root: meta(0o755),
    };
    Writer::new(Cursor::new(Vec::new()), options).unwrap()
}

/// Returns the error message of finishing an image with one such inode at `/dir/it`.
fn refusal(meta: Metadata, kind: Kind) -> String {
    let mut writer = writer();
    let tree = writer.tree();
    let dir = tree.add(spec::meta(0o755), Kind::directory());
    tree.link(tree.root(), b"dir", dir).unwrap();
    let inode = tree.add(meta, kind);
    tree.link(dir, b"it", inode).unwrap();
    match writer.finish() {
        Err(error) => error.to_string(),
        Ok(_) => panic!("it was written"),
    }
}

fn with_xattr(name: &str, length: usize) -> Metadata {
    let mut meta = meta(0o644);
    meta.xattrs
        .push(Xattr::new(name.as_bytes(), vec![0; length]));
    meta
}

#[test]
fn inodes_that_cannot_be_stored_are_named() {
    let file = || Kind::EMPTY_FILE;
    let mut late = meta(0o644);
    late.mtime.nanos = 1_000_000_000;
    let mut crowded = meta(0o644);
    for i in 0..5 {
        crowded
            .xattrs
            .push(Xattr::new(format!("user.{i}").into_bytes(), vec![i; 65000]));
    }
    let mut twice = with_xattr("user.a", 1);
    twice.xattrs.push(twice.xattrs[0].clone());
    for (meta, kind, reason) in [
        (with_xattr("com.apple.quarantine", 1), file(), "namespace"),
        (with_xattr("system.nfs4_acl", 1), file(), "system.nfs4_acl"),
        (with_xattr("user.a", 65536), file(), "65536 bytes"),
        (crowded, file(), "262152"),
        (twice, file(), "given twice"),
        (late, file(), "nanoseconds"),
        (meta(0o777), Kind::Symlink(Box::default()), "0 bytes"),
        (
            meta(0o777),
            Kind::Symlink(vec![b'x'; 4096].into()),
            "4096 bytes",
        ),
        (meta(0o777), Kind::Symlink((*b"a\0b").into()), "NUL"),
    ] {
        let message = refusal(meta, kind);
        assert!(message.contains("/dir/it"), "{message}");
        assert!(message.contains(reason), "{message}");
    }
}

#[test]
fn invalid_names_are_refused_and_change_nothing() {
    let mut tree = Tree::new(meta(0o755));
    let root = tree.root();
    let inode = tree.add(meta(0o644), Kind::EMPTY_FILE);
    for name in [&b""[..], b".", b"..", b"a/b", b"a\0b", &[b'x'; 256]] {
        assert!(matches!(
            tree.link(root, name, inode),
            Err(Error::Name { .. })
        ));
    }
    assert_eq!(tree.entries(root).count(), 0);
    assert_eq!(tree.inode(inode).nlink, 0);

    let in_a_file = tree.link(inode, b"x", inode);
    assert!(matches!(in_a_file, Err(Error::NotADirectory { .. })));
    let dir = tree.add(meta(0o755), Kind::directory());
    assert!(tree.link(root, b"dir", dir).unwrap().is_none());
    let second = tree.link(root, b"second", dir);
    assert!(matches!(second, Err(Error::DirectoryLinkedTwice { .. })));
    let circle = tree.link(dir, b"root", root);
    assert!(matches!(circle, Err(Error::DirectoryLinkedTwice { .. })));
    assert_eq!(tree.inode(root).nlink, 3);
    // Adding the same name again changes nothing.
    assert_eq!(tree.link(root, b"dir", dir).unwrap(), Some(dir));
    assert_eq!(tree.inode(root).nlink, 3);
}

#[test]
fn link_counts_follow_names() {
    let mut tree = Tree::new(meta(0o755));
    let root = tree.root();
    let file = tree.add(meta(0o644), Kind::EMPTY_FILE);
    tree.link(root, b"a", file).unwrap();
    tree.link(root, b"b", file).unwrap();
    assert_eq!(tree.inode(file).nlink, 2);
    let dir = tree.add(meta(0o755), Kind::directory());
    assert_eq!(tree.link(root, b"b", dir).unwrap(), Some(file));
    assert_eq!((tree.inode(file).nlink, tree.inode(root).nlink), (1, 3));
    assert_eq!(tree.unlink(root, b"b"), Some(dir));
    assert_eq!(tree.inode(root).nlink, 2);
    assert_eq!(tree.parent(dir), None);
    // An unlinked directory may be linked elsewhere.
    tree.link(root, b"c", dir).unwrap();
    assert_eq!(tree.lookup(root, b"c"), Some(dir));
    let names: Vec<(&[u8], InodeId)> = tree.entries(root).collect();
    assert_eq!(names, [(&b"a"[..], file), (&b"c"[..], dir)]);
}

/// A disk with room for a limited number of bytes.
struct Full(Cursor<Vec<u8>>, u64);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.position() + bytes.len() as u64 > self.1 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl io::Seek for Full {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        self.0.seek(to)
    }
}

#[test]
fn failures_of_source_and_target_are_told_apart() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("a broken stream"))
        }
    }
    assert!(matches!(writer().body(1, &mut Broken), Err(Error::Body(_))));
    assert!(matches!(
        writer().body(10, &mut &b"four"[..]),
        Err(Error::ShortBody {
            expected: 10,
            got: 4
        })
    ));
    // The next body is still stored correctly.
    let mut recovered = writer();
    assert!(recovered.body(10, &mut &b"four"[..]).is_err());
    let data = recovered.body(4, &mut &b"five"[..]).unwrap();
    let tree = recovered.tree();
    let inode = tree.add(meta(0o644), Kind::File { size: 4, data });
    tree.link(tree.root(), b"it", inode).unwrap();
    let image = recovered.finish().unwrap().0.into_inner();
    let reader = micabox_erofs::Reader::open(&image).unwrap();
    let root = reader.inode(reader.root()).unwrap();
    let entry = reader.lookup(&root, b"it").unwrap().unwrap();
    let mut contents = [0; 10];
    let inode = reader.inode(entry.nid).unwrap();
    assert_eq!(reader.read(&inode, 0, &mut contents).unwrap(), 4);
    assert_eq!(&contents[..4], b"five");

    let segment = Segment {
        offset: 3,
        length: 8,
    };
    assert!(matches!(
        writer().sparse_body(10, &[segment], &mut io::empty()),
        Err(Error::Segment { offset: 3, .. })
    ));
    assert!(matches!(
        writer().sparse_body(u64::MAX, &[], &mut io::empty()),
        Err(Error::FileTooLarge(_))
    ));

    let options = Options {
        uuid: [0; 16],
        root: meta(0o755),
    };
    let mut full = Writer::new(Full(Cursor::new(Vec::new()), 1 << 20), options).unwrap();
    let size = 4 << 20;
    assert!(matches!(
        full.body(size, &mut io::repeat(1).take(size)),
        Err(Error::Output(_))
    ));
}

#[test]
fn an_interrupted_writer_leaves_no_valid_image() {
    let mut out = Cursor::new(Vec::new());
    let options = Options {
        uuid: [0; 16],
        root: meta(0o755),
    };
    let mut writer = Writer::new(&mut out, options).unwrap();
    let size = 3_000_000;
    writer.body(size, &mut io::repeat(1).take(size)).unwrap();
    drop(writer);
    let left = out.into_inner();
    assert!(left.len() > 2_000_000);
    assert!(matches!(
        micabox_erofs::Reader::open(&left),
        Err(Error::NotErofs)
    ));
}

fn merge(layers: &[Vec<Entry>]) -> micabox_erofs::Result<Merge> {
    let images: Vec<Vec<u8>> = layers.iter().map(|layer| spec::image(layer)).collect();
    merge_images(&images)
}

fn merge_images(images: &[Vec<u8>]) -> micabox_erofs::Result<Merge> {
    let layers: Vec<_> = images
        .iter()
        .map(|image| Layer {
            image,
            tag: b"sha256 digits",
        })
        .collect();
    Merge::of(&layers, 1)
}

#[test]
fn dangling_hard_links_name_both_ends() {
    let lower = vec![
        directory("/dir"),
        file("/dir/file", "x"),
        symlink("/loop", "loop"),
    ];
    for (target, reason) in [
        ("/dir/none", "does not exist"),
        ("/none/file", "does not exist"),
        ("/dir/file/x", "does not exist"),
        ("/loop/x", "does not exist"),
        ("/", "does not exist"),
        ("", "does not exist"),
        ("/dir", "is a directory"),
    ] {
        let upper = vec![implied("/new"), link_to_lower("/new/link", target)];
        let message = merge(&[lower.clone(), upper]).unwrap_err().to_string();
        for part in ["layer 2 (sha256 digits)", "/new/link", target, reason] {
            assert!(message.contains(part), "{target}: {message}");
        }
    }
}

#[test]
fn link_targets_are_found_behind_symbolic_links() {
    let lower = vec![
        directory("/usr"),
        directory("/usr/lib"),
        file("/usr/lib/so", "shared object"),
        symlink("/lib", "usr/lib"),
        symlink("/absolute", "/lib/../lib/."),
    ];
    // The last one exists only in the upper layer.
    for target in [
        "/usr/lib/so",
        "/lib/so",
        "/absolute/so",
        "/new/so",
        "lib/../lib/so",
    ] {
        let upper = vec![symlink("/new", "absolute"), link_to_lower("/link", target)];
        let merged = merge(&[lower.clone(), upper]).unwrap();
        let tree = merged.tree();
        let link = spec::lookup(tree, b"/link").unwrap();
        assert_eq!(spec::lookup(tree, b"/usr/lib/so"), Some(link), "{target}");
        assert_eq!(tree.inode(link).nlink, 2);
        assert!(merged.needs_fixup());
    }
}

#[test]
fn layers_with_devices_of_their_own_are_refused() {
    let merged = merge(&[vec![file("/x", "x")]]).unwrap();
    let (fsmeta, _) = merged
        .write_fsmeta(Cursor::new(Vec::new()), [0; 16])
        .unwrap();
    let message = merge_images(&[fsmeta.into_inner()])
        .unwrap_err()
        .to_string();
    assert!(message.contains("further devices"), "{message}");

    let redirected = directory("/moved").xattr("trusted.overlay.redirect", "/from");
    let message = merge(&[vec![redirected]]).unwrap_err().to_string();
    assert!(message.contains("redirected directories"), "{message}");
}

#[test]
fn a_stack_beyond_the_last_block_number_is_refused() {
    let image = spec::image(&[file("/x", "x")]);
    let layers = [Layer {
        image: &image,
        tag: b"",
    }; 3];
    let merged = Merge::of(&layers, 1 << 31);
    assert!(matches!(merged, Err(Error::ImageTooLarge)), "{merged:?}");
}

#[test]
fn the_same_stack_gives_the_same_bytes() {
    let lower: Vec<Entry> = (0..300)
        .map(|i| file(format!("/{i}"), "x").xattr("user.n", format!("{}", i % 7)))
        .collect();
    let upper: Vec<Entry> = (0..300)
        .map(|i| link_to_lower(format!("/to {i}"), format!("/{}", i / 3)))
        .collect();
    let images = [spec::image(&lower), spec::image(&upper)];
    let write = || {
        let merged = merge_images(&images).unwrap();
        let empty = || Cursor::new(Vec::new());
        let fsmeta = merged.write_fsmeta(empty(), [1; 16]).unwrap().0;
        let fixup = merged.write_fixup(empty(), [2; 16]).unwrap().0;
        (fsmeta.into_inner(), fixup.into_inner())
    };
    assert_eq!(write(), write());
}

#[test]
fn a_merge_of_no_layers_is_an_empty_directory() {
    let merged = merge(&[]).unwrap();
    assert!(!merged.needs_fixup());
    let (image, written) = merged
        .write_fsmeta(Cursor::new(Vec::new()), [0; 16])
        .unwrap();
    assert_eq!((written.inodes, written.devices.len()), (1, 0));
    support::tools::fsck_bytes(&image.into_inner());
}

#[test]
fn an_archives_own_overlay_attributes_are_escaped() {
    let escape = |name: &[u8]| overlay::escape_xattr_name(name).to_vec();
    assert_eq!(
        escape(b"trusted.overlay.opaque"),
        b"trusted.overlay.overlay.opaque"
    );
    assert_eq!(
        escape(b"trusted.overlay.overlay.opaque"),
        b"trusted.overlay.overlay.overlay.opaque"
    );
    assert_eq!(escape(b"trusted.overlayer"), b"trusted.overlayer");
    assert_eq!(escape(b"user.overlay.opaque"), b"user.overlay.opaque");
    assert!(overlay::is_marker(b"trusted.overlay.opaque"));
    assert!(!overlay::is_marker(b"trusted.overlay.overlay.opaque"));
}

#[test]
fn an_image_that_is_shorter_than_a_block_is_refused_for_what_it_is() {
    let mut image = vec![0; 1536];
    let refusal = |image: &[u8]| match Reader::open(image) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("it was opened"),
    };
    assert_eq!(refusal(&image), "not an EROFS image");
    image[1024..1028].copy_from_slice(&[0xe2, 0xe1, 0xf5, 0xe0]);
    // `mkfs.erofs --tar=i` makes such ones.
    image[1036] = 9;
    let refused = refusal(&image);
    assert!(
        refused.contains("blocks of another size than 4 KiB"),
        "{refused}"
    );
    image[1036] = 12;
    let refused = refusal(&image);
    assert!(
        refused.contains("shorter than its superblock says"),
        "{refused}"
    );
    assert_eq!(refusal(&image[..1100]), "not an EROFS image");
}
