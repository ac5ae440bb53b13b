//! A whole tree by value: everything that a program in a sandbox could see.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use micabox_ext4::FileKind;
use micabox_overlay::upper::Upper;
use micabox_overlay::view::{Entry, View};
use micabox_overlay::walk::{Scope, Walk};
use micabox_overlay::words::{ESCAPED_PREFIX, is_marker, unescape_xattr_name};

/// A file at a path, with its attributes and contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub kind: FileKind,
    pub mode: u32,
    pub owner: (u32, u32),
    pub mtime: (i64, u32),
    pub device: (u32, u32),
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// A file's contents, or a link's target.
    pub content: Vec<u8>,
    /// The first path of the same inode; for a directory, its own path.
    pub first_name: Vec<u8>,
}

/// Nodes by path without a leading slash; the root's path is empty.
pub type Tree = BTreeMap<Vec<u8>, Node>;

/// Reads the tree that the kernel shows.
pub fn of_directory(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut inodes = HashMap::new();
    let mut rest = vec![Vec::new()];
    while let Some(path) = rest.pop() {
        let real = root.join(std::ffi::OsStr::from_bytes(&path));
        let stat = real.symlink_metadata().unwrap();
        let file_type = stat.file_type();
        let kind = match file_type {
            kind if kind.is_dir() => FileKind::Directory,
            kind if kind.is_file() => FileKind::File,
            kind if kind.is_symlink() => FileKind::Symlink,
            kind if kind.is_char_device() => FileKind::CharDevice,
            kind if kind.is_block_device() => FileKind::BlockDevice,
            kind if kind.is_fifo() => FileKind::Fifo,
            _ => FileKind::Socket,
        };
        let mut node = Node {
            kind,
            mode: stat.mode() & 0o7777,
            owner: (stat.uid(), stat.gid()),
            mtime: (stat.mtime(), stat.mtime_nsec() as u32),
            device: (0, 0),
            xattrs: xattrs(&real),
            content: Vec::new(),
            first_name: path.clone(),
        };
        match kind {
            FileKind::Directory => {
                let entries = fs::read_dir(&real).unwrap();
                rest.extend(entries.map(|entry| {
                    let name = entry.unwrap().file_name();
                    join(&path, name.as_bytes())
                }));
            }
            FileKind::File => node.content = fs::read(&real).unwrap(),
            FileKind::Symlink => {
                node.content = real.read_link().unwrap().into_os_string().into_vec();
            }
            FileKind::CharDevice | FileKind::BlockDevice => {
                let device = stat.rdev();
                node.device = (rustix::fs::major(device), rustix::fs::minor(device));
            }
            _ => {}
        }
        if kind != FileKind::Directory {
            let names: &mut Vec<Vec<u8>> = inodes.entry((stat.dev(), stat.ino())).or_default();
            names.push(path.clone());
        }
        tree.insert(path, node);
    }
    name_links(&mut tree, inodes.into_values());
    tree
}

/// Reads the tree that this crate's view shows.
pub fn of_view<U: Upper>(view: &mut View<U>) -> Tree {
    let mut tree = Tree::new();
    let mut inodes: HashMap<_, Vec<Vec<u8>>> = HashMap::new();
    let root = view.root().unwrap();
    let entry = view.entry(&root).unwrap();
    tree.insert(Vec::new(), node_of(view, b"", &entry));
    let mut walk = Walk::new(Scope::Seen, root, b"");
    while let Some(step) = walk.next(view).unwrap() {
        assert!(!step.again);
        let entry = step.slot.seen().unwrap();
        let node = node_of(view, walk.path(), &entry);
        if let Some(file) = entry.linked().filter(|_| node.kind != FileKind::Directory) {
            inodes.entry(file).or_default().push(walk.path().to_vec());
        }
        let before = tree.insert(walk.path().to_vec(), node);
        assert!(before.is_none(), "a name twice");
    }
    name_links(&mut tree, inodes.into_values());
    tree
}

fn node_of<U: Upper>(view: &mut View<U>, path: &[u8], entry: &Entry) -> Node {
    let kind = entry.kind().unwrap();
    let owner = entry.owner();
    let xattrs = view.xattrs(entry).unwrap().into_iter();
    let xattrs = xattrs.filter(|(name, _)| !is_marker(name));
    let content = match kind {
        FileKind::File => {
            let mut content = vec![0; entry.size() as usize];
            // Holes read as zeros, and are not part of the segments.
            for segment in view.segments(entry).unwrap() {
                let range = segment.offset as usize..content.len().min(segment.end() as usize);
                let piece = &mut content[range];
                assert_eq!(
                    view.read(entry, segment.offset, piece).unwrap(),
                    piece.len()
                );
            }
            content
        }
        FileKind::Symlink => view.read_link(entry).unwrap(),
        _ => Vec::new(),
    };
    Node {
        kind,
        mode: match kind {
            // Whatever the image has: Linux ignores a link's permissions.
            FileKind::Symlink => 0o777,
            _ => owner.permissions.into(),
        },
        owner: (owner.uid, owner.gid),
        mtime: (entry.mtime().seconds, entry.mtime().nanos),
        device: match kind {
            FileKind::CharDevice | FileKind::BlockDevice => entry.device(),
            _ => (0, 0),
        },
        xattrs: xattrs
            .map(|(name, value)| {
                if name.starts_with(ESCAPED_PREFIX) {
                    (unescape_xattr_name(&name).into(), value)
                } else {
                    (name, value)
                }
            })
            .collect(),
        content,
        first_name: path.to_vec(),
    }
}

fn name_links(tree: &mut Tree, inodes: impl Iterator<Item = Vec<Vec<u8>>>) {
    for names in inodes {
        let first = names.iter().min().unwrap();
        for name in &names {
            tree.get_mut(name).unwrap().first_name = first.clone();
        }
    }
}

/// Joins a directory's path and a name.
pub fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    match directory {
        b"" => name.to_vec(),
        _ => [directory, b"/", name].concat(),
    }
}

/// Returns the parent of a path.
pub fn parent(path: &[u8]) -> &[u8] {
    let slash = path.iter().rposition(|byte| *byte == b'/');
    &path[..slash.unwrap_or(0)]
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 4096];
    let length = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    let names = names[..length].split(|&byte| byte == 0);
    let names = names.filter(|name| !name.is_empty());
    names
        .map(|name| {
            let mut value = vec![0; 65536];
            let length = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
            value.truncate(length);
            (name.to_vec(), value)
        })
        .collect()
}

/// Panics with all differences between two trees.
#[track_caller]
pub fn assert_same(what: &str, left: &Tree, right: &Tree) {
    let mut report = String::new();
    let mut paths: Vec<_> = left.keys().chain(right.keys()).collect();
    paths.sort();
    paths.dedup();
    for path in paths {
        let (one, other) = (left.get(path), right.get(path));
        if one != other {
            let show = |node: Option<&Node>| {
                let short = |mut node: Node| {
                    node.content.truncate(16);
                    node
                };
                node.cloned().map(short)
            };
            let name = path.escape_ascii();
            let _ = writeln!(report, "/{name}:\n  {:?}\n  {:?}", show(one), show(other));
        }
    }
    assert!(report.is_empty(), "{what}: the trees differ\n{report}");
}
