//! Descriptions of trees, to write them as images and to know the expected result.

use std::collections::{BTreeMap, HashMap};
use std::io::{Cursor, Read, Seek, Write};

use micabox_erofs::format::{self, FileType};
use micabox_erofs::{
    InodeId, Kind, Metadata, Options, Segment, Summary, Timestamp, Tree, Writer, Xattr, overlay,
};

use super::snapshot::{ContentHash, Node, Snapshot};

/// A file's contents.
#[derive(Debug, Clone)]
pub enum Content {
    Bytes(Vec<u8>),
    /// A size and the parts that are not holes.
    Sparse(u64, Vec<(u64, Vec<u8>)>),
}

/// The type of an entry.
#[derive(Debug, Clone)]
pub enum What {
    Directory,
    File(Content),
    Symlink(Vec<u8>),
    Char(u32, u32),
    Block(u32, u32),
    Fifo,
    Socket,
    /// Another name of the inode at this path, whose entry comes first.
    HardLink(Vec<u8>),
    /// Hides the name in lower layers.
    Whiteout,
    /// Another name of the file at this path in a lower layer.
    LinkToLower(Vec<u8>),
}

/// An entry of a tree; parents come first.
#[derive(Debug, Clone)]
pub struct Entry {
    pub path: Vec<u8>,
    pub meta: Metadata,
    pub what: What,
}

/// Returns plain metadata: owned by root, a fixed time, no attributes.
pub fn meta(mode: u16) -> Metadata {
    Metadata {
        mode,
        uid: 0,
        gid: 0,
        mtime: Timestamp {
            seconds: 1_700_000_000,
            nanos: 0,
        },
        xattrs: Vec::new(),
    }
}

pub fn entry(path: impl AsRef<[u8]>, meta: Metadata, what: What) -> Entry {
    Entry {
        path: path.as_ref().to_vec(),
        meta,
        what,
    }
}

pub fn directory(path: impl AsRef<[u8]>) -> Entry {
    entry(path, meta(0o755), What::Directory)
}

pub fn file(path: impl AsRef<[u8]>, content: impl AsRef<[u8]>) -> Entry {
    let content = Content::Bytes(content.as_ref().to_vec());
    entry(path, meta(0o644), What::File(content))
}

pub fn symlink(path: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Entry {
    entry(path, meta(0o777), What::Symlink(target.as_ref().to_vec()))
}

pub fn hard_link(path: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Entry {
    entry(path, meta(0o644), What::HardLink(target.as_ref().to_vec()))
}

pub fn whiteout(path: impl AsRef<[u8]>) -> Entry {
    entry(path, meta(0), What::Whiteout)
}

pub fn link_to_lower(path: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Entry {
    let target = target.as_ref().to_vec();
    entry(path, meta(0o640), What::LinkToLower(target))
}

/// Returns a directory that exists only for something inside.
pub fn implied(path: impl AsRef<[u8]>) -> Entry {
    entry(path, overlay::implied_directory(), What::Directory)
}

impl Entry {
    /// Hides everything that lower layers have in this directory.
    pub fn opaque(self) -> Self {
        self.xattr("trusted.overlay.opaque", "y")
    }

    pub fn xattr(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.meta
            .xattrs
            .push(Xattr::new(name.as_bytes(), value.as_ref()));
        self
    }

    pub fn mode(mut self, mode: u16) -> Self {
        self.meta.mode = mode;
        self
    }

    pub fn owner(mut self, uid: u32, gid: u32) -> Self {
        (self.meta.uid, self.meta.gid) = (uid, gid);
        self
    }

    pub fn mtime(mut self, seconds: i64, nanos: u32) -> Self {
        self.meta.mtime = Timestamp { seconds, nanos };
        self
    }
}

/// Returns the directory and the last name of an absolute path.
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let slash = path.iter().rposition(|&byte| byte == b'/').unwrap();
    (&path[..slash.max(1)], &path[slash + 1..])
}

pub fn lookup(tree: &Tree, path: &[u8]) -> Option<InodeId> {
    path.split(|&byte| byte == b'/')
        .filter(|name| !name.is_empty())
        .try_fold(tree.root(), |dir, name| tree.lookup(dir, name))
}

/// Writes the entries as an image.
pub fn write<W: Write + Seek>(out: W, uuid: [u8; 16], entries: &[Entry]) -> (W, Summary) {
    let root = match entries.first() {
        Some(first) if first.path == b"/" => first.meta.clone(),
        _ => meta(0o755),
    };
    let mut writer = Writer::new(out, Options { uuid, root }).unwrap();
    for entry in entries.iter().filter(|entry| entry.path != b"/") {
        add(&mut writer, entry);
    }
    writer.finish().unwrap()
}

/// Writes the entries as an image in memory.
pub fn image(entries: &[Entry]) -> Vec<u8> {
    write(Cursor::new(Vec::new()), [0x11; 16], entries)
        .0
        .into_inner()
}

pub fn add<W: Write + Seek>(writer: &mut Writer<W>, entry: &Entry) {
    let kind = match &entry.what {
        What::Directory => Kind::directory(),
        What::File(Content::Bytes(bytes)) => Kind::File {
            size: bytes.len() as u64,
            data: writer.body(bytes.len() as u64, &mut &bytes[..]).unwrap(),
        },
        What::File(Content::Sparse(size, parts)) => {
            let segments: Vec<_> = parts
                .iter()
                .map(|(offset, bytes)| Segment {
                    offset: *offset,
                    length: bytes.len() as u64,
                })
                .collect();
            let mut bytes: Box<dyn Read> = Box::new(std::io::empty());
            for (_, part) in parts {
                bytes = Box::new(bytes.chain(&part[..]));
            }
            Kind::File {
                size: *size,
                data: writer.sparse_body(*size, &segments, &mut bytes).unwrap(),
            }
        }
        What::Symlink(target) => Kind::Symlink(target.clone().into()),
        What::Char(major, minor) => {
            Kind::CharDevice(format::encode_device(*major, *minor).unwrap())
        }
        What::Block(major, minor) => {
            Kind::BlockDevice(format::encode_device(*major, *minor).unwrap())
        }
        What::Fifo => Kind::Fifo,
        What::Socket => Kind::Socket,
        What::Whiteout => {
            let (parent, name) = split(&entry.path);
            let tree = writer.tree();
            let parent = lookup(tree, parent).expect("the parent directory");
            overlay::add_whiteout(tree, parent, name).unwrap();
            return;
        }
        What::LinkToLower(target) => {
            let (parent, name) = split(&entry.path);
            let tree = writer.tree();
            let parent = lookup(tree, parent).expect("the parent directory");
            let (meta, kind) = overlay::link_to_lower(entry.meta.clone(), target);
            let link = tree.add(meta, kind);
            tree.link(parent, name, link).unwrap();
            return;
        }
        What::HardLink(target) => {
            let (parent, name) = split(&entry.path);
            let tree = writer.tree();
            let target = lookup(tree, target).expect("the link's target");
            let parent = lookup(tree, parent).expect("the parent directory");
            tree.link(parent, name, target).unwrap();
            return;
        }
    };
    let (parent, name) = split(&entry.path);
    let tree = writer.tree();
    let parent = lookup(tree, parent).expect("the parent directory");
    let inode = tree.add(entry.meta.clone(), kind);
    tree.link(parent, name, inode).unwrap();
}

/// Returns the expected snapshot of the entries.
pub fn expected(entries: &[Entry]) -> Snapshot {
    let mut with_root = entries.to_vec();
    if entries.first().is_none_or(|first| first.path != b"/") {
        with_root.insert(0, directory("/"));
    }
    // The last entry for a path wins.
    let by_path: BTreeMap<Vec<u8>, Entry> = with_root
        .iter()
        .map(|entry| (entry.path.clone(), entry.clone()))
        .collect();
    let inode_of = |entry: &Entry| -> Vec<u8> {
        let mut path = entry.path.clone();
        while let What::HardLink(target) = &by_path[&path].what {
            path = target.clone();
        }
        path
    };
    let mut names: HashMap<Vec<u8>, (u32, Vec<u8>)> = HashMap::new();
    let mut subdirectories: HashMap<Vec<u8>, u32> = HashMap::new();
    for (path, entry) in &by_path {
        let (count, _) = names
            .entry(inode_of(entry))
            .or_insert_with(|| (0, path.clone()));
        *count += 1;
        if matches!(entry.what, What::Directory) && path != b"/" {
            *subdirectories.entry(split(path).0.to_vec()).or_default() += 1;
        }
    }
    by_path
        .iter()
        .map(|(path, entry)| {
            let inode_path = inode_of(entry);
            let inode = &by_path[&inode_path];
            let (count, first_name) = names[&inode_path].clone();
            (
                path.clone(),
                node(
                    inode,
                    count,
                    first_name,
                    subdirectories.get(path).copied().unwrap_or(0),
                ),
            )
        })
        .collect()
}

/// Returns the node of an entry with this many names, or subdirectories if it is a directory.
pub fn node(entry: &Entry, names: u32, first_name: Vec<u8>, subdirectories: u32) -> Node {
    let (kind, size, device, content) = match &entry.what {
        What::Directory => (FileType::Directory, 0, (0, 0), Vec::new()),
        What::File(content) => {
            let (size, content) = hash(content);
            (FileType::Regular, size, (0, 0), content)
        }
        What::Symlink(target) => (
            FileType::Symlink,
            target.len() as u64,
            (0, 0),
            target.clone(),
        ),
        What::Char(major, minor) => (FileType::CharDevice, 0, (*major, *minor), Vec::new()),
        What::Block(major, minor) => (FileType::BlockDevice, 0, (*major, *minor), Vec::new()),
        What::Fifo => (FileType::Fifo, 0, (0, 0), Vec::new()),
        What::Socket => (FileType::Socket, 0, (0, 0), Vec::new()),
        What::HardLink(_) => unreachable!("links were followed"),
        What::Whiteout | What::LinkToLower(_) => unreachable!("a layer's, not a tree's"),
    };
    Node {
        kind,
        mode: u32::from(entry.meta.mode),
        uid: entry.meta.uid,
        gid: entry.meta.gid,
        mtime: (entry.meta.mtime.seconds, entry.meta.mtime.nanos),
        size,
        nlink: match kind {
            FileType::Directory => 2 + subdirectories,
            _ => names,
        },
        device,
        xattrs: entry
            .meta
            .xattrs
            .iter()
            .map(|x| (x.name.to_vec(), x.value.to_vec()))
            .collect(),
        content,
        first_name,
    }
}

/// Returns the size and the hash of contents.
fn hash(content: &Content) -> (u64, Vec<u8>) {
    let mut hash = ContentHash::default();
    let size = match content {
        Content::Bytes(bytes) => {
            hash.add(0, bytes);
            bytes.len() as u64
        }
        Content::Sparse(size, parts) => {
            let mut blocks: BTreeMap<u64, [u8; 4096]> = BTreeMap::new();
            for (offset, bytes) in parts {
                for (index, &byte) in bytes.iter().enumerate() {
                    let at = offset + index as u64;
                    let block = blocks.entry(at / 4096 * 4096).or_insert([0; 4096]);
                    block[(at % 4096) as usize] = byte;
                }
            }
            for (offset, block) in &blocks {
                hash.add(*offset, block);
            }
            *size
        }
    };
    (size, hash.finish())
}
