//! Models what a stack of layers must look like: a second implementation of overlayfs's rules, from
//! the top of the stack and path by path, independent of the merge's algorithm.

use std::collections::{BTreeMap, BTreeSet};

use micabox_erofs::format::FileType;
use micabox_erofs::{Metadata, overlay};

use super::snapshot::{Node, Snapshot};
use super::spec::{self, Entry, What};

/// A layer's entries by path. The root is always there.
type Layer = BTreeMap<Vec<u8>, Item>;

#[derive(Debug, Clone)]
struct Item {
    entry: Entry,
    /// Identity of the inode: a layer's number and the path of the first name.
    inode: (usize, Vec<u8>),
    nlink: u32,
}

/// Something visible in the merged view.
#[derive(Debug, Clone)]
enum Seen {
    File(Item),
    /// The metadata, and the layers that have the directory, the top one first.
    Directory(Metadata, Vec<usize>),
}

/// Returns the view of the stacked layers, which are given lowest first.
pub fn view(layers: &[Vec<Entry>]) -> Snapshot {
    let mut stack: Vec<Layer> = Vec::new();
    for (number, entries) in layers.iter().enumerate() {
        let layer = with_links_made(&stack, number, entries);
        stack.push(layer);
    }
    let mut seen = BTreeMap::new();
    look(&stack, b"/", &mut seen);

    // Visible names of an inode; the first of them identifies it.
    let mut first_names: BTreeMap<(usize, Vec<u8>), Vec<u8>> = BTreeMap::new();
    for (path, what) in &seen {
        if let Seen::File(item) = what {
            first_names
                .entry(item.inode.clone())
                .or_insert_with(|| path.clone());
        }
    }
    let subdirectories = |path: &[u8]| {
        let below = |other: &[u8]| other != b"/" && spec::split(other).0 == path;
        seen.iter()
            .filter(|(other, what)| matches!(what, Seen::Directory(..)) && below(other))
            .count() as u32
    };
    seen.iter()
        .map(|(path, what)| {
            let mut node = match what {
                Seen::File(item) => {
                    spec::node(&item.entry, item.nlink, first_names[&item.inode].clone(), 0)
                }
                Seen::Directory(meta, _) => spec::node(
                    &spec::entry(path, meta.clone(), What::Directory),
                    0,
                    path.clone(),
                    subdirectories(path),
                ),
            };
            node.xattrs.retain(|name, _| !overlay::is_marker(name));
            (path.clone(), node)
        })
        .collect::<BTreeMap<Vec<u8>, Node>>()
}

/// Returns overlayfs's view of directory trees, the topmost first, that may have its markers but
/// none of Micabox's. Link counts of directories are 1, as in overlayfs for merged ones.
pub fn overlay(stack: &[Snapshot]) -> Snapshot {
    let mut result = Snapshot::new();
    let all: Vec<usize> = (0..stack.len()).collect();
    let mut first_names = BTreeMap::new();
    overlay_directory(stack, b"/", &all, &mut first_names, &mut result);
    result
}

fn overlay_directory(
    stack: &[Snapshot],
    path: &[u8],
    trees: &[usize],
    first_names: &mut BTreeMap<(usize, Vec<u8>), Vec<u8>>,
    result: &mut Snapshot,
) {
    let mut node = stack[trees[0]][path].clone();
    node.xattrs.retain(|name, _| !overlay::is_marker(name));
    node.nlink = 1;
    result.insert(path.to_vec(), node);
    let children: BTreeSet<&Vec<u8>> = trees
        .iter()
        .flat_map(|&tree| stack[tree].keys())
        .filter(|other| *other != b"/" && spec::split(other).0 == path)
        .collect();
    for child in children {
        let mut directories = Vec::new();
        for &tree in trees {
            let Some(node) = stack[tree].get(child) else {
                continue;
            };
            let whiteout = node.kind == FileType::CharDevice && node.device == (0, 0);
            if whiteout || (node.kind != FileType::Directory && !directories.is_empty()) {
                break;
            }
            if node.kind != FileType::Directory {
                let mut node = node.clone();
                node.xattrs.retain(|name, _| !overlay::is_marker(name));
                node.first_name = first_names
                    .entry((tree, node.first_name))
                    .or_insert_with(|| child.clone())
                    .clone();
                result.insert(child.clone(), node);
                break;
            }
            directories.push(tree);
            if node.xattrs.get(overlay::OPAQUE).is_some_and(|v| v == b"y") {
                break;
            }
        }
        if !directories.is_empty() {
            overlay_directory(stack, child, &directories, first_names, result);
        }
    }
}

/// Returns the paths of everything visible except directories.
pub fn files(layers: &[Vec<Entry>]) -> Vec<Vec<u8>> {
    view(layers)
        .into_iter()
        .filter(|(_, node)| node.kind != FileType::Directory)
        .map(|(path, _)| path)
        .collect()
}

fn is_marked(item: &Item, name: &[u8]) -> bool {
    item.entry.meta.xattrs.iter().any(|x| &*x.name == name)
}

/// Adds everything visible at and below `path` to `seen`.
fn look(stack: &[Layer], path: &[u8], seen: &mut BTreeMap<Vec<u8>, Seen>) {
    let Some(what) = look_up(stack, path) else {
        return;
    };
    seen.insert(path.to_vec(), what.clone());
    let Seen::Directory(_, layers) = what else {
        return;
    };
    let mut children = BTreeSet::new();
    for &layer in &layers {
        for other in stack[layer].keys() {
            if other != b"/" && spec::split(other).0 == path {
                children.insert(other.clone());
            }
        }
    }
    for child in children {
        look(stack, &child, seen);
    }
}

/// Returns what is visible at `path`.
fn look_up(stack: &[Layer], path: &[u8]) -> Option<Seen> {
    // The layers to search: those that take part in the parent directory.
    let layers = if path == b"/" {
        (0..stack.len()).rev().collect()
    } else {
        match look_up(stack, spec::split(path).0)? {
            Seen::Directory(_, layers) => layers,
            Seen::File(_) => return None,
        }
    };
    let mut found: Vec<usize> = Vec::new();
    for layer in layers {
        let Some(item) = stack[layer].get(path) else {
            continue;
        };
        match item.entry.what {
            What::Directory => {
                found.push(layer);
                if is_marked(item, overlay::OPAQUE) {
                    break;
                }
            }
            What::Whiteout => break,
            _ if found.is_empty() => return Some(Seen::File(item.clone())),
            _ => break,
        }
    }
    if found.is_empty() {
        return None;
    }
    // The attributes are those of the topmost directory that has its own. An opaque directory
    // without its own still had the one below when its layer was made.
    let mut candidates = found.clone();
    if let Some(&last) = found.last()
        && is_marked(&stack[last][path], overlay::OPAQUE)
        && is_marked(&stack[last][path], overlay::IMPLIED)
        && let Some(Seen::Directory(meta, _)) = look_up(&stack[..last], path)
        && parent_is_shared(stack, path, last)
    {
        let own = candidates
            .iter()
            .find(|&&layer| !is_marked(&stack[layer][path], overlay::IMPLIED));
        let meta = own.map_or(meta, |&layer| stack[layer][path].entry.meta.clone());
        return Some(Seen::Directory(meta, found));
    }
    candidates.retain(|&layer| !is_marked(&stack[layer][path], overlay::IMPLIED));
    let top = candidates.first().or(found.last());
    let meta = top.map(|&layer| stack[layer][path].entry.meta.clone())?;
    Some(Seen::Directory(meta, found))
}

/// Whether a directory's parent in this layer lets lower layers through.
fn parent_is_shared(stack: &[Layer], path: &[u8], layer: usize) -> bool {
    if path == b"/" {
        return true;
    }
    let parent = spec::split(path).0;
    !is_marked(&stack[layer][parent], overlay::OPAQUE) && parent_is_shared(stack, parent, layer)
}

/// Returns a layer with its links to lower layers created, as if by `ln` on a writable overlay of
/// the layers below, whose upper directory was then kept.
fn with_links_made(below: &[Layer], number: usize, entries: &[Entry]) -> Layer {
    let mut layer = Layer::new();
    let mut links = Vec::new();
    layer.insert(
        b"/".to_vec(),
        Item {
            entry: spec::directory("/"),
            inode: (number, b"/".to_vec()),
            nlink: 0,
        },
    );
    for entry in entries {
        match &entry.what {
            What::LinkToLower(_) => links.push(entry.clone()),
            What::HardLink(target) => {
                if let Some(link) = links.iter().find(|link| link.path == *target) {
                    let mut link = link.clone();
                    link.path = entry.path.clone();
                    links.push(link);
                } else {
                    let item = layer[target].clone();
                    layer.insert(entry.path.clone(), item);
                }
            }
            _ => {
                let item = Item {
                    entry: entry.clone(),
                    inode: (number, entry.path.clone()),
                    nlink: 0,
                };
                layer.insert(entry.path.clone(), item);
            }
        }
    }

    // The attributes are those of the link that is last when all names are in order.
    links.sort_by(|a, b| {
        let names = |path: &[u8]| {
            path.split(|&b| b == b'/')
                .map(<[u8]>::to_vec)
                .collect::<Vec<_>>()
        };
        names(&a.path).cmp(&names(&b.path))
    });
    let mut by_target: BTreeMap<Vec<u8>, Vec<Entry>> = BTreeMap::new();
    for link in links {
        let What::LinkToLower(target) = &link.what else {
            continue;
        };
        by_target.entry(target.clone()).or_default().push(link);
    }
    // Their names are taken: anything below them is hidden.
    let mut hiding = layer.clone();
    for link in by_target.values().flatten() {
        let item = Item {
            entry: spec::whiteout(&link.path),
            inode: (number, link.path.clone()),
            nlink: 0,
        };
        hiding.insert(link.path.clone(), item);
    }
    for (target, links) in by_target {
        let Some(Seen::File(original)) = look_up(below, &target) else {
            panic!("a link to nothing");
        };
        let mut stack = below.to_vec();
        stack.push(hiding.clone());
        let untouched = match look_up(&stack, &target) {
            Some(Seen::File(item)) => item.inode == original.inode,
            _ => false,
        };
        let mut entry = original.entry.clone();
        entry.meta = links.last().unwrap().meta.clone();
        if matches!(entry.what, What::Symlink(_)) {
            // Linux has no other mode for a symbolic link (symlink(7)).
            entry.meta.mode = 0o777;
        }
        for xattr in &original.entry.meta.xattrs {
            if entry.meta.xattrs.iter().all(|x| x.name != xattr.name) {
                entry.meta.xattrs.push(xattr.clone());
            }
        }
        let item = Item {
            entry,
            inode: (number, [b"link to ", &target[..]].concat()),
            nlink: 0,
        };
        for link in links {
            layer.insert(link.path, item.clone());
        }
        if untouched {
            let mut parent = spec::split(&target).0;
            while !layer.contains_key(parent) {
                layer.insert(
                    parent.to_vec(),
                    Item {
                        entry: spec::implied(parent),
                        inode: (number, parent.to_vec()),
                        nlink: 0,
                    },
                );
                parent = spec::split(parent).0;
            }
            layer.insert(target, item);
        }
    }

    let mut counts: BTreeMap<(usize, Vec<u8>), u32> = BTreeMap::new();
    for item in layer.values() {
        *counts.entry(item.inode.clone()).or_default() += 1;
    }
    for item in layer.values_mut() {
        item.nlink = counts[&item.inode];
    }
    layer
}
