//! Reads, then changes, filesystems that mke2fs made and debugfs or mke2fs filled.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;

use micabox_ext4::{BlockDevice, Ext4, FileKind, ROOT};

use crate::support::engine::{Image, owner};

/// Options of mke2fs that change the layout.
const SHAPES: [&[&str]; 16] = [
    &["-t", "ext4"],
    &["-t", "ext4", "-b", "1024"],
    &["-t", "ext4", "-b", "2048", "-I", "128"],
    &["-t", "ext4", "-O", "^has_journal"],
    &["-t", "ext4", "-O", "inline_data"],
    &["-t", "ext4", "-O", "ea_inode,large_dir,metadata_csum_seed"],
    &["-t", "ext4", "-O", "^metadata_csum,uninit_bg"],
    &["-t", "ext4", "-O", "^metadata_csum,^64bit"],
    &["-t", "ext4", "-O", "meta_bg,^resize_inode"],
    &["-t", "ext4", "-O", "^flex_bg"],
    &["-t", "ext4", "-O", "^extent,^64bit"],
    &["-t", "ext4", "-O", "sparse_super2"],
    &["-t", "ext4", "-O", "orphan_file"],
    &["-t", "ext4", "-O", "bigalloc"],
    &["-t", "ext3"],
    &["-t", "ext2"],
];

/// Whether the shape is only read.
fn is_read_only(shape: &[&str]) -> bool {
    shape
        .iter()
        .any(|word| matches!(*word, "ext2" | "ext3" | "bigalloc" | "^extent,^64bit"))
}

/// Creates a tree with one of everything that a user may create.
fn plant(root: &Path) {
    fs::write(root.join("empty"), "").unwrap();
    fs::write(root.join("tiny"), "tiny").unwrap();
    fs::write(root.join("hundred"), [b'h'; 100]).unwrap();
    let big: Vec<u8> = (0..700_000u32).flat_map(u32::to_le_bytes).collect();
    fs::write(root.join("big"), big).unwrap();
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(20 << 20).unwrap();
    for at in (0..20u64).step_by(3) {
        sparse
            .write_all_at(&[at as u8 + 1; 9000], (at << 20) + 77)
            .unwrap();
    }
    // mke2fs truncates a file that ends with a hole.
    sparse.write_all_at(b"end", (20 << 20) - 3).unwrap();
    symlink("tiny", root.join("fast")).unwrap();
    symlink("x".repeat(59), root.join("edge")).unwrap();
    symlink("y".repeat(61), root.join("slow")).unwrap();
    symlink("z".repeat(900), root.join("slower")).unwrap();
    fs::create_dir(root.join("small")).unwrap();
    fs::write(root.join("small/one"), "1").unwrap();
    fs::hard_link(root.join("tiny"), root.join("small/two")).unwrap();
    fs::create_dir(root.join("many")).unwrap();
    for number in 0..3000 {
        fs::write(
            root.join(format!("many/some file or other, number {number}")),
            "",
        )
        .unwrap();
    }
}

/// Describes everything below a directory of the host, by path, as text.
fn of_host(root: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut rest = vec![root.to_owned()];
    while let Some(directory) = rest.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let what = if meta.is_dir() {
                rest.push(path.clone());
                "directory".to_owned()
            } else if meta.is_symlink() {
                fs::read_link(&path).unwrap().to_string_lossy().into_owned()
            } else {
                format!("{} {}", meta.size(), sum(&fs::read(&path).unwrap()))
            };
            let name = path
                .strip_prefix(root)
                .unwrap()
                .to_string_lossy()
                .into_owned();
            found.insert(name, format!("{:o} {} {what}", meta.mode(), meta.mtime()));
        }
    }
    found
}

/// Describes everything in a filesystem opened with this crate, in the same way.
fn of_ours<D: BlockDevice>(filesystem: &mut Ext4<D>) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut rest = vec![(ROOT, String::new())];
    while let Some((directory, prefix)) = rest.pop() {
        for entry in filesystem.read_dir(directory).unwrap() {
            let name = format!(
                "{prefix}{}",
                String::from_utf8(entry.name.to_vec()).unwrap()
            );
            if name == "lost+found" {
                continue;
            }
            assert_eq!(
                filesystem.lookup(directory, &entry.name).unwrap(),
                entry.ino,
                "{name}"
            );
            let stat = filesystem.stat(entry.ino).unwrap();
            let what = match stat.kind().unwrap() {
                FileKind::Directory => {
                    rest.push((entry.ino, format!("{name}/")));
                    "directory".to_owned()
                }
                FileKind::Symlink => {
                    String::from_utf8(filesystem.read_link(entry.ino).unwrap()).unwrap()
                }
                _ => {
                    let mut bytes = vec![0; stat.size as usize];
                    assert_eq!(
                        filesystem.read(entry.ino, 0, &mut bytes).unwrap(),
                        bytes.len()
                    );
                    format!("{} {}", stat.size, sum(&bytes))
                }
            };
            found.insert(
                name,
                format!("{:o} {} {what}", stat.mode, stat.mtime.seconds),
            );
        }
    }
    found
}

/// Panics with the differences unless both are equal.
#[track_caller]
fn assert_same(
    found: &BTreeMap<String, String>,
    expected: &BTreeMap<String, String>,
    shape: &[&str],
) {
    for name in expected.keys().chain(found.keys()) {
        assert_eq!(found.get(name), expected.get(name), "{name} of {shape:?}");
    }
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, &byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[test]
fn filesystems_of_every_feature_set_are_read_and_changed() {
    let tree = tempfile::tempdir().unwrap();
    plant(tree.path());
    let expected = of_host(tree.path());
    for shape in SHAPES {
        let from = ["-d", tree.path().to_str().unwrap()];
        let image = Image::mke2fs(96 << 20, &[shape, &from].concat());
        println!("{shape:?}");
        assert_same(&of_ours(&mut image.open_read_only()), &expected, shape);
        if is_read_only(shape) {
            assert!(
                Ext4::open(image.device(), Default::default()).is_err(),
                "{shape:?}"
            );
            continue;
        }
        let mut filesystem = image.open();
        let small = filesystem.resolve(b"/small").unwrap();
        let many = filesystem.resolve(b"/many").unwrap();
        let tiny = filesystem.resolve(b"/tiny").unwrap();
        let big = filesystem.resolve(b"/big").unwrap();
        for number in 0..200 {
            let name = format!("another file, number {number}");
            for directory in [small, many] {
                let file = filesystem
                    .create(directory, name.as_bytes(), owner())
                    .unwrap();
                filesystem.write(file, 0, name.as_bytes()).unwrap();
            }
        }
        filesystem.write(tiny, 4, b" no more").unwrap();
        filesystem.write(big, 10 << 20, &[8; 5000]).unwrap();
        filesystem.truncate(big, (10 << 20) + 2500).unwrap();
        filesystem.unlink(ROOT, b"sparse").unwrap();
        filesystem.unlink(ROOT, b"slow").unwrap();
        filesystem
            .set_xattr(tiny, b"user.much", &[1; 700], micabox_ext4::SetXattr::Any)
            .unwrap();
        filesystem.sync().unwrap();
        let now = of_ours(&mut filesystem);
        filesystem.close().unwrap();
        image.check();
        assert_same(&of_ours(&mut image.open_read_only()), &now, shape);
    }
}

#[test]
fn unsupported_features_are_named() {
    for (feature, name) in [("encrypt", "encrypt"), ("casefold", "casefold")] {
        let image = Image::mke2fs(16 << 20, &["-t", "ext4", "-O", feature]);
        let error = Ext4::open_read_only(image.device(), Default::default()).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
    }
    for (feature, name) in [("bigalloc", "bigalloc"), ("quota", "quota"), ("mmp", "mmp")] {
        let image = Image::mke2fs(16 << 20, &["-t", "ext4", "-O", feature]);
        let error = Ext4::open(image.device(), Default::default()).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
    }
}
