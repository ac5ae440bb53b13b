//! What a filesystem in memory changes of its lower, in overlayfs's terms: as an upper layer. If the lower is
//! an upper layer over an image already, what both change of the image.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use micabox_erofs::overlay::escape_xattr_name;
use micabox_memfs::{Changes, Errno, FileKind, Filesystem, Lower, ROOT, Seek, Stat};
use micabox_overlay::upper::{Entries, Upper, UpperError};
use micabox_overlay::words::{self, OPAQUE, WHITEOUT_DEVICE, is_marker, unescape_xattr_name};
use micabox_tar::Segment;

use crate::below::Merged;

/// The number of a file in the layer.
type Ino = u32;

/// All whiteouts are one file.
const WHITEOUT: Ino = 0;

/// An upper layer with the changes of a filesystem, which must not be changed meanwhile.
///
/// A directory that is in the lower under the same name has what differs, and whiteouts. All others are
/// opaque and have all that is in them, also one that was moved with what it has below: overlayfs
/// knows moved directories only by an attribute that readers of a layer do not follow.
///
/// What is shown is held until the layer is dropped.
#[derive(Debug)]
pub struct Layer<'a> {
    files: &'a Filesystem,
    changes: Changes,
    base: Base,
    /// By number; the whiteout is the first.
    nodes: Vec<Node>,
    numbers: HashMap<u64, Ino>,
}

/// What the layer is over. Its files have the numbers of the filesystem's lower.
#[derive(Debug)]
enum Base {
    Nothing,
    /// The lower.
    Lower(Arc<dyn Lower>),
    /// What is below the upper layer that the lower has.
    Below(Arc<Merged>),
}

/// A file of the layer.
#[derive(Clone, Copy, Debug)]
struct Node {
    /// The inode.
    number: u64,
    /// The directory of the base that this one is merged with.
    merged: Option<u64>,
    is_opaque: bool,
}

type Result<T> = std::result::Result<T, UpperError>;

fn failed(error: Errno) -> UpperError {
    UpperError::Folder(error.into())
}

impl Base {
    /// Returns the file of the base that a file of the lower is, or is merged with.
    fn of(&self, file: u64) -> Option<u64> {
        match self {
            Self::Nothing => None,
            Self::Lower(_) => Some(file),
            Self::Below(lower) => lower.below(file),
        }
    }

    /// Returns whether a file of the lower is a change of the base.
    fn is_changed_by(&self, file: u64) -> bool {
        matches!(self, Self::Below(_)) && Merged::is_upper(file)
    }

    fn list(&self, directory: u64) -> std::result::Result<HashMap<Box<[u8]>, u64>, Errno> {
        Ok(match self {
            Self::Nothing => HashMap::new(),
            Self::Lower(lower) => {
                let entries = lower.list(directory)?.into_iter();
                entries.map(|(name, file, _)| (name, file)).collect()
            }
            Self::Below(lower) => lower.list_below(directory)?.into_iter().collect(),
        })
    }
}

impl<'a> Layer<'a> {
    /// Finds what differs from the lower.
    ///
    /// # Errors
    /// Those of the lower.
    pub fn new(files: &'a Filesystem) -> io::Result<Self> {
        let base = files.lower().map(Arc::clone);
        Self::over(files, base.map_or(Base::Nothing, Base::Lower))
    }

    /// Finds what differs from what is below `lower`'s upper layer. `lower` must be the filesystem's.
    ///
    /// # Errors
    /// Those of the lower.
    pub fn with_upper(files: &'a Filesystem, lower: Arc<Merged>) -> io::Result<Self> {
        Self::over(files, Base::Below(lower))
    }

    fn over(files: &'a Filesystem, base: Base) -> io::Result<Self> {
        let whiteout = Node {
            number: 0,
            merged: None,
            is_opaque: false,
        };
        Ok(Self {
            files,
            changes: files.changes()?,
            base,
            nodes: Vec::from([whiteout]),
            numbers: HashMap::new(),
        })
    }

    fn node(&self, file: Ino) -> Result<Node> {
        let node = self.nodes.get(file as usize);
        node.copied().ok_or_else(|| failed(Errno::STALE))
    }

    /// Returns an inode's number in the layer, and keeps the hold that the caller has.
    fn add(&mut self, node: Node) -> Result<Ino> {
        if let Some(&known) = self.numbers.get(&node.number) {
            self.files.forget(node.number, 1);
            return Ok(known);
        }
        let file = Ino::try_from(self.nodes.len()).map_err(|_| failed(Errno::OVERFLOW))?;
        self.numbers.insert(node.number, file);
        self.nodes.push(node);
        Ok(file)
    }

    /// Returns the file of the base that an inode is, or is merged with, and whether it is as there.
    fn origin(&self, inode: u64) -> (Option<u64>, bool) {
        match self.files.below(inode) {
            Some(file) => {
                let is_changed = self.changes.has(inode) || self.base.is_changed_by(file);
                (self.base.of(file), !is_changed)
            }
            None => (None, false),
        }
    }

    /// Returns the first part of a file from an offset on that is not a hole.
    fn data_from(&self, file: u64, offset: u64) -> std::result::Result<Option<Segment>, Errno> {
        let start = match self.files.seek(file, offset, Seek::Data) {
            Err(Errno::NXIO) => return Ok(None),
            start => start?,
        };
        let end = self.files.seek(file, start, Seek::Hole)?;
        Ok(Some(Segment {
            offset: start,
            length: end - start,
        }))
    }
}

impl Drop for Layer<'_> {
    fn drop(&mut self) {
        for node in self.nodes.iter().skip(1).filter(|node| node.number != ROOT) {
            self.files.forget(node.number, 1);
        }
    }
}

impl Upper for Layer<'_> {
    fn layer(&mut self) -> Result<Option<Ino>> {
        let (merged, is_unchanged) = self.origin(ROOT);
        if is_unchanged {
            return Ok(None);
        }
        if let Some(&root) = self.numbers.get(&ROOT) {
            return Ok(Some(root));
        }
        let root = self.add(Node {
            number: ROOT,
            merged,
            is_opaque: false,
        })?;
        Ok(Some(root))
    }

    fn entry(&mut self, directory: Ino, name: &[u8]) -> Result<Option<Ino>> {
        let entries = self.entries(directory)?;
        let entry = entries.iter().find(|(entry, _)| **entry == *name);
        Ok(entry.map(|(_, file)| *file))
    }

    fn attributes(&mut self, file: Ino) -> Result<micabox_ext4::Stat> {
        if file == WHITEOUT {
            return Ok(whiteout());
        }
        let stat = self.files.stat(self.node(file)?.number).map_err(failed)?;
        Ok(attributes(file, &stat))
    }

    fn entries(&mut self, directory: Ino) -> Result<Entries> {
        let directory = self.node(directory)?;
        let below = directory.merged.map(|merged| self.base.list(merged));
        let mut below = below.transpose().map_err(failed)?.unwrap_or_default();
        let mut found = Vec::new();
        let mut problem = None;
        let listed = self.files.list(directory.number, 0, |entry, hold| {
            let Some(hold) = hold else { return true };
            let (origin, is_unchanged) = self.origin(entry.number);
            let is_same = below.remove(entry.name) == origin && origin.is_some();
            if is_same && is_unchanged {
                return true;
            }
            if let Err(error) = hold() {
                problem = Some(error);
                return false;
            }
            let is_directory = entry.kind == FileKind::Directory;
            let merged = origin.filter(|_| is_directory && is_same);
            let node = Node {
                number: entry.number,
                merged,
                is_opaque: is_directory && merged.is_none() && directory.merged.is_some(),
            };
            found.push((entry.name.into(), node));
            true
        });
        let mut entries = Entries::new();
        for (name, node) in found {
            entries.push((name, self.add(node)?));
        }
        if let Some(error) = listed.err().or(problem) {
            return Err(failed(error));
        }
        entries.extend(below.into_keys().map(|name| (name, WHITEOUT)));
        Ok(entries)
    }

    fn read_at(&mut self, file: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let number = self.node(file)?.number;
        let read = self
            .files
            .read(number, offset, buffer.len() as u64, |pieces| {
                let mut filled = 0;
                for piece in pieces {
                    let end = filled + piece.len();
                    if let Some(place) = buffer.get_mut(filled..end) {
                        place.copy_from_slice(piece);
                    }
                    filled = end;
                }
                filled
            });
        read.map_err(failed)
    }

    fn data(&mut self, file: Ino) -> Result<Vec<Segment>> {
        let number = self.node(file)?.number;
        let mut segments = Vec::new();
        let mut at = 0;
        while let Some(segment) = self.data_from(number, at).map_err(failed)? {
            at = segment.end();
            segments.push(segment);
        }
        Ok(segments)
    }

    fn target(&mut self, link: Ino) -> Result<Vec<u8>> {
        let number = self.node(link)?.number;
        self.files.read_link(number).map_err(failed)
    }

    fn attribute(&mut self, file: Ino, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let node = self.node(file)?;
        if node.is_opaque && name == OPAQUE {
            return Ok(Some(words::YES.to_vec()));
        }
        if file == WHITEOUT || is_marker(name) {
            return Ok(None);
        }
        match self.files.xattr(node.number, &unescape_xattr_name(name)) {
            Ok(value) => Ok(Some(value)),
            Err(Errno::NODATA) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    fn attribute_names(&mut self, file: Ino) -> Result<Vec<Box<[u8]>>> {
        if file == WHITEOUT {
            return Ok(Vec::new());
        }
        let node = self.node(file)?;
        let names = self.files.xattr_names(node.number).map_err(failed)?;
        let names = names.split(|&byte| byte == 0);
        let names = names.filter(|name| !name.is_empty()).map(escape_xattr_name);
        let own = node.is_opaque.then(|| OPAQUE.into());
        Ok(own.into_iter().chain(names).collect())
    }

    fn capacity(&self) -> u64 {
        // Of contents that stay in the lower the size is not known.
        u64::MAX
    }
}

fn attributes(file: Ino, stat: &Stat) -> micabox_ext4::Stat {
    micabox_ext4::Stat {
        ino: file,
        mode: stat.kind.mode() | stat.mode,
        links: stat.links,
        uid: stat.uid,
        gid: stat.gid,
        size: stat.size,
        blocks: stat.blocks,
        device: stat.device,
        atime: stat.atime,
        mtime: stat.mtime,
        ctime: stat.ctime,
        crtime: stat.born,
        flags: 0,
        generation: 0,
    }
}

fn whiteout() -> micabox_ext4::Stat {
    let time = micabox_memfs::Timestamp::EPOCH;
    let stat = Stat {
        number: 0,
        kind: FileKind::CharDevice,
        mode: 0,
        links: 1,
        uid: 0,
        gid: 0,
        device: WHITEOUT_DEVICE,
        size: 0,
        blocks: 0,
        atime: time,
        mtime: time,
        ctime: time,
        born: time,
    };
    attributes(WHITEOUT, &stat)
}
