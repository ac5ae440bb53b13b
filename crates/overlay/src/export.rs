//! Writes an ext4 filesystem as a tar archive. Only sockets are left out: the format has no type
//! for them.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};

use micabox_ext4::{FileKind, Ino, Place, Stat};
use micabox_tar::{Attributes, Kind, Member, Writer};

use crate::upper::{Entries, Upper, UpperError};

/// Why an export failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The filesystem can't be read.
    #[error("\"{}\": {source}", path.escape_ascii())]
    Filesystem {
        /// The path within the archive.
        path: Vec<u8>,
        /// The filesystem's error.
        source: UpperError,
    },
    /// The archive can't be written.
    #[error("cannot write the archive: {0}")]
    Output(#[from] io::Error),
}

/// Totals of an export.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exported {
    /// Members of the archive.
    pub members: u64,
    /// Paths of the first [`Exported::SOCKETS`] sockets, which were left out.
    pub sockets: Vec<Vec<u8>>,
    /// Number of further sockets.
    pub more_sockets: u64,
}

impl Exported {
    /// Most sockets whose paths are returned.
    pub const SOCKETS: usize = 100;

    fn socket(&mut self, path: &[u8]) {
        if self.sockets.len() < Self::SOCKETS {
            self.sockets.push(path.to_vec());
        } else {
            self.more_sockets += 1;
        }
    }
}

/// Writes the tree below a directory, which becomes `./`. Names are in the order of their bytes.
///
/// # Errors
///
/// [`ExportError`]; the archive is incomplete then.
pub fn export<U: Upper, W: Write>(
    filesystem: &mut U,
    directory: Ino,
    output: W,
) -> Result<Exported, ExportError> {
    let mut export = Exporter::new(filesystem, output);
    export.tree(filesystem, directory, b"", |_| None)?;
    export.finish()
}

/// An archive that is filled from a filesystem, inode by inode.
#[derive(Debug)]
pub struct Exporter<W> {
    archive: Writer<W>,
    /// The first path of each inode with several names.
    links: HashMap<Ino, Vec<u8>>,
    /// Bytes of contents and paths that may still be written. In a damaged filesystem, files that
    /// share blocks, and paths, could add up without end; in a sound one, the contents are no
    /// larger than the filesystem, and the paths are smaller.
    left: u64,
    exported: Exported,
}

/// Longest path, in bytes. Deeper trees can be made, a directory at a time, and their archives
/// would grow with the square of their depth.
const PATH_MAX: usize = 64 << 10;
/// Bytes of such a path that a message shows.
const PATH_SHOWN: usize = 100;

impl<W: Write> Exporter<W> {
    /// Starts an archive for files of `filesystem`.
    pub fn new<U: Upper>(filesystem: &U, output: W) -> Self {
        Self {
            archive: Writer::new(output),
            links: HashMap::new(),
            left: filesystem.capacity().saturating_mul(2),
            exported: Exported::default(),
        }
    }

    /// Ends the archive.
    ///
    /// # Errors
    ///
    /// Errors of the output.
    pub fn finish(self) -> Result<Exported, ExportError> {
        self.archive.finish()?;
        Ok(self.exported)
    }

    /// Returns the archive, for members that are not from a filesystem.
    pub fn archive(&mut self) -> &mut Writer<W> {
        &mut self.archive
    }

    /// Adds an inode as `name`, and the tree below it if it is a directory; names are in the order
    /// of their bytes. An empty name makes it the archive's root, `./`. See [`Exporter::add`].
    ///
    /// # Errors
    ///
    /// [`ExportError`]; the archive is incomplete then.
    pub fn tree<U: Upper>(
        &mut self,
        filesystem: &mut U,
        root: Ino,
        name: &[u8],
        rename: impl Fn(&[u8]) -> Option<Vec<u8>>,
    ) -> Result<(), ExportError> {
        // Visited directories: in a damaged filesystem they could form a cycle, or one could have
        // so many paths that the archive would not end.
        let mut visited = HashSet::new();
        let mut path = name.to_vec();
        let stat = filesystem
            .attributes(root)
            .map_err(|source| fail(&path, source))?;
        self.add(filesystem, &path, &stat, &rename)?;
        if stat.kind() != Some(FileKind::Directory) {
            return Ok(());
        }
        visited.insert(root);
        if !path.is_empty() {
            path.push(b'/');
        }
        let names = names(filesystem, &path, root)?;
        let mut stack = Vec::from([(path.len(), names.into_iter())]);
        while let Some((length, names)) = stack.last_mut() {
            path.truncate(*length);
            let Some((name, ino)) = names.next() else {
                stack.pop();
                continue;
            };
            path.extend_from_slice(&name);
            let stat = filesystem
                .attributes(ino)
                .map_err(|source| fail(&path, source))?;
            if stat.kind() == Some(FileKind::Directory) && !visited.insert(ino) {
                let problem = "a directory with several names";
                return Err(fail(&path, Place::Inode(ino).corrupt(problem)));
            }
            self.add(filesystem, &path, &stat, &rename)?;
            if stat.kind() == Some(FileKind::Directory) {
                path.push(b'/');
                let names = self::names(filesystem, &path, ino)?;
                stack.push((path.len(), names.into_iter()));
            }
        }
        Ok(())
    }

    /// Adds an inode as `path`; a socket is only recorded as left out. `rename` may return a new
    /// name for an extended attribute, or an empty one to leave the attribute out.
    ///
    /// # Errors
    ///
    /// [`ExportError`]; the archive is incomplete then.
    pub fn add<U: Upper>(
        &mut self,
        filesystem: &mut U,
        path: &[u8],
        stat: &Stat,
        rename: impl Fn(&[u8]) -> Option<Vec<u8>>,
    ) -> Result<(), ExportError> {
        let ino = stat.ino;
        let Some(kind) = stat.kind() else {
            return Err(fail(path, Place::Inode(ino).corrupt("its type is unknown")));
        };
        if path.len() > PATH_MAX {
            let problem = "below this are directories that are too deep for an archive";
            let start = path.get(..PATH_SHOWN).unwrap_or_default();
            return Err(fail(start, Place::Inode(ino).corrupt(problem)));
        }
        self.take(path, ino, path.len() as u64)?;
        if kind == FileKind::Socket {
            self.exported.socket(path);
            return Ok(());
        }
        self.exported.members += 1;
        let mut member = Member {
            path: path.to_vec(),
            kind: Kind::Fifo,
            attributes: Attributes {
                mode: stat.mode & 0o7777,
                uid: stat.uid,
                gid: stat.gid,
                mtime: stat.mtime,
                xattrs: Vec::new(),
            },
        };
        if kind != FileKind::Directory && stat.links > 1 {
            let first = self.links.get(&ino).map(Vec::len);
            self.take(path, ino, first.unwrap_or(0) as u64)?;
            if let Some(first) = self.links.get(&ino) {
                member.kind = Kind::HardLink(first.clone());
                return Ok(self.archive.add(&member)?);
            }
            self.links.insert(ino, path.to_vec());
        }
        let xattrs = xattrs(filesystem, ino, rename).map_err(|source| fail(path, source))?;
        member.attributes.xattrs = xattrs;
        member.kind = match kind {
            FileKind::File => return self.file(filesystem, member, stat),
            FileKind::Symlink => Kind::Symlink(
                filesystem
                    .target(ino)
                    .map_err(|source| fail(path, source))?,
            ),
            FileKind::Directory => Kind::Directory,
            FileKind::CharDevice => Kind::CharDevice(stat.device.0, stat.device.1),
            FileKind::BlockDevice => Kind::BlockDevice(stat.device.0, stat.device.1),
            FileKind::Fifo | FileKind::Socket => Kind::Fifo,
        };
        Ok(self.archive.add(&member)?)
    }

    /// Counts bytes that are about to be written; an error if there are too many.
    fn take(&mut self, path: &[u8], ino: Ino, bytes: u64) -> Result<(), ExportError> {
        self.left = self.left.checked_sub(bytes).ok_or_else(|| {
            let problem = "files and paths so far add up to more than the filesystem";
            fail(path, Place::Inode(ino).corrupt(problem))
        })?;
        Ok(())
    }

    fn file<U: Upper>(
        &mut self,
        filesystem: &mut U,
        mut member: Member,
        stat: &Stat,
    ) -> Result<(), ExportError> {
        let path = &*member.path;
        let segments = filesystem
            .data(stat.ino)
            .map_err(|source| fail(path, source))?;
        let bytes = segments.iter().map(|segment| segment.length).sum();
        self.take(path, stat.ino, bytes)?;
        member.kind = Kind::File {
            size: stat.size,
            segments: Some(segments),
        };
        let path = &*member.path;
        self.archive.add_file(&member, |offset, piece| {
            let got = filesystem
                .read_at(stat.ino, offset, piece)
                .map_err(|source| fail(path, source))?;
            if got != piece.len() {
                let problem = "the file is shorter than its size";
                return Err(fail(path, Place::Inode(stat.ino).corrupt(problem)));
            }
            Ok(())
        })
    }
}

/// Returns a directory's entries, sorted by name.
fn names<U: Upper>(
    filesystem: &mut U,
    path: &[u8],
    directory: Ino,
) -> Result<Entries, ExportError> {
    let mut names = filesystem
        .entries(directory)
        .map_err(|source| fail(path, source))?;
    names.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    Ok(names)
}

type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// Returns an inode's extended attributes under their new names, sorted.
fn xattrs<U: Upper>(
    filesystem: &mut U,
    ino: Ino,
    rename: impl Fn(&[u8]) -> Option<Vec<u8>>,
) -> Result<Xattrs, UpperError> {
    let mut xattrs = Vec::new();
    for name in filesystem.attribute_names(ino)? {
        let renamed = rename(&name).unwrap_or_else(|| name.to_vec());
        if !renamed.is_empty() {
            let value = filesystem.attribute(ino, &name)?;
            xattrs.extend(value.map(|value| (renamed, value)));
        }
    }
    xattrs.sort_unstable();
    Ok(xattrs)
}

fn fail(path: &[u8], source: impl Into<UpperError>) -> ExportError {
    ExportError::Filesystem {
        path: path.to_vec(),
        source: source.into(),
    }
}
