//! Generates random stacks of layers with many collisions.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::model;
use super::spec::{self, Entry, What};

const NAMES: [&str; 4] = ["+page.svelte", "a", "b", "c"];

/// An operation on a layer; operations without effect there are skipped.
#[derive(Debug, Clone)]
pub struct Op {
    /// Names from a tiny alphabet, at most three deep.
    path: Vec<&'static str>,
    kind: Make,
    /// Varies owner, mode, time and attributes.
    flavour: u8,
}

#[derive(Debug, Clone)]
enum Make {
    Directory {
        opaque: bool,
    },
    File,
    Sparse,
    Symlink,
    Special,
    Whiteout,
    /// A link to another file of the layer, given by its index.
    Link(u8),
    /// A link to a file of the layers below, given by its index.
    LinkToLower(u8),
}

/// Generates up to `layers` layers.
pub fn stacks(layers: usize) -> impl Strategy<Value = Vec<Vec<Op>>> {
    prop::collection::vec(prop::collection::vec(op(), 0..14), 1..=layers)
}

fn op() -> impl Strategy<Value = Op> {
    let path = prop::collection::vec(prop::sample::select(&NAMES[..]), 0..=3);
    let kind = prop_oneof![
        5 => any::<bool>().prop_map(|opaque| Make::Directory { opaque }),
        5 => Just(Make::File),
        1 => Just(Make::Sparse),
        1 => Just(Make::Symlink),
        1 => Just(Make::Special),
        3 => Just(Make::Whiteout),
        1 => any::<u8>().prop_map(Make::Link),
        2 => any::<u8>().prop_map(Make::LinkToLower),
    ];
    (path, kind, any::<u8>()).prop_map(|(path, kind, flavour)| Op {
        path,
        kind,
        flavour,
    })
}

/// Returns the stack with this number, the same in every run.
pub fn numbered(number: u64, layers: usize) -> Vec<Vec<Entry>> {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&number.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    self::layers(&stacks(layers).new_tree(&mut runner).unwrap().current())
}

/// Builds layers from the operations, the lowest first, each with parents before children.
pub fn layers(stack: &[Vec<Op>]) -> Vec<Vec<Entry>> {
    let mut layers: Vec<Vec<Entry>> = Vec::new();
    for ops in stack {
        let lower_files = model::files(&layers);
        let number = layers.len();
        layers.push(layer(ops, &lower_files, number));
    }
    layers
}

fn layer(ops: &[Op], lower_files: &[Vec<u8>], number: usize) -> Vec<Entry> {
    let mut entries: BTreeMap<Vec<u8>, Entry> = BTreeMap::new();
    entries.insert(b"/".to_vec(), spec::implied("/"));
    for op in ops {
        let mut path = b"/".to_vec();
        for (depth, &name) in op.path.iter().enumerate() {
            if depth > 0 {
                entries
                    .entry(path.clone())
                    .or_insert_with(|| spec::implied(&path));
                path.push(b'/');
            }
            path.extend_from_slice(name.as_bytes());
        }
        let Some(entry) = make(op, &path, &entries, lower_files, number) else {
            continue;
        };
        let is_root = path == b"/";
        if is_root && !matches!(entry.what, What::Directory) {
            continue;
        }
        entries.insert(path, entry);
    }
    settle(entries)
}

fn make(
    op: &Op,
    path: &[u8],
    entries: &BTreeMap<Vec<u8>, Entry>,
    lower_files: &[Vec<u8>],
    number: usize,
) -> Option<Entry> {
    let pick = |from: &[Vec<u8>], index: u8| {
        let index = usize::from(index).checked_rem(from.len())?;
        from.get(index).cloned()
    };
    let entry = match &op.kind {
        Make::Directory { opaque } => {
            let directory = match op.flavour % 4 {
                0 => spec::implied(path),
                _ => spec::directory(path),
            };
            // Only overlayfs ignores the marker on the root; see `Merge::first_layer`.
            if *opaque && op.flavour.is_multiple_of(3) && path != b"/" {
                directory.opaque()
            } else {
                directory
            }
        }
        Make::File => {
            let length = usize::from(op.flavour) * 37;
            spec::file(
                path,
                [&[number as u8, op.flavour][..], &vec![b'x'; length]].concat(),
            )
        }
        Make::Sparse => {
            let parts = vec![(0, vec![op.flavour | 1; 10]), (20_000, vec![7; 4096])];
            let content = spec::Content::Sparse(50_000, parts);
            spec::entry(path, spec::meta(0o600), What::File(content))
        }
        Make::Symlink => spec::symlink(path, [b't', number as u8 + 1]),
        Make::Special => match op.flavour % 3 {
            0 => spec::entry(path, spec::meta(0o600), What::Fifo),
            1 => spec::entry(path, spec::meta(0o600), What::Char(1, 3)),
            _ => spec::entry(path, spec::meta(0o600), What::Socket),
        },
        Make::Whiteout => return Some(spec::whiteout(path)),
        Make::Link(index) => {
            let files: Vec<Vec<u8>> = entries
                .values()
                .filter(|e| matches!(e.what, What::File(_) | What::LinkToLower(_)))
                .map(|e| e.path.clone())
                .collect();
            return Some(spec::hard_link(path, pick(&files, *index)?));
        }
        Make::LinkToLower(index) => spec::link_to_lower(path, pick(lower_files, *index)?),
    };
    // An implied directory has no attributes of its own.
    let implied = entry.meta == spec::implied("/").meta || {
        let bare = entry.meta.xattrs.first();
        bare.is_some_and(|x| &*x.name == micabox_erofs::overlay::IMPLIED)
    };
    Some(if implied {
        entry
    } else {
        flavoured(entry, op.flavour)
    })
}

fn flavoured(entry: Entry, flavour: u8) -> Entry {
    let mut entry = entry.owner(u32::from(flavour) * 1000, u32::from(flavour & 3));
    if flavour & 1 == 0 {
        entry = entry.mtime(i64::from(flavour) - 100, u32::from(flavour));
    }
    if flavour & 4 == 0 {
        entry = entry.xattr("trusted.t", [flavour]);
    }
    if flavour & 8 == 0 {
        entry = entry.xattr("trusted.overlay.overlay.x", "escaped");
    }
    if flavour & 16 == 0 {
        entry = entry.mode(u16::from(flavour) * 8 + 0o004);
    }
    entry
}

/// Drops entries below anything that is not a directory and links to missing targets, and moves
/// links to the end.
fn settle(mut entries: BTreeMap<Vec<u8>, Entry>) -> Vec<Entry> {
    loop {
        let bad: Vec<Vec<u8>> = entries
            .values()
            .filter(|entry| {
                let parent = entries.get(spec::split(&entry.path).0);
                let orphan = parent.is_none_or(|p| !matches!(p.what, What::Directory));
                let dangling = match &entry.what {
                    What::HardLink(target) => !entries
                        .get(target)
                        .is_some_and(|t| matches!(t.what, What::File(_) | What::LinkToLower(_))),
                    _ => false,
                };
                orphan || dangling
            })
            .map(|entry| entry.path.clone())
            .collect();
        if bad.is_empty() {
            break;
        }
        for path in bad {
            entries.remove(&path);
        }
    }
    let (links, mut others): (Vec<Entry>, Vec<Entry>) = entries
        .into_values()
        .partition(|entry| matches!(entry.what, What::HardLink(_)));
    others.extend(links);
    others
}
