//! Records a whole tree by value: everything that a program could see of it.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use micabox_erofs::format::{self, FileType};
use micabox_erofs::{ReadAt, Reader};
use sha2::{Digest, Sha256};

/// One name and its inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub kind: FileType,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: (i64, u32),
    /// 0 for directories: filesystems differ.
    pub size: u64,
    pub nlink: u32,
    pub device: (u32, u32),
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// A hash of a file's contents, a link's target.
    pub content: Vec<u8>,
    /// The first path of the same inode; the node's own for directories.
    pub first_name: Vec<u8>,
}

impl std::fmt::Display for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:?} {:04o} {}:{} {}.{:09} size {} links {} device {:?} first name {} content {}",
            self.kind,
            self.mode,
            self.uid,
            self.gid,
            self.mtime.0,
            self.mtime.1,
            self.size,
            self.nlink,
            self.device,
            self.first_name.escape_ascii(),
            self.content[..self.content.len().min(8)].escape_ascii(),
        )?;
        for (name, value) in &self.xattrs {
            let value = &value[..value.len().min(40)];
            write!(f, " {}={}", name.escape_ascii(), value.escape_ascii())?;
        }
        Ok(())
    }
}

/// Nodes by absolute path; `/` is the root.
pub type Snapshot = BTreeMap<Vec<u8>, Node>;

/// Reads a directory tree as the kernel shows it. Entries that are listed but can't be
/// looked up are an error.
pub fn of_directory(root: &Path) -> Snapshot {
    let mut snapshot = Snapshot::new();
    let mut inodes = HashMap::new();
    add_path(root, b"/".to_vec(), &mut inodes, &mut snapshot);
    snapshot
}

fn add_path(
    real: &Path,
    path: Vec<u8>,
    inodes: &mut HashMap<(u64, u64), Vec<u8>>,
    snapshot: &mut Snapshot,
) {
    let stat = real
        .symlink_metadata()
        .unwrap_or_else(|error| panic!("stat {}: {error}", real.display()));
    let file_type = stat.file_type();
    let kind = match file_type {
        t if t.is_dir() => FileType::Directory,
        t if t.is_file() => FileType::Regular,
        t if t.is_symlink() => FileType::Symlink,
        t if t.is_char_device() => FileType::CharDevice,
        t if t.is_block_device() => FileType::BlockDevice,
        t if t.is_fifo() => FileType::Fifo,
        _ => FileType::Socket,
    };
    let content = match kind {
        FileType::Regular => {
            let mut file = File::open(real).unwrap();
            let mut hash = ContentHash::default();
            hash.add_range(0, stat.size(), |_, buf| file.read(buf).unwrap());
            assert_eq!(file.read(&mut [0]).unwrap(), 0, "longer than its size");
            hash.finish()
        }
        FileType::Symlink => real.read_link().unwrap().into_os_string().into_vec(),
        _ => Vec::new(),
    };
    let first_name = match kind {
        FileType::Directory => path.clone(),
        _ => inodes
            .entry((stat.dev(), stat.ino()))
            .or_insert_with(|| path.clone())
            .clone(),
    };
    let is_device = matches!(kind, FileType::CharDevice | FileType::BlockDevice);
    let node = Node {
        kind,
        mode: stat.mode() & 0o7777,
        uid: stat.uid(),
        gid: stat.gid(),
        mtime: (stat.mtime(), stat.mtime_nsec() as u32),
        size: match kind {
            FileType::Regular | FileType::Symlink => stat.size(),
            _ => 0,
        },
        nlink: stat.nlink() as u32,
        device: if is_device {
            (
                rustix::fs::major(stat.rdev()),
                rustix::fs::minor(stat.rdev()),
            )
        } else {
            (0, 0)
        },
        xattrs: xattrs(real),
        content,
        first_name,
    };
    snapshot.insert(path.clone(), node);
    if kind == FileType::Directory {
        let mut names: Vec<_> = std::fs::read_dir(real)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        for name in names {
            let mut child = path.clone();
            if child != b"/" {
                child.push(b'/');
            }
            child.extend_from_slice(name.as_bytes());
            add_path(&real.join(&name), child, inodes, snapshot);
        }
    }
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 65536];
    let length = rustix::fs::llistxattr(path, &mut names[..])
        .unwrap_or_else(|error| panic!("listxattr {}: {error}", path.display()));
    names[..length]
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| {
            let mut value = vec![0; 65536];
            let length = rustix::fs::lgetxattr(path, name, &mut value[..])
                .unwrap_or_else(|error| panic!("getxattr {}: {error}", path.display()));
            value.truncate(length);
            (name.to_vec(), value)
        })
        .collect()
}

/// Reads a tree from an image with this crate's reader. `reader` must see all file data.
pub fn of_image<R: ReadAt>(reader: &Reader<R>) -> Snapshot {
    let mut snapshot = Snapshot::new();
    let mut inodes: HashMap<u64, Vec<u8>> = HashMap::new();
    reader
        .walk(|path, inode| {
            let content = match inode.kind {
                FileType::Regular => {
                    let mut hash = ContentHash::default();
                    for extent in reader.extents(inode)? {
                        if extent.address.is_some() {
                            let end = extent.offset + extent.length;
                            hash.add_range(extent.offset, end, |offset, buf| {
                                reader.read(inode, offset, buf).expect("file contents")
                            });
                        }
                    }
                    hash.finish()
                }
                FileType::Symlink => reader.read_link(inode)?.into_vec(),
                _ => Vec::new(),
            };
            let node = Node {
                kind: inode.kind,
                mode: u32::from(inode.mode),
                uid: inode.uid,
                gid: inode.gid,
                mtime: (inode.mtime.seconds, inode.mtime.nanos),
                size: match inode.kind {
                    FileType::Directory => 0,
                    _ => inode.size,
                },
                nlink: inode.nlink,
                device: format::decode_device(inode.device),
                xattrs: reader
                    .xattrs(inode)?
                    .into_iter()
                    .map(|x| (x.name.to_vec(), x.value.to_vec()))
                    .collect(),
                content,
                first_name: inodes
                    .entry(inode.nid)
                    .or_insert_with(|| path.to_vec())
                    .clone(),
            };
            snapshot.insert(path.to_vec(), node);
            Ok(())
        })
        .expect("a readable image");
    snapshot
}

/// A hash of contents that leaves out zeros, so that huge holes cost little; the size is compared
/// separately. Takes a file's pieces in ascending order, each from the start of a block.
#[derive(Default)]
pub struct ContentHash(Sha256);

impl ContentHash {
    pub fn add(&mut self, offset: u64, bytes: &[u8]) {
        const BLOCK: usize = 4096;
        const ZEROS: [u8; BLOCK] = [0; BLOCK];
        assert!(offset.is_multiple_of(BLOCK as u64));
        for (index, block) in bytes.chunks(BLOCK).enumerate() {
            if block != &ZEROS[..block.len()] {
                self.0
                    .update((offset + (index * BLOCK) as u64).to_le_bytes());
                // Zeros at the end of a block are treated like a hole.
                let end = block.iter().rposition(|&byte| byte != 0).unwrap() + 1;
                self.0.update(&block[..end]);
            }
        }
    }

    /// Adds everything that `read` returns, from `offset` to `end`.
    pub fn add_range(
        &mut self,
        mut offset: u64,
        end: u64,
        mut read: impl FnMut(u64, &mut [u8]) -> usize,
    ) {
        let mut buf = vec![0; 256 * 1024];
        while offset < end {
            let wanted = (end - offset).min(buf.len() as u64) as usize;
            let mut filled = 0;
            while filled < wanted {
                match read(offset + filled as u64, &mut buf[filled..wanted]) {
                    0 => panic!("the file ends at {} of {end}", offset + filled as u64),
                    count => filled += count,
                }
            }
            self.add(offset, &buf[..filled]);
            offset += filled as u64;
        }
    }

    pub fn finish(self) -> Vec<u8> {
        self.0.finalize().to_vec()
    }
}

/// Differences that a comparison ignores.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ignore {
    /// Link counts of directories if one of them is 1: overlayfs shows 1 for merged ones.
    pub merged_directory_nlink: bool,
    /// Attributes of overlayfs's own, `trusted.overlay.` without a second `overlay.`.
    pub overlay_markers: bool,
}

/// Panics with all differences between two trees.
#[track_caller]
pub fn assert_same(what: &str, left: &Snapshot, right: &Snapshot, ignore: Ignore) {
    let mut report = String::new();
    let mut paths: Vec<&Vec<u8>> = left.keys().chain(right.keys()).collect();
    paths.sort();
    paths.dedup();
    for path in paths {
        let name = path.escape_ascii();
        match (left.get(path), right.get(path)) {
            (Some(a), Some(b)) => {
                let (mut a, mut b) = (a.clone(), b.clone());
                let directory = a.kind == FileType::Directory;
                if ignore.merged_directory_nlink && directory && (a.nlink == 1 || b.nlink == 1) {
                    (a.nlink, b.nlink) = (0, 0);
                }
                if ignore.overlay_markers {
                    for node in [&mut a, &mut b] {
                        node.xattrs
                            .retain(|name, _| !micabox_erofs::overlay::is_marker(name));
                    }
                }
                if a != b {
                    let _ = writeln!(report, "{name}:\n  {a}\n  {b}");
                }
            }
            (Some(_), None) => {
                let _ = writeln!(report, "{name}: only on the left");
            }
            (None, _) => {
                let _ = writeln!(report, "{name}: only on the right");
            }
        }
    }
    assert!(report.is_empty(), "{what}: the trees differ\n{report}");
}
