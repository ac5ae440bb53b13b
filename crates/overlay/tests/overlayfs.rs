//! Compares this crate with the kernel's overlayfs, without a machine: this crate reads what the
//! kernel wrote, and the kernel reads what this crate wrote.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::process::Command;

use micabox_ext4::FileKind;
use micabox_overlay::diff::{self, ChangeKind, Paths};
use micabox_overlay::edit::Edit;
use micabox_overlay::layer::write_layer;
use micabox_overlay::lower::LowerKind;
use micabox_overlay::patch::Patch;
use micabox_overlay::view::{PathKind, ViewError};
use micabox_overlay::words::PREFIX;
use micabox_testing::mounts::Mount;
use micabox_testing::run;
use rustix::fs::{FileType, OFlags};
use support::case::{self, Case};
use support::edits;
use support::tree::{self, Tree, assert_same, parent};

const KINDS: [LowerKind; 2] = [LowerKind::Erofs, LowerKind::Ext4];

#[test]
#[ignore = "needs root"]
fn a_view_shows_what_the_kernel_shows() {
    for seed in 0..4 {
        let case = Case::new(KINDS[seed % 2], seed as u64, 200);
        let mount = case.mount(&case.disk);
        let expected = tree::of_directory(mount.path());
        let kinds: Vec<_> = paths(&expected)
            .into_iter()
            .map(|path| (kind_by_kernel(&mount, &path), path))
            .collect();
        drop(mount);
        let mut view = case.view();
        assert_same("view", &tree::of_view(&mut view), &expected);
        for (expected, path) in kinds {
            let found = view.path_kind(&path).unwrap_or(PathKind::Nothing);
            assert_eq!(found, expected, "{seed}: {}", path.escape_ascii());
        }
    }
}

/// Returns paths to look up: existing ones, and some around them.
fn paths(tree: &Tree) -> Vec<Vec<u8>> {
    let ends: [&[u8]; 5] = [b"", b"/", b"/..", b"/d0", b"/../../../x0/."];
    let all = tree.keys();
    all.flat_map(|path| ends.map(|end| [b"/", &**path, end].concat()))
        .collect()
}

fn kind_by_kernel(mount: &Mount, path: &[u8]) -> PathKind {
    let Ok(found) = edits::open(mount.path(), path, OFlags::empty()) else {
        return PathKind::Nothing;
    };
    let stat = rustix::fs::fstat(found).unwrap();
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => PathKind::Directory,
        _ => PathKind::Other,
    }
}

#[test]
#[ignore = "needs root"]
fn a_diff_names_what_differs() {
    for seed in 10..13 {
        let case = Case::new(KINDS[seed % 2], seed as u64, 120);
        let lower = tree::of_directory(case.mount_lower().path());
        let merged = tree::of_directory(case.mount(&case.disk).path());
        let mut changes = BTreeMap::new();
        let mut joined = Paths::default();
        diff::diff(&mut case.view(), |step| {
            let change = joined.change(step).unwrap();
            let path = change.path.strip_prefix(b"/").unwrap().to_vec();
            assert!(changes.insert(path, change.kind).is_none(), "a path twice");
            Ok::<_, ViewError>(())
        })
        .unwrap();
        let of = |kind| -> BTreeSet<&[u8]> {
            let all = changes.iter().filter(|(_, found)| **found == kind);
            all.map(|(path, _)| &**path).collect()
        };
        let is_directory = |tree: &Tree, path: &[u8]| {
            tree.get(path)
                .is_some_and(|node| node.kind == FileKind::Directory)
        };
        let only = |one: &Tree, other: &Tree| -> BTreeSet<Vec<u8>> {
            let all = one.keys().filter(|path| !other.contains_key(*path));
            all.cloned().collect()
        };
        let added = only(&merged, &lower);
        let added: BTreeSet<&[u8]> = added.iter().map(|path| &**path).collect();
        assert_eq!(of(ChangeKind::Added), added, "{seed}: added");
        // The entries of a deleted directory are deleted with it.
        let gone = only(&lower, &merged);
        let gone = gone.iter().map(|path| &**path);
        let gone = gone.filter(|path| is_directory(&merged, parent(path)));
        assert_eq!(of(ChangeKind::Deleted), gone.collect(), "{seed}: deleted");
        let changed = of(ChangeKind::Changed);
        for (path, node) in &merged {
            let below = lower.get(path);
            // A link isn't changed when its target is.
            let same = below.is_none_or(|below| {
                // overlayfs treats its own attributes specially.
                let xattrs = |node: &tree::Node| {
                    let mut xattrs = node.xattrs.clone();
                    xattrs.retain(|name, _| !name.starts_with(PREFIX));
                    xattrs
                };
                let other = tree::Node {
                    first_name: node.first_name.clone(),
                    xattrs: node.xattrs.clone(),
                    ..below.clone()
                };
                *node == other && xattrs(node) == xattrs(below)
            });
            let told = changed.contains(&**path) || path.is_empty();
            assert!(same || told, "{seed}: {}", path.escape_ascii());
            assert!(below.is_some() || !told, "{seed}: {}", path.escape_ascii());
        }
    }
}

#[test]
#[ignore = "needs root"]
fn a_layer_on_the_lower_one_is_the_same_tree() {
    for seed in 20..23 {
        let case = Case::new(KINDS[seed % 2], seed as u64, 150);
        let mut expected = tree::of_directory(case.mount(&case.disk).path());
        // Archives can't hold sockets.
        let lower = tree::of_directory(case.mount_lower().path());
        expected.retain(|path, node| {
            let same = |below: &tree::Node| (below.kind, below.mtime) == (node.kind, node.mtime);
            node.kind != FileKind::Socket || lower.get(path).is_some_and(same)
        });
        let archive = case.directory.path().join("layer.tar");
        write_layer(&mut case.view(), File::create(&archive).unwrap()).unwrap();
        let layer = case::convert(case.directory.path(), &archive);
        let layers = [Mount::erofs(&layer, &[]), case.mount_lower()];
        let stack = Mount::stack(&layers);
        assert_same("layer", &tree::of_directory(stack.path()), &expected);
    }
}

#[test]
#[ignore = "needs root"]
fn edits_are_what_the_kernel_would_have_done() {
    let mut done = 0;
    for seed in 30..33 {
        let mut case = Case::new(KINDS[seed % 2], seed as u64, 80);
        let ours = case.directory.path().join("ours");
        fs::copy(&case.disk, &ours).unwrap();
        let archive = edits::archive(case.directory.path());
        let mount = case.mount(&case.disk);
        let before = tree::of_directory(mount.path());
        let file = File::options().read(true).write(true).open(&ours).unwrap();
        let mut edit = Edit::layer(file, case.lower()).unwrap();
        let mut random = std::mem::replace(&mut case.random, support::history::Random(0));
        let patches = edits::make(&mut edit, &mount, &mut random, &archive);
        done += patches.len();
        edit.close().unwrap();
        let mut expected = tree::of_directory(mount.path());
        drop(mount);
        run(Command::new("e2fsck").arg("-fn").arg(&ours));
        let mut found = tree::of_directory(case.mount(&ours).path());
        let is_archived = |path: &[u8]| path.windows(12).any(|part| part == b"from archive");
        // New entries must not change a directory's mtime, as long as the directory is the same.
        for (path, node) in &found {
            let absolute = [b"/", &**path].concat();
            let is_removed = patches.iter().any(|patch| match patch {
                Patch::Remove(removed) => absolute.starts_with(removed),
                _ => false,
            });
            if let Some(before) = before.get(path)
                && (before.kind, node.kind) == (FileKind::Directory, FileKind::Directory)
                && !is_removed
                && !is_archived(path)
            {
                assert_eq!(node.mtime, before.mtime, "{seed}: {}", path.escape_ascii());
            }
        }
        // New files have the time of their creation, except those from an archive.
        for tree in [&mut expected, &mut found] {
            for (path, node) in tree.iter_mut() {
                let before = before.get(path).map(|before| before.mtime);
                let is_new = before != Some(node.mtime) && node.mtime.0 > 1_700_000_000;
                if node.kind == FileKind::Directory || is_new {
                    node.mtime = (0, 0);
                }
            }
        }
        assert_same("edits", &found, &expected);
    }
    assert!(done > 30, "{done}");
}

#[test]
#[ignore = "needs root"]
fn a_mark_of_an_opaque_directory_on_the_root_hides_nothing() {
    let case = Case::new(LowerKind::Erofs, 40, 60);
    let disk = Mount::ext4(&case.disk, "rw");
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(disk.at("root"), "trusted.overlay.opaque", b"y", flags).unwrap();
    drop(disk);
    let expected = tree::of_directory(case.mount(&case.disk).path());
    assert_same("view", &tree::of_view(&mut case.view()), &expected);
    assert!(
        expected.len()
            > tree::of_directory(Mount::ext4(&case.disk, "ro").at("root").as_path()).len()
    );
}
