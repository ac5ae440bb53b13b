//! Reads a directory tree from the kernel, to compare it with another one.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use micabox_image::Digest;

/// Everything about a file that a user could observe.
#[derive(Clone, PartialEq, Eq)]
pub struct Node {
    pub kind: char,
    pub mode: u32,
    pub owner: (u32, u32),
    pub mtime: (i64, i64),
    pub size: u64,
    pub links: u64,
    pub device: u64,
    pub xattrs: BTreeMap<String, Vec<u8>>,
    /// A file's digest, or a symbolic link's target.
    pub contents: String,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}{:o} {:?} {}.{:09} {}B nlink={} dev={:x} {} {:?}",
            self.kind,
            self.mode,
            self.owner,
            self.mtime.0,
            self.mtime.1,
            self.size,
            self.links,
            self.device,
            self.contents,
            self.xattrs
        )
    }
}

/// Returns every file below `root` by its path.
pub fn read(root: &Path) -> BTreeMap<Vec<u8>, Node> {
    let mut nodes = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(path) = pending.pop() {
        let node = node(&path);
        if node.kind == 'd' {
            pending.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        }
        let name = path
            .strip_prefix(root)
            .unwrap()
            .as_os_str()
            .as_bytes()
            .to_vec();
        nodes.insert(name, node);
    }
    nodes
}

fn node(path: &Path) -> Node {
    let metadata = fs::symlink_metadata(path).unwrap();
    let kind = metadata.file_type();
    let (kind, contents) = if kind.is_dir() {
        ('d', String::new())
    } else if kind.is_file() {
        ('f', Digest::of(&fs::read(path).unwrap()).hex())
    } else if kind.is_symlink() {
        let target = fs::read_link(path).unwrap();
        (
            'l',
            target.as_os_str().as_bytes().escape_ascii().to_string(),
        )
    } else if kind.is_char_device() {
        ('c', String::new())
    } else if kind.is_block_device() {
        ('b', String::new())
    } else if kind.is_fifo() {
        ('p', String::new())
    } else {
        ('s', String::new())
    };
    Node {
        kind,
        mode: metadata.mode() & 0o7777,
        owner: (metadata.uid(), metadata.gid()),
        mtime: (metadata.mtime(), metadata.mtime_nsec()),
        // A directory's size depends on the filesystem.
        size: if kind == 'd' { 0 } else { metadata.size() },
        links: metadata.nlink(),
        device: if matches!(kind, 'c' | 'b') {
            metadata.rdev()
        } else {
            0
        },
        xattrs: xattrs(path),
        contents,
    }
}

fn xattrs(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut names = vec![0; 1 << 16];
    let length = rustix::fs::llistxattr(path, &mut names).unwrap();
    names[..length]
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| {
            let name = String::from_utf8(name.to_vec()).unwrap();
            let mut value = vec![0; 1 << 16];
            let length = rustix::fs::lgetxattr(path, &name, &mut value).unwrap();
            value.truncate(length);
            (name, value)
        })
        .collect()
}
