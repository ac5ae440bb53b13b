//! A lower tree in memory, as sound or as damaged as a test wants it.

use std::collections::BTreeMap;
use std::sync::Arc;

use micabox_file::Segment;
use micabox_memfs::{Errno, FileKind, Filesystem, Limits, Lower, LowerEntry, Stat, Timestamp};

type Result<T> = std::result::Result<T, Errno>;

/// A file of the tree.
#[derive(Clone, Debug)]
pub struct File {
    pub stat: Stat,
    pub entries: Vec<LowerEntry>,
    pub bytes: Vec<u8>,
    pub segments: Vec<Segment>,
    pub target: Vec<u8>,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Files by number.
#[derive(Clone, Debug, Default)]
pub struct Tree(pub BTreeMap<u64, File>);

pub const LIMITS: Limits = Limits {
    bytes: 64 << 20,
    inodes: 100,
};

impl Tree {
    /// Makes a tree with an empty root, whose number is 7.
    pub fn new() -> Self {
        let mut tree = Self::default();
        tree.add(7, FileKind::Directory);
        tree
    }

    fn add(&mut self, number: u64, kind: FileKind) -> &mut File {
        let file = File {
            stat: Stat {
                number,
                kind,
                mode: 0o755,
                links: if kind == FileKind::Directory { 2 } else { 0 },
                uid: 1,
                gid: 2,
                device: (0, 0),
                size: 0,
                blocks: 0,
                atime: Timestamp::EPOCH,
                mtime: Timestamp::EPOCH,
                ctime: Timestamp::EPOCH,
                born: Timestamp::EPOCH,
            },
            entries: Vec::new(),
            bytes: Vec::new(),
            segments: Vec::new(),
            target: Vec::new(),
            xattrs: Vec::new(),
        };
        self.0.entry(number).or_insert(file)
    }

    pub fn file(&mut self, number: u64) -> &mut File {
        self.0.get_mut(&number).unwrap()
    }

    /// Adds a name, and what it stands for if that is not there.
    pub fn name(&mut self, directory: u64, name: &str, number: u64, kind: FileKind) -> &mut Self {
        let entry = (name.as_bytes().into(), number, kind);
        self.file(directory).entries.push(entry);
        self.file(directory).stat.links += u32::from(kind == FileKind::Directory);
        let file = self.add(number, kind);
        file.stat.links += u32::from(kind != FileKind::Directory);
        self
    }

    /// Gives a file bytes, all of which are data.
    pub fn fill(&mut self, number: u64, bytes: Vec<u8>) -> &mut Self {
        let file = self.file(number);
        file.stat.size = bytes.len() as u64;
        file.stat.blocks = file.stat.size.div_ceil(512);
        file.segments = vec![Segment::whole(file.stat.size)];
        file.bytes = bytes;
        self
    }

    pub fn mount(&self) -> Filesystem {
        Filesystem::over(LIMITS, Arc::new(self.clone())).unwrap()
    }

    fn get(&self, number: u64) -> Result<&File> {
        self.0.get(&number).ok_or(Errno::IO)
    }
}

impl Lower for Tree {
    fn root(&self) -> u64 {
        7
    }

    fn stat(&self, number: u64) -> Result<Stat> {
        Ok(self.get(number)?.stat)
    }

    fn list(&self, directory: u64) -> Result<Vec<LowerEntry>> {
        Ok(self.get(directory)?.entries.clone())
    }

    fn read(&self, file: u64, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let bytes = &self.get(file)?.bytes;
        let bytes = bytes.get(offset as usize..).unwrap_or_default();
        let count = bytes.len().min(buffer.len());
        buffer[..count].copy_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn segments(&self, file: u64) -> Result<Vec<Segment>> {
        Ok(self.get(file)?.segments.clone())
    }

    fn target(&self, link: u64) -> Result<Vec<u8>> {
        Ok(self.get(link)?.target.clone())
    }

    fn xattrs(&self, number: u64) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        Ok(self.get(number)?.xattrs.clone())
    }
}
