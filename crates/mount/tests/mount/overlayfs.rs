//! A filesystem in memory over a lower tree beside the kernel's overlayfs over the same.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use std::time::SystemTime;

use micabox_ext4::FileKind;
use micabox_mount::{Cache, Filesystem, Layer, Limits, below};
use micabox_overlay::diff::{self, ChangeKind, Paths};
use micabox_overlay::layer::write_layer;
use micabox_overlay::lower::LowerKind;
use micabox_overlay::upper::Upper;
use micabox_overlay::view::{self, View, ViewError};
use micabox_testing::mounts::Mount;
use rustix::mount::{MountFlags, mount_remount};

use crate::overlay::case::{self, Case};
use crate::overlay::history::{self, Random};
use crate::overlay::tree::{self, Tree, assert_same};
use crate::support::Memory;

const KINDS: [LowerKind; 2] = [LowerKind::Erofs, LowerKind::Ext4];
const LIMITS: Limits = Limits {
    bytes: 64 << 20,
    inodes: 10_000,
};

fn mount(case: &Case) -> Memory {
    let files = Filesystem::over(LIMITS, below::overlaid(Arc::new(case.lower()))).unwrap();
    Memory::serve(files, Cache::Always)
}

/// Seconds since 1970.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap().as_secs() as i64
}

/// Returns a tree without what two filesystems do not share: times since `start`, and the root, which
/// overlayfs has from the upper directory.
fn shared(mut tree: Tree, start: i64) -> Tree {
    tree.remove(&b""[..]);
    for node in tree.values_mut() {
        if node.mtime.0 >= start {
            node.mtime = (0, 0);
        }
    }
    tree
}

/// Returns what a view says is changed.
fn changes<U: Upper>(view: &mut View<U>) -> BTreeMap<Vec<u8>, ChangeKind> {
    let mut changes = BTreeMap::new();
    let mut joined = Paths::default();
    diff::diff(view, |step| {
        let change = joined.change(step).unwrap();
        let path = change.path.strip_prefix(b"/").unwrap().to_vec();
        assert!(changes.insert(path, change.kind).is_none(), "a path twice");
        Ok::<_, ViewError>(())
    })
    .unwrap();
    changes
}

/// The kernel can rename a directory of the lower, and keep names of one file together.
#[test]
#[ignore = "needs root: mounts filesystems"]
fn the_same_history_leaves_the_same_tree_as_on_overlayfs_and_a_layer_that_makes_it() {
    for seed in 50..58 {
        let case = Case::new(KINDS[seed % 2], seed as u64, 0);
        let disk = Mount::ext4(&case.disk, "rw");
        let kernels = Mount::overlay_with(case.mount_lower(), disk, "redirect_dir=on,index=on");
        let ours = mount(&case);
        let start = now();
        let below = tree::of_directory(ours.path());
        let expected = tree::of_directory(kernels.path());
        let all = i64::MAX;
        assert_same(
            "before",
            &shared(below.clone(), all),
            &shared(expected, all),
        );
        for part in 0..6 {
            let random = || Random(seed as u64 * 1000 + part);
            history::make(kernels.path(), &mut random(), 50);
            history::make(ours.path(), &mut random(), 50);
            // The kernel forgets what is not open.
            mount_remount(ours.path(), MountFlags::empty(), "").unwrap();
        }
        let seen = tree::of_directory(ours.path());
        let expected = shared(tree::of_directory(kernels.path()), start);
        assert_same("after", &shared(seen.clone(), start), &expected);

        let layer = || View::new(Layer::new(&ours.files).unwrap(), case.lower());
        assert_same("view", &tree::of_view(&mut layer()), &seen);
        let changes = changes(&mut layer());
        assert_diff(&changes, &below, &seen);

        let image = case.directory.path().join("saved.erofs");
        micabox_mount::save(
            &ours.files,
            micabox_overlay::host::WholeFile::create(&image).unwrap(),
        )
        .unwrap();
        let mut expected = seen.clone();
        expected.retain(|_, node| node.kind != FileKind::Socket);
        let saved = tree::of_directory(Mount::erofs(&image, &[]).path());
        assert_same("saved", &saved, &expected);

        // Archives can't hold sockets.
        let mut expected = seen;
        expected.retain(|path, node| node.kind != FileKind::Socket || !changes.contains_key(path));
        let archive = case.directory.path().join("layer.tar");
        write_layer(&mut layer(), File::create(&archive).unwrap()).unwrap();
        let converted = case::convert(case.directory.path(), &archive);
        let layers = [Mount::erofs(&converted, &[]), case.mount_lower()];
        let stack = Mount::stack(&layers);
        assert_same("layer", &tree::of_directory(stack.path()), &expected);
    }
}

/// The lower is what a sandbox sees, and the layer is over its image.
#[test]
#[ignore = "needs root: mounts filesystems"]
fn changes_over_those_on_a_disk_are_one_layer_with_them() {
    for seed in 70..76 {
        let case = Case::new(KINDS[seed % 2], seed as u64, 120);
        let image = tree::of_directory(mount(&case).path());
        let disk = view::open(File::open(&case.disk).unwrap()).unwrap();
        let merged = below::merged(Box::new(disk), Arc::new(case.lower())).unwrap();
        let files = Filesystem::over(LIMITS, Arc::clone(&merged) as _).unwrap();
        let ours = Memory::serve(files, Cache::Always);
        for steps in [0, 150] {
            history::make(ours.path(), &mut Random(seed as u64 * 1000), steps);
            mount_remount(ours.path(), MountFlags::empty(), "").unwrap();
            let seen = tree::of_directory(ours.path());
            let layer = || {
                let layer = Layer::with_upper(&ours.files, Arc::clone(&merged));
                View::new(layer.unwrap(), case.lower())
            };
            assert_same("view", &tree::of_view(&mut layer()), &seen);
            let changes = changes(&mut layer());
            if steps == 0 {
                let on_disk = self::changes(&mut case.view());
                assert_eq!(changes, on_disk, "{seed}");
            }
            assert_diff(&changes, &image, &seen);

            let mut expected = seen;
            let is_kept = |path: &[u8]| !changes.contains_key(path);
            expected.retain(|path, node| node.kind != FileKind::Socket || is_kept(path));
            let archive = case.directory.path().join("layer.tar");
            write_layer(&mut layer(), File::create(&archive).unwrap()).unwrap();
            let converted = case::convert(case.directory.path(), &archive);
            let layers = [Mount::erofs(&converted, &[]), case.mount_lower()];
            let stack = Mount::stack(&layers);
            assert_same("layer", &tree::of_directory(stack.path()), &expected);
        }
    }
}

/// Compares changes with the trees before and after.
fn assert_diff(changes: &BTreeMap<Vec<u8>, ChangeKind>, below: &Tree, seen: &Tree) {
    let is_directory = |path: &[u8]| {
        let node = seen.get(path);
        node.is_some_and(|node| node.kind == FileKind::Directory)
    };
    for (path, kind) in changes {
        let expected = match (below.contains_key(path), seen.contains_key(path)) {
            (true, true) => ChangeKind::Changed,
            (true, false) => ChangeKind::Deleted,
            (false, true) => ChangeKind::Added,
            (false, false) => panic!("{}: neither before nor after", path.escape_ascii()),
        };
        assert_eq!(*kind, expected, "{}", path.escape_ascii());
    }
    for path in below
        .keys()
        .chain(seen.keys())
        .filter(|path| !path.is_empty())
    {
        // The entries of a deleted directory are deleted with it.
        let is_told = changes.contains_key(path) || !is_directory(tree::parent(path));
        let of = |tree: &Tree| {
            tree.get(path).map(|node| tree::Node {
                first_name: Vec::new(),
                ..node.clone()
            })
        };
        if !is_told {
            assert_eq!(of(below), of(seen), "{}", path.escape_ascii());
        }
    }
}

/// As in a sandbox: no directory of the lower is renamed, and what the kernel refuses is not done.
#[test]
#[ignore = "needs root: mounts filesystems"]
fn a_diff_is_that_of_what_overlayfs_writes() {
    let mut all = 0;
    for seed in 60..63 {
        let case = Case::new(KINDS[seed % 2], seed as u64, 0);
        let below = tree::of_directory(case.mount_lower().path());
        let kernels = case.mount(&case.disk);
        let ours = mount(&case);
        for step in 0..150 {
            let random = || Random(seed as u64 * 1000 + step);
            let before = tree::of_directory(kernels.path());
            history::make(kernels.path(), &mut random(), 1);
            if tree::of_directory(kernels.path()) != before {
                history::make(ours.path(), &mut random(), 1);
            }
        }
        drop(kernels);
        let expected = changes(&mut case.view());
        let found = changes(&mut View::new(
            Layer::new(&ours.files).unwrap(),
            case.lower(),
        ));
        // A file of the lower with several names: overlayfs changes the one that was used.
        let first = |path: &[u8]| below.get(path).map(|node| node.first_name.clone());
        let is_linked = |path: &[u8]| {
            let names = below.keys().filter(|other| first(other) == first(path));
            first(path).is_some() && names.count() > 1
        };
        for path in found.keys().chain(expected.keys()) {
            let inner = [path, &b"/"[..]].concat();
            let is_in = |name: &Vec<u8>| name == path || name.starts_with(&inner);
            if below.keys().any(|name| is_in(name) && is_linked(name)) {
                continue;
            }
            let (one, other) = (found.get(path), expected.get(path));
            assert_eq!(one, other, "{seed} {}", path.escape_ascii());
            all += 1;
        }
    }
    assert!(all > 50, "{all}");
}
