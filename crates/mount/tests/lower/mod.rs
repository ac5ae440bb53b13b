//! A tree that another reader has read, as a lower one.

use std::collections::HashMap;
use std::fmt;
use std::sync::Mutex;

use micabox_memfs::{Errno, FileKind, Lower, LowerEntry, Stat};
use micabox_overlay::lower::{self, Node};
use micabox_overlay::words::{is_marker, unescape_xattr_name};
use micabox_tar::Segment;

struct File {
    node: Node,
    links: u32,
    entries: Vec<LowerEntry>,
}

/// A tree whose files are all known.
pub struct Known {
    reader: Mutex<lower::Lower>,
    root: u64,
    files: HashMap<u64, File>,
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Known")
    }
}

impl Known {
    pub fn new(mut reader: lower::Lower) -> Self {
        let node = reader.root().unwrap();
        let root = node.number();
        let mut files = HashMap::new();
        let mut rest = Vec::from([node]);
        while let Some(node) = rest.pop() {
            let number = node.number();
            let mut entries = Vec::new();
            if node.kind == FileKind::Directory {
                for name in reader.names(&node).unwrap() {
                    let child = reader.lookup(&node, &name).unwrap().unwrap();
                    entries.push((name, child.number(), child.kind));
                    rest.push(child);
                }
            }
            let directories = entries
                .iter()
                .filter(|entry| entry.2 == FileKind::Directory);
            let directories = directories.count() as u32;
            let links = if node.kind == FileKind::Directory {
                1
            } else {
                0
            } + directories;
            let file = File {
                node,
                links,
                entries,
            };
            files.entry(number).or_insert(file).links += 1;
        }
        let reader = Mutex::new(reader);
        Self {
            reader,
            root,
            files,
        }
    }

    fn read<T, E>(
        &self,
        number: u64,
        read: impl FnOnce(&mut lower::Lower, &Node) -> Result<T, E>,
    ) -> Result<T, Errno> {
        let node = &self.get(number)?.node;
        read(&mut self.reader.lock().unwrap(), node).map_err(|_| Errno::IO)
    }

    fn get(&self, number: u64) -> Result<&File, Errno> {
        self.files.get(&number).ok_or(Errno::IO)
    }
}

impl Lower for Known {
    fn root(&self) -> u64 {
        self.root
    }

    fn stat(&self, number: u64) -> Result<Stat, Errno> {
        let File { node, links, .. } = self.get(number)?;
        let is_link = node.kind == FileKind::Symlink;
        Ok(Stat {
            number,
            kind: node.kind,
            mode: if is_link { 0o777 } else { node.permissions },
            links: *links,
            uid: node.uid,
            gid: node.gid,
            device: node.device,
            size: node.size,
            blocks: node.size.div_ceil(512),
            atime: node.mtime,
            mtime: node.mtime,
            ctime: node.mtime,
            born: node.mtime,
        })
    }

    fn list(&self, directory: u64) -> Result<Vec<LowerEntry>, Errno> {
        Ok(self.get(directory)?.entries.clone())
    }

    fn read(&self, file: u64, offset: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
        self.read(file, |reader, node| reader.read(node, offset, buffer))
    }

    fn segments(&self, file: u64) -> Result<Vec<Segment>, Errno> {
        self.read(file, lower::Lower::segments)
    }

    fn target(&self, link: u64) -> Result<Vec<u8>, Errno> {
        self.read(link, lower::Lower::read_link)
    }

    fn xattrs(&self, number: u64) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Errno> {
        // As overlayfs shows them.
        let xattrs = self.read(number, lower::Lower::xattrs)?.into_iter();
        let shown = xattrs.filter(|(name, _)| !is_marker(name));
        Ok(shown
            .map(|(name, value)| (unescape_xattr_name(&name).into_vec(), value))
            .collect())
    }
}
