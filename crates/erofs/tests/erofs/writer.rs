//! Checks that the reader, `fsck.erofs` and the kernel read what the writer writes.

use std::fs::File;
use std::io::{self, Cursor, Read};
use std::os::unix::fs::{FileExt, MetadataExt};

use micabox_erofs::{Reader, Segment, Timestamp, check};
use micabox_testing::mounts::{Mount, directory_on_disk};

use crate::support::snapshot::{self, Ignore, assert_same};
use crate::support::spec::{
    self, Content, Entry, What, directory, entry, file, hard_link, meta, symlink,
};
use crate::support::tools;

/// Checks an image without privileges.
fn check_image(entries: &[Entry]) -> Vec<u8> {
    let image = spec::image(entries);
    let reader = Reader::open(&image).unwrap();
    let read = snapshot::of_image(&reader);
    assert_same("reader", &read, &spec::expected(entries), Ignore::default());
    tools::fsck_bytes(&image);
    assert_eq!(check::check(&image), []);
    image
}

/// Checks an image with the kernel.
fn check_mounted(entries: &[Entry]) {
    let directory = directory_on_disk();
    let path = directory.path().join("image");
    spec::write(File::create_new(&path).unwrap(), [1; 16], entries);
    tools::fsck(&path, &[]);
    let mount = Mount::erofs(&path, &[]);
    let seen = snapshot::of_directory(mount.path());
    assert_same("kernel", &seen, &spec::expected(entries), Ignore::default());
}

/// Returns one entry of everything, and names that other implementations got wrong.
fn zoo() -> Vec<Entry> {
    let mut entries = vec![
        directory("/").mode(0o1777).owner(1, 2).mtime(-1, 1),
        file("/empty", ""),
        file("/one", "1").owner(0xffff_fffe, 70_000),
        file("/block", [7; 4096]),
        file("/more", [8; 4097]).mtime(-2_000_000_000, 999_999_999),
        file("/suid", "x").mode(0o6755).mtime(1 << 40, 5),
        hard_link("/block again", "/block"),
        symlink("/link", "one"),
        symlink("/long link", vec![b'l'; 4095]).xattr("trusted.t", "on a link"),
        symlink("/inline link", vec![b'l'; 4032]),
        symlink("/no inline link", vec![b'l'; 4033]),
        entry("/null", meta(0o666), What::Char(1, 3)).xattr("security.x", "on a device"),
        entry("/whiteout", meta(0), What::Char(0, 0)),
        entry("/disk", meta(0o660), What::Block(259, 70_000)).owner(0, 6),
        entry("/fifo", meta(0o600), What::Fifo),
        entry("/socket", meta(0o700), What::Socket),
        directory("/d"),
        directory("/d/e").mode(0o700),
        directory("/d/e/f"),
        file("/d/e/f/deep", "deep"),
        hard_link("/d/e/deep too", "/d/e/f/deep"),
    ];
    let awkward: [&[u8]; 12] = [
        b"+page.svelte",
        b"(group)",
        b"$x",
        b"-x",
        b"#x",
        b" ",
        b"\x01",
        b"...",
        b".x",
        b"..x",
        b"\xff\xfe",
        b"~",
    ];
    for name in awkward {
        entries.push(file([b"/d/", name].concat(), name));
    }
    entries.push(file([&b"/d/"[..], &[b'n'; 255]].concat(), "long"));
    entries
}

/// Returns extended attributes of all namespaces; shared, unshared and empty ones.
fn xattr_zoo() -> Vec<Entry> {
    // Version 2, then user::rw-, user:1000:r--, group::r--, mask::r--, other::r--.
    let acl = |default: bool| {
        let mut acl = vec![2, 0, 0, 0];
        let mut put = |tag: u16, perm: u16, id: u32| {
            acl.extend_from_slice(&tag.to_le_bytes());
            acl.extend_from_slice(&perm.to_le_bytes());
            acl.extend_from_slice(&id.to_le_bytes());
        };
        put(1, if default { 7 } else { 6 }, u32::MAX);
        put(2, 4, 1000);
        put(4, 4, u32::MAX);
        put(0x10, 4, u32::MAX);
        put(0x20, 4, u32::MAX);
        acl
    };
    // VFS_CAP_REVISION_2, effective, CAP_NET_BIND_SERVICE.
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut entries = vec![
        directory("/").xattr("user.root", "r"),
        file("/ping", "elf")
            .mode(0o755)
            .xattr("security.capability", capability),
        file("/acl", "a")
            .mode(0o644)
            .xattr("system.posix_acl_access", acl(false)),
        directory("/acls")
            .xattr("system.posix_acl_access", acl(true))
            .xattr("system.posix_acl_default", acl(true)),
        file("/overlay", "o").xattr("trusted.overlay.overlay.opaque", "y"),
        file("/empty value", "").xattr("user.empty", ""),
        file("/largest value", "").xattr("user.largest", vec![b'v'; 65535]),
        file("/longest name", "").xattr(&format!("user.{}", "n".repeat(250)), "x"),
        // More than a block of attributes before inline content.
        symlink("/link", vec![b't'; 3000]).xattr("trusted.big", vec![b'v'; 5000]),
        directory("/dir").xattr("user.big", vec![b'w'; 9000]),
        file("/dir/x", "x"),
    ];
    let mut many = file("/many", "m");
    for i in 0..600 {
        many = many.xattr(&format!("user.many{i:04}"), format!("{i}"));
    }
    entries.push(many.clone());
    many.path = b"/many too".to_vec();
    entries.push(many.xattr("user.one more", "1"));
    for i in 0..300 {
        let name = format!("/label{i}");
        entries.push(file(name, "").xattr("security.selinux", "system_u:object_r:usr_t:s0\0"));
    }
    entries
}

fn sparse_zoo() -> Vec<Entry> {
    let sparse = |path: &str, size, parts: &[(u64, usize)]| {
        let parts = parts
            .iter()
            .map(|&(offset, length)| (offset, vec![b'a' + (offset % 23) as u8; length]))
            .collect();
        entry(path, meta(0o644), What::File(Content::Sparse(size, parts)))
    };
    vec![
        sparse("/hole", 100_000, &[]),
        sparse("/one byte of hole", 1, &[]),
        sparse("/no hole", 10_000, &[(0, 10_000)]),
        sparse("/start", 1 << 20, &[(0, 1)]),
        sparse("/end", (1 << 20) + 1, &[(1 << 20, 1)]),
        sparse(
            "/middle",
            10 << 20,
            &[(5 << 20, 123_456), ((7 << 20) + 3, 7)],
        ),
        sparse(
            "/crumbs",
            300_000,
            &[(5, 1), (50_000, 10), (50_011, 9), (290_000, 10_000)],
        ),
        sparse(
            "/across chunks",
            64 << 20,
            &[(100, 1), (1 << 20, 3 << 20), (40 << 20, 4096)],
        ),
    ]
}

fn huge_directory(count: u32) -> Vec<Entry> {
    let mut entries = vec![directory("/"), directory("/huge")];
    for i in 0..count {
        // Names of all lengths, in arbitrary order.
        let i = i.wrapping_mul(2_654_435_761);
        let name = format!("/huge/{i:08x}{}", "-".repeat((i % 240) as usize));
        entries.push(file(name, ""));
    }
    entries
}

#[test]
fn every_kind_of_inode_is_written() {
    check_image(&zoo());
}

#[test]
fn extended_attributes_are_written_and_shared() {
    let image = check_image(&xattr_zoo());
    // 300 labels of 40 bytes are stored once.
    let needle = b"system_u:object_r:usr_t:s0";
    let found = image.windows(needle.len()).filter(|w| w == needle).count();
    assert_eq!(found, 1);
}

#[test]
fn sparse_and_large_files_are_written() {
    check_image(&sparse_zoo());
}

/// Writes a file of more than 4 GiB with data on both sides of that limit, and data in the image
/// after more than 4 GiB of zeros that take no space.
fn large_files() -> (tempfile::TempDir, std::path::PathBuf) {
    let directory = directory_on_disk();
    let path = directory.path().join("image");
    let options = micabox_erofs::Options {
        uuid: [1; 16],
        root: meta(0o755),
    };
    let mut writer = micabox_erofs::Writer::new(File::create_new(&path).unwrap(), options).unwrap();
    let segments = [(1, 5), ((5 << 30) - 5, 5)].map(|(offset, length)| Segment { offset, length });
    let size = 5 << 30;
    let data = writer
        .sparse_body(size, &segments, &mut &b"startthe e"[..])
        .unwrap();
    let sparse = micabox_erofs::Kind::File { size, data };
    let size = (4 << 30) + 9;
    let mut zeros = io::repeat(0).take(4 << 30).chain(&b"after all"[..]);
    let data = writer.body(size, &mut zeros).unwrap();
    let whole = micabox_erofs::Kind::File { size, data };
    let tree = writer.tree();
    for (name, kind) in [(&b"sparse"[..], sparse), (b"whole", whole)] {
        let inode = tree.add(meta(0o644), kind);
        tree.link(tree.root(), name, inode).unwrap();
    }
    writer.finish().unwrap();
    (directory, path)
}

const LARGE_PARTS: [(&str, u64, &[u8]); 5] = [
    ("sparse", 0, b"\0start\0"),
    ("sparse", (4 << 30) - 3, b"\0\0\0\0\0\0"),
    ("sparse", (5 << 30) - 6, b"\0the e"),
    ("whole", 0, b"\0\0\0\0\0\0"),
    ("whole", (4 << 30) - 1, b"\0after all"),
];

#[test]
fn files_above_4_gib_are_written() {
    let (_directory, path) = large_files();
    let disk_bytes = path.metadata().unwrap().blocks() * 512;
    assert!(disk_bytes < 1 << 20, "{disk_bytes} bytes on disk");
    tools::fsck_metadata(&path);
    let image = File::open(&path).unwrap();
    assert_eq!(check::check(&image), []);
    let reader = Reader::open(image).unwrap();
    let root = reader.inode(reader.root()).unwrap();
    for (name, offset, bytes) in LARGE_PARTS {
        let entry = reader.lookup(&root, name.as_bytes()).unwrap().unwrap();
        let inode = reader.inode(entry.nid).unwrap();
        let mut buf = vec![1; bytes.len()];
        assert_eq!(reader.read(&inode, offset, &mut buf).unwrap(), bytes.len());
        assert_eq!(buf, bytes, "{name} at {offset}");
    }
}

#[test]
#[ignore = "needs root"]
fn the_kernel_sees_files_above_4_gib() {
    let (_directory, path) = large_files();
    let mount = Mount::erofs(&path, &[]);
    for (name, offset, bytes) in LARGE_PARTS {
        let file = File::open(mount.path().join(name)).unwrap();
        let mut buf = vec![1; bytes.len()];
        file.read_exact_at(&mut buf, offset).unwrap();
        assert_eq!(buf, bytes, "{name} at {offset}");
    }
    let length = |name| mount.path().join(name).metadata().unwrap().len();
    assert_eq!(
        (length("sparse"), length("whole")),
        (5 << 30, (4 << 30) + 9)
    );
}

#[test]
fn huge_directories_are_written() {
    check_image(&huge_directory(20_000));
}

#[test]
fn directories_of_every_size_around_a_block_are_written() {
    let mut entries = vec![directory("/")];
    for size in (3900..4120).chain(8050..8220) {
        let dir = format!("/{size}");
        entries.push(directory(&dir));
        // `.` and `..` take 27 bytes, every other entry 12 and its name.
        let mut left = size - 27;
        let mut index = 0;
        while left > 12 + 16 {
            let name = (left - 12).min(200);
            entries.push(file(format!("{dir}/{index:0name$}"), ""));
            left -= 12 + name;
            index += 1;
        }
    }
    check_image(&entries);
}

#[test]
fn link_counts_above_16_bits_are_written() {
    let mut entries = vec![file("/f", "x")];
    entries.extend((0..70_000).map(|i| hard_link(format!("/{i}"), "/f")));
    entries.extend((0..100).map(|i| directory(format!("/d{i}"))));
    check_image(&entries);
}

#[test]
fn bytes_are_a_function_of_the_calls() {
    let entries = [zoo(), xattr_zoo()[1..].to_vec()].concat();
    assert_eq!(spec::image(&entries), spec::image(&entries));
}

#[test]
fn a_later_entry_replaces_an_earlier_one() {
    let entries = [
        directory("/d"),
        file("/d/a", "first"),
        hard_link("/d/b", "/d/a"),
        file("/x", "old"),
    ];
    let mut writer = micabox_erofs::Writer::new(
        Cursor::new(Vec::new()),
        micabox_erofs::Options {
            uuid: [0; 16],
            root: meta(0o755),
        },
    )
    .unwrap();
    for entry in &entries {
        spec::add(&mut writer, entry);
    }
    // Removes the directory with one of the two names of its file, and moves the other.
    let tree = writer.tree();
    let root = tree.root();
    let d = tree.lookup(root, b"d").unwrap();
    let a = tree.lookup(d, b"a").unwrap();
    tree.link(root, b"kept", a).unwrap();
    let replacement = tree.add(meta(0o600), micabox_erofs::Kind::EMPTY_FILE);
    assert_eq!(tree.link(root, b"d", replacement).unwrap(), Some(d));
    assert!(tree.unlink(root, b"x").is_some());
    assert_eq!(tree.unlink(root, b"x"), None);
    let image = writer.finish().unwrap().0.into_inner();
    let read = snapshot::of_image(&Reader::open(&image).unwrap());
    assert_eq!(read[&b"/kept"[..]].nlink, 1);
    assert_eq!(read[&b"/d"[..]].nlink, 1);
    assert_eq!(read[&b"/"[..]].nlink, 2);
    tools::fsck_bytes(&image);
}

#[test]
fn equal_times_make_compact_inodes() {
    let mut entries: Vec<_> = (0..1000).map(|i| file(format!("/{i}"), "")).collect();
    let compact = spec::write(Cursor::new(Vec::new()), [0; 16], &entries).1;
    for (i, entry) in entries.iter_mut().enumerate() {
        entry.meta.mtime = Timestamp {
            seconds: i as i64,
            nanos: 0,
        };
    }
    let extended = spec::write(Cursor::new(Vec::new()), [0; 16], &entries).1;
    assert!(extended.metadata - compact.metadata > 999 * 32 - 4096);
}

#[test]
#[ignore = "needs root"]
fn the_kernel_sees_every_kind_of_inode() {
    check_mounted(&zoo());
}

#[test]
#[ignore = "needs root"]
fn the_kernel_sees_extended_attributes() {
    check_mounted(&xattr_zoo());
}

#[test]
#[ignore = "needs root"]
fn the_kernel_sees_sparse_and_large_files() {
    check_mounted(&sparse_zoo());
}

#[test]
#[ignore = "needs root"]
fn the_kernel_sees_huge_directories() {
    check_mounted(&huge_directory(20_000));
}
