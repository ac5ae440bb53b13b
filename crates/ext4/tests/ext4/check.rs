//! Compares the check with e2fsck's verdicts.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

use micabox_ext4::check::{Finding, check};
use micabox_ext4::device::Memory;
use micabox_ext4::mkfs::{Journal, Options, mkfs};

use micabox_testing::{e2fsprogs, run};

fn check_file(path: &Path) -> Vec<Finding> {
    check(&File::open(path).unwrap())
}

fn listed(findings: &[Finding]) -> String {
    findings
        .iter()
        .map(|finding| format!("\n  {finding}"))
        .collect()
}

/// For these trees e2fsck only offers a tighter packing; it finds no errors.
const ONLY_LOOSE: [&str; 3] = [
    "f_collapse_extent_tree",
    "f_compress_extent_tree_level",
    "f_quota_extent_opt",
];

/// e2fsck loops on these two: it relocates the same tables endlessly.
const ENDLESS: [&str; 2] = ["f_illitable_flexbg", "f_misstable"];

#[test]
fn broken_filesystems_of_e2fsprogs_have_findings() {
    let images = e2fsprogs::broken_images();
    let (mut broken, mut sound) = (0, 0);
    for (name, path) in &images {
        let findings = check_file(path);
        if ENDLESS.contains(&name.as_str()) {
            assert!(!findings.is_empty(), "{name} is called clean");
            broken += 1;
            continue;
        }
        let verdict = e2fsprogs::e2fsck(path).expect("e2fsck ends");
        if verdict.clean || ONLY_LOOSE.contains(&name.as_str()) {
            assert!(
                findings.is_empty(),
                "{name}: {}{}",
                verdict.text,
                listed(&findings)
            );
            sound += 1;
        } else {
            assert!(
                !findings.is_empty(),
                "{name} is called clean:\n{}",
                verdict.text
            );
            broken += 1;
        }
    }
    println!("{} images: {broken} broken, {sound} sound", images.len());
    assert!(broken > 150 && sound > 20);
}

/// Creates files of all kinds, a directory with an index, holes, long links, attributes.
fn populate(root: &Path) {
    fs::create_dir_all(root.join("a/b/c")).unwrap();
    fs::create_dir(root.join("many")).unwrap();
    for number in 0..2000 {
        let name = format!("many/a_name_that_is_long_enough_to_fill_blocks_{number}");
        fs::write(root.join(name), number.to_string()).unwrap();
    }
    let large: Vec<u8> = (0..3_000_000_u32).map(|byte| byte as u8).collect();
    fs::write(root.join("a/large"), &large).unwrap();
    let sparse = File::create(root.join("a/sparse")).unwrap();
    for offset in (0..50).map(|index| index * 200_000) {
        sparse.write_all_at(b"island", offset).unwrap();
    }
    sparse.set_len(20_000_000).unwrap();
    symlink("short", root.join("fast")).unwrap();
    symlink("long/".repeat(30), root.join("slow")).unwrap();
    fs::hard_link(root.join("a/large"), root.join("a/b/linked")).unwrap();
    for (name, size) in [("user.small", 20), ("user.large", 600)] {
        let value = vec![b'v'; size];
        let path = root.join("a/large");
        let flags = rustix::fs::XattrFlags::empty();
        // The directory's filesystem may not support attributes.
        let _ = rustix::fs::setxattr(&path, name, &value, flags);
    }
}

/// Options of mke2fs: defaults, and optional features.
const KINDS: [&str; 24] = [
    "-t ext4",
    "-t ext3",
    "-t ext2",
    "-t ext4 -b 1024",
    "-t ext4 -b 2048",
    "-t ext4 -b 65536",
    "-t ext4 -g 8192 -b 4096",
    "-t ext4 -I 128",
    "-t ext4 -O ^64bit",
    "-t ext4 -O ^64bit,^extents",
    "-t ext4 -O ^metadata_csum",
    "-t ext4 -O ^metadata_csum,uninit_bg",
    "-t ext4 -O ^flex_bg",
    "-t ext4 -O ^dir_index",
    "-t ext4 -O bigalloc",
    "-t ext4 -O bigalloc -b 1024 -C 16384",
    "-t ext4 -O inline_data",
    "-t ext4 -O large_dir",
    "-t ext4 -O meta_bg,^resize_inode",
    "-t ext4 -O metadata_csum_seed",
    "-t ext4 -O mmp",
    "-t ext4 -O orphan_file",
    "-t ext4 -O quota,project",
    "-t ext4 -O sparse_super2,^resize_inode",
];

fn make_with_mke2fs(kind: &str, mebibytes: u64, tree: &Path) -> tempfile::NamedTempFile {
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(mebibytes << 20).unwrap();
    let mut command = e2fsprogs::tool("mke2fs");
    command
        .args(["-q", "-F"])
        .args(kind.split(' '))
        .arg("-d")
        .arg(tree);
    run(command.arg(image.path()));
    image
}

/// Checks that both verdicts agree and that the filesystem is sound, except for quotas: mke2fs
/// omits those of the files that it copies.
#[track_caller]
fn agree(kind: &str, verdict: &e2fsprogs::Verdict, findings: &[Finding]) {
    assert!(
        verdict.clean || kind.contains("quota"),
        "{kind}: {}",
        verdict.text
    );
    let what = format!("{kind}: {}{}", verdict.text, listed(findings));
    assert_eq!(findings.is_empty(), verdict.clean, "{what}");
}

#[test]
fn sound_filesystems_are_clean() {
    let tree = tempfile::tempdir().unwrap();
    populate(tree.path());
    for kind in KINDS {
        let image = make_with_mke2fs(kind, 200, tree.path());
        let verdict = e2fsprogs::e2fsck(image.path()).unwrap();
        let findings = check_file(image.path());
        agree(kind, &verdict, &findings);
    }
}

#[test]
#[ignore = "needs root"]
fn filesystems_written_by_the_kernel_are_clean() {
    let empty = tempfile::tempdir().unwrap();
    let directory = tempfile::tempdir().unwrap();
    // For example, kernels are built without quotas.
    let mut refused = Vec::new();
    for kind in KINDS.into_iter().filter(|kind| !kind.contains("65536")) {
        let image = make_with_mke2fs(kind, 200, empty.path());
        let mut mount = std::process::Command::new("mount");
        mount
            .args(["-o", "loop"])
            .arg(image.path())
            .arg(directory.path());
        if !mount.output().unwrap().status.success() {
            refused.push(kind);
            continue;
        }
        populate(directory.path());
        for number in (0..2000).filter(|number| number % 3 != 0) {
            let name = format!("many/a_name_that_is_long_enough_to_fill_blocks_{number}");
            fs::remove_file(directory.path().join(name)).unwrap();
        }
        run(std::process::Command::new("umount").arg(directory.path()));
        let verdict = e2fsprogs::e2fsck(image.path()).unwrap();
        let findings = check_file(image.path());
        agree(kind, &verdict, &findings);
    }
    println!("the kernel refused {refused:?}");
    assert!(refused.len() < 4);
}

/// A small generator of numbers; deterministic.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize % limit
    }
}

/// Damages metadata of sound filesystems at random: the check must find what e2fsck finds.
#[test]
fn damage_that_e2fsck_finds_is_found() {
    let tree = tempfile::tempdir().unwrap();
    populate(tree.path());
    let mut random = Random(4);
    let scratch = tempfile::NamedTempFile::new().unwrap();
    for kind in [
        "-t ext4 -b 1024",
        "-t ext4 -O ^metadata_csum",
        "-t ext3",
        "-t ext4 -O inline_data",
    ] {
        let image = make_with_mke2fs(kind, 32, tree.path());
        let sound = fs::read(image.path()).unwrap();
        // Only nonzero places.
        let places: Vec<usize> = (0..sound.len() / 1024)
            .filter(|&index| sound[index * 1024..][..1024].iter().any(|&byte| byte != 0))
            .collect();
        for _ in 0..25 {
            let mut damaged = sound.clone();
            for _ in 0..=random.below(3) {
                let place = places[random.below(places.len().min(900))];
                damaged[place * 1024 + random.below(1024)] ^= 1 << random.below(8);
            }
            fs::write(scratch.path(), &damaged).unwrap();
            let findings = check(&Memory::from(damaged));
            let Some(verdict) = e2fsprogs::e2fsck(scratch.path()) else {
                continue;
            };
            assert!(
                verdict.clean || !findings.is_empty(),
                "{kind}: called clean:\n{}",
                verdict.text
            );
        }
    }
}

/// Checksums keep most damage from being examined further; here the filesystem has no checksums,
/// and whole fields become extreme.
#[test]
fn extreme_numbers_neither_panic_nor_hang() {
    let tree = tempfile::tempdir().unwrap();
    populate(tree.path());
    let image = make_with_mke2fs("-t ext4 -b 1024 -O ^metadata_csum", 32, tree.path());
    let sound = fs::read(image.path()).unwrap();
    let places: Vec<usize> = (0..sound.len() / 1024)
        .filter(|&index| sound[index * 1024..][..1024].iter().any(|&byte| byte != 0))
        .collect();
    let mut random = Random(9);
    for round in 0..150 {
        let mut device = sound.clone();
        for _ in 0..20 {
            // Every other round changes only the superblock.
            let place = match round % 2 {
                0 => 1,
                _ => places[random.below(places.len().min(900))],
            };
            let at = place * 1024 + random.below(256) * 4;
            let value = [0, 1, 0xffff_ffff, 0x7fff_ffff, 0x8000_0000, 0xffff][random.below(6)];
            device[at..at + 4].copy_from_slice(&u32::to_le_bytes(value));
        }
        // Without the magic number the check would not read anything else.
        device[1080..1082].copy_from_slice(&[0x53, 0xef]);
        check(&Memory::from(device));
    }
}

#[test]
fn a_new_filesystem_is_clean_and_a_cut_one_is_not() {
    let options = Options {
        uuid: [1; 16],
        label: [0; 16],
        time: 0,
        inodes: None,
        journal: Journal::Default,
        reserved: 0,
    };
    let mut device = Memory::new(16 << 20);
    mkfs(&mut device, 16 << 20, &options).unwrap();
    assert_eq!(check(&device), []);
    let bytes = device.into_bytes();
    for length in [0, 1023, 1024, 2048, 4096, 1 << 20, (16 << 20) - 1] {
        let cut = Memory::from(bytes[..length].to_vec());
        assert!(!check(&cut).is_empty(), "{length}");
    }
}
