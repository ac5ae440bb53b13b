//! Checks the structure of a whole image: finds what makes the reader fail and what the reader does
//! not notice.

use std::collections::{HashMap, HashSet};
use std::fmt;

use crate::format::FileType;
use crate::reader::{Budget, Inode, Reader, SharedXattrs};
use crate::source::ReadAt;
use crate::{Error, Result, xattr};

/// Maximum number of findings reported; a thoroughly broken image would have millions.
const FINDINGS_MAX: usize = 100;
/// Length in bytes above which a finding leaves out the start of a path: Linux's `PATH_MAX`.
const PATH_MAX: usize = 4096;

/// A defect of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Path of the defective entry; `/` for the image as a whole.
    pub path: Box<[u8]>,
    /// Description of the defect.
    pub problem: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.escape_ascii(), self.problem)
    }
}

/// Checks an image and returns its defects; empty for a sound image.
///
/// Reads everything reachable except the contents of files. An image with a device table is checked
/// by itself; its devices are images of their own.
pub fn check<R: ReadAt>(image: &R) -> Vec<Finding> {
    check_within(image, u64::MAX)
}

/// Does the same as [`check`], but refuses an image with more than `metadata` bytes of inodes,
/// attributes and directories: the check keeps its knowledge of them in memory.
pub fn check_within<R: ReadAt>(image: &R, metadata: u64) -> Vec<Finding> {
    match Reader::open(image) {
        Ok(reader) => check_read(&reader, metadata),
        Err(error) => vec![Finding {
            path: (*b"/").into(),
            problem: error.to_string(),
        }],
    }
}

/// Does the same as [`check_within`] with an image that is open. Of compressed files, it checks the inodes alone.
pub fn check_read<R: ReadAt>(reader: &Reader<R>, metadata: u64) -> Vec<Finding> {
    Check::new(reader, metadata).run()
}

/// What the walk knows of an inode.
struct Seen {
    /// The directory of its first name; its own number for the root.
    parent: u64,
    /// Its first name. Paths are assembled when needed: storing those of a deep tree would take
    /// memory quadratic in its depth.
    name: Box<[u8]>,
    /// The link count that the inode has on disk.
    nlink: u32,
    /// The link count found so far.
    counted: u32,
    kind: FileType,
}

/// A range of bytes of the image with one owner.
struct Range {
    start: u64,
    end: u64,
    /// The inode that uses the range; `None` if the range belongs to the image as a whole.
    owner: Option<u64>,
    metadata: bool,
}

struct Check<'r, R> {
    reader: &'r Reader<R>,
    budget: Budget,
    shared: SharedXattrs,
    seen: HashMap<u64, Seen>,
    ranges: Vec<Range>,
    /// Directories not read yet.
    pending: Vec<Inode>,
    findings: Vec<Finding>,
}

impl<'r, R: ReadAt> Check<'r, R> {
    fn new(reader: &'r Reader<R>, metadata: u64) -> Self {
        Self {
            reader,
            budget: Budget::new(reader).at_most(metadata),
            shared: SharedXattrs::new(),
            seen: HashMap::new(),
            ranges: Vec::new(),
            pending: Vec::new(),
            findings: Vec::new(),
        }
    }

    fn run(mut self) -> Vec<Finding> {
        let root = self.reader.root();
        if let Err(error) = self.visit(root, FileType::Directory, root, b"") {
            self.find(root, b"", &error);
        }
        while let Some(directory) = self.pending.pop() {
            if self.findings.len() >= FINDINGS_MAX {
                return self.findings;
            }
            self.directory(&directory);
        }
        self.link_counts();
        self.overlaps();
        let counted = self.seen.len() as u64;
        let claimed = self.reader.inode_count();
        if self.findings.is_empty() && !self.reader.has_inodes(counted) {
            let problem = format!("the superblock counts {claimed} inodes, there are {counted}");
            self.find(root, b"", &problem);
        }
        self.findings
    }

    /// Reports a problem with an entry, or with a directory if `name` is empty.
    fn find(&mut self, directory: u64, name: &[u8], problem: &impl ToString) {
        if self.findings.len() < FINDINGS_MAX {
            let path = self.path(directory, name);
            self.findings.push(Finding {
                path,
                problem: problem.to_string(),
            });
        }
    }

    /// Returns the path of an entry.
    fn path(&self, mut directory: u64, name: &[u8]) -> Box<[u8]> {
        let mut names = vec![name];
        let mut length = name.len();
        // The root is its own parent; it is missing from `seen` if it can't be read.
        while let Some(seen) = self.seen.get(&directory)
            && seen.parent != directory
        {
            if length > PATH_MAX {
                names.push(b"...");
                break;
            }
            names.push(&seen.name);
            length += 1 + seen.name.len();
            directory = seen.parent;
        }
        let mut path = Vec::new();
        for name in names.iter().rev().filter(|name| !name.is_empty()) {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        path.into()
    }

    /// Returns the path of an inode's first name; of the image if `owner` is `None`.
    fn path_of(&self, owner: Option<u64>) -> Box<[u8]> {
        match owner.and_then(|nid| self.seen.get(&nid)) {
            Some(seen) => self.path(seen.parent, &seen.name),
            None => (*b"/").into(),
        }
    }

    /// Records an entry and its inode.
    fn visit(&mut self, nid: u64, kind: FileType, parent: u64, name: &[u8]) -> Result<()> {
        if let Some(seen) = self.seen.get_mut(&nid) {
            if seen.kind != kind {
                return Err(wrong_type(nid));
            }
            if kind == FileType::Directory {
                return Err(Error::CorruptInode {
                    nid,
                    problem: "it is a directory with several names",
                });
            }
            seen.counted = seen.counted.saturating_add(1);
            return Ok(());
        }
        if self.seen.len() as u64 >= self.reader.inode_count() {
            return Err(Error::Corrupt(
                "it has more inodes than its superblock counts",
            ));
        }
        let inode = self.reader.inode(nid)?;
        self.budget.take(self.reader, &inode)?;
        let directory = inode.kind == FileType::Directory;
        let seen = Seen {
            parent,
            name: name.into(),
            nlink: inode.nlink,
            counted: if directory { 2 } else { 1 },
            kind: inode.kind,
        };
        self.seen.insert(nid, seen);
        if directory
            && nid != parent
            && let Some(parent) = self.seen.get_mut(&parent)
        {
            parent.counted = parent.counted.saturating_add(1);
        }
        if inode.kind != kind {
            return Err(wrong_type(nid));
        }
        self.contents(&inode)?;
        if directory {
            self.pending.push(inode);
        }
        Ok(())
    }

    /// Reads what belongs to an inode, except for entries and file contents.
    fn contents(&mut self, inode: &Inode) -> Result<()> {
        let xattrs = self.reader.xattrs_with(inode, &mut self.shared)?;
        if xattr::check_set(xattrs.iter()).is_err() {
            return Err(Error::CorruptInode {
                nid: inode.nid,
                problem: "its extended attributes can't be on one inode together",
            });
        }
        if inode.kind == FileType::Symlink {
            self.reader.read_link(inode)?;
        }
        let metadata = self.reader.metadata_range(inode)?;
        self.ranges.push(Range {
            start: metadata.start,
            end: metadata.end,
            owner: Some(inode.nid),
            metadata: true,
        });
        let has_extents = matches!(
            inode.kind,
            FileType::Regular | FileType::Directory | FileType::Symlink
        );
        if has_extents && !self.reader.is_compressed(inode) {
            for extent in self.reader.extents(inode)? {
                // Inline data was counted with the inode.
                let Some(start) = extent.address.filter(|start| !metadata.contains(start)) else {
                    continue;
                };
                self.ranges.push(Range {
                    start,
                    end: start + extent.length,
                    owner: Some(inode.nid),
                    metadata: inode.kind != FileType::Regular,
                });
            }
        }
        Ok(())
    }

    fn directory(&mut self, directory: &Inode) {
        let nid = directory.nid;
        let parent = self.seen.get(&nid).map_or(nid, |seen| seen.parent);
        let mut entries = Vec::new();
        let mut dots = [None; 2];
        let read = self.reader.for_each_dirent(directory, |name, nid, kind| {
            match name {
                b"." => dots[0] = Some((nid, kind)),
                b".." => dots[1] = Some((nid, kind)),
                _ => entries.push((Box::<[u8]>::from(name), nid, kind)),
            }
            Ok(())
        });
        if let Err(error) = read {
            self.find(nid, b"", &error);
        } else {
            let expected = [("`.`", nid), ("`..`", parent)];
            for (dot, (name, right)) in dots.into_iter().zip(expected) {
                if dot != Some((right, FileType::Directory)) {
                    self.find(nid, b"", &format!("its {name} is missing or wrong"));
                }
            }
        }
        for (name, child, kind) in entries {
            if let Err(error) = self.visit(child, kind, nid, &name) {
                self.find(nid, &name, &error);
            }
        }
    }

    fn link_counts(&mut self) {
        // The merge keeps the link counts of the layers, some of whose names may be hidden. So does what corrects a
        // stack of them, which is read as any tool's layer is.
        let merged = !self.reader.devices().is_empty() || self.reader.takes_foreign();
        let mut wrong: Vec<(u64, String)> = self
            .seen
            .iter()
            .filter(|(_, seen)| {
                if merged && seen.kind != FileType::Directory {
                    seen.nlink < seen.counted
                } else {
                    seen.nlink != seen.counted
                }
            })
            .map(|(&nid, seen)| {
                let (claimed, counted) = (seen.nlink, seen.counted);
                (
                    nid,
                    format!("its link count is {claimed}, it has {counted} links"),
                )
            })
            .collect();
        wrong.sort_unstable();
        for (nid, problem) in wrong {
            self.find_of(Some(nid), problem);
        }
    }

    /// Reports overlaps. Metadata may not overlap anything; files may share blocks.
    fn overlaps(&mut self) {
        let mut ranges = std::mem::take(&mut self.ranges);
        ranges.extend(self.reader.head_ranges().map(|head| Range {
            start: head.start,
            end: head.end,
            owner: None,
            metadata: true,
        }));
        ranges.sort_unstable_by_key(|range| (range.start, range.end));
        // The ranges with the highest end so far: of metadata, and of all.
        let mut last: [Option<&Range>; 2] = [None, None];
        let mut reported = HashSet::new();
        for range in ranges.iter().filter(|range| range.start < range.end) {
            let clash = last[usize::from(range.metadata)].filter(|last| last.end > range.start);
            if let Some(other) = clash
                && reported.insert(range.owner)
            {
                let other = match other.owner {
                    Some(_) => self.path_of(other.owner).escape_ascii().to_string(),
                    None => "the superblock or the device table".into(),
                };
                self.find_of(range.owner, format!("it overlaps {other}"));
            }
            // Data is compared with the metadata before it, metadata with all ranges.
            for (index, slot) in last.iter_mut().enumerate() {
                let counts = index == 1 || range.metadata;
                if counts && slot.is_none_or(|last| last.end < range.end) {
                    *slot = Some(range);
                }
            }
            if self.findings.len() >= FINDINGS_MAX {
                return;
            }
        }
    }

    /// Reports a problem with an inode, or with the image as a whole.
    fn find_of(&mut self, owner: Option<u64>, problem: String) {
        if self.findings.len() < FINDINGS_MAX {
            let path = self.path_of(owner);
            self.findings.push(Finding { path, problem });
        }
    }
}

fn wrong_type(nid: u64) -> Error {
    Error::CorruptInode {
        nid,
        problem: "its type is not that of its directory entry",
    }
}
