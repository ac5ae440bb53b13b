//! Fills a filesystem from an archive, member by member.
//!
//! Whoever reads the archive hands over what its members say; this makes it true. Paths stay
//! inside the filesystem: `..` is refused, and symbolic links on the way are followed as a
//! process with this root would. Of two members with one path, the later counts.

use alloc::vec;
use alloc::vec::Vec;
use std::io::{self, Read};

use hashbrown::HashMap;

pub use crate::archive::{Kind, Member};
use crate::device::BlockDevice;
use crate::error::{Errno, Error};
use crate::{Ext4, FileKind, Ino, Owner, ROOT, Segment, SetAttributes, SetXattr, Timestamp};

/// Bytes of contents taken at once.
const PIECE: usize = 1 << 20;

/// Why a member could not be imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// `..`, or a name that no directory can hold.
    #[error("\"{}\": {problem}", path.escape_ascii())]
    Path {
        /// The member's path.
        path: Vec<u8>,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The filesystem refused.
    #[error("\"{}\": {source}", path.escape_ascii())]
    Filesystem {
        /// The member's path.
        path: Vec<u8>,
        /// Why.
        source: Error,
    },
    /// Its contents could not be read.
    #[error("\"{}\": cannot read its contents: {source}", path.escape_ascii())]
    Body {
        /// The member's path.
        path: Vec<u8>,
        /// Why.
        source: io::Error,
    },
}

/// How much was imported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Imported {
    /// Members.
    pub members: u64,
    /// Bytes of contents.
    pub bytes: u64,
}

/// An import that is going on.
#[derive(Debug)]
pub struct Importer<'f, D> {
    filesystem: &'f mut Ext4<D>,
    /// Directories by path; members come in bunches.
    known: HashMap<Vec<u8>, Ino>,
    /// Times of directories, which change with every name in them.
    times: HashMap<Ino, Timestamp>,
    buffer: Vec<u8>,
    imported: Imported,
}

impl<'f, D: BlockDevice> Importer<'f, D> {
    /// Begins an import into the root directory.
    pub fn new(filesystem: &'f mut Ext4<D>) -> Self {
        Self {
            filesystem,
            known: HashMap::new(),
            times: HashMap::new(),
            buffer: vec![0; PIECE],
            imported: Imported::default(),
        }
    }

    /// Imports a member, whose contents `body` has.
    ///
    /// # Errors
    ///
    /// [`ImportError`]. The import can go on; what there is of the member stays.
    pub fn add(&mut self, member: &Member<'_>, body: &mut dyn Read) -> Result<(), ImportError> {
        let components = components(member.path)?;
        self.imported.members += 1;
        let Some((name, parents)) = components.split_last() else {
            // The root itself.
            return self.finish_member(ROOT, member);
        };
        let parent = self.directory(parents, member.path)?;
        let fail = |source| filesystem_error(member.path, source);
        let owner = member.owner;
        let made = match member.kind {
            Kind::HardLink(target) => return self.link(parent, name, target, member.path),
            Kind::Directory => {
                let ino = self.make_directory(parent, name, owner).map_err(fail)?;
                return self.finish_member(ino, member);
            }
            Kind::File { .. } => self.replace(parent, name, |filesystem| {
                filesystem.create(parent, name, owner)
            }),
            Kind::Symlink(target) => self.replace(parent, name, |filesystem| {
                filesystem.symlink(parent, name, target, owner)
            }),
            Kind::CharDevice(major, minor) => self.replace(parent, name, |filesystem| {
                let device = (major, minor);
                filesystem.mknod(parent, name, FileKind::CharDevice, device, owner)
            }),
            Kind::BlockDevice(major, minor) => self.replace(parent, name, |filesystem| {
                let device = (major, minor);
                filesystem.mknod(parent, name, FileKind::BlockDevice, device, owner)
            }),
            Kind::Fifo => self.replace(parent, name, |filesystem| {
                filesystem.mknod(parent, name, FileKind::Fifo, (0, 0), owner)
            }),
        };
        let ino = made.map_err(fail)?;
        if let Kind::File { size, segments } = member.kind {
            self.contents(ino, size, segments, member.path, body)?;
        }
        self.finish_member(ino, member)
    }

    /// Gives directories their times. Nothing is durable before [`Ext4::sync`].
    ///
    /// # Errors
    ///
    /// [`ImportError::Filesystem`].
    pub fn finish(self) -> Result<Imported, ImportError> {
        for (ino, mtime) in self.times {
            let set = SetAttributes {
                atime: Some(mtime),
                mtime: Some(mtime),
                ..SetAttributes::default()
            };
            self.filesystem
                .set_attributes(ino, &set)
                .map_err(|source| filesystem_error(b"/", source))?;
        }
        Ok(self.imported)
    }

    /// The directory at a path; what is missing is made as root's.
    fn directory(&mut self, components: &[&[u8]], path: &[u8]) -> Result<Ino, ImportError> {
        let key = components.join(&b'/');
        if let Some(&ino) = self.known.get(&key) {
            return Ok(ino);
        }
        let fail = |source| filesystem_error(path, source);
        let mut at = ROOT;
        for (index, component) in components.iter().enumerate() {
            at = match self.filesystem.lookup(at, component) {
                Ok(ino) => match self.filesystem.stat(ino).map_err(fail)?.kind() {
                    Some(FileKind::Directory) => ino,
                    Some(FileKind::Symlink) => {
                        let so_far = components.get(..=index).unwrap_or_default();
                        let so_far = so_far.join(&b'/');
                        self.filesystem.resolve(&so_far).map_err(fail)?
                    }
                    _ => return Err(fail(Errno::NotADirectory.into())),
                },
                Err(error) if error.errno() == Errno::NotFound => {
                    let owner = Owner::root(0o755);
                    let ino = self.filesystem.mkdir(at, component, owner).map_err(fail)?;
                    self.times.insert(ino, Timestamp::default());
                    ino
                }
                Err(error) => return Err(fail(error)),
            };
        }
        self.known.insert(key, at);
        Ok(at)
    }

    /// A directory that may be there already.
    fn make_directory(&mut self, parent: Ino, name: &[u8], owner: Owner) -> Result<Ino, Error> {
        match self.filesystem.mkdir(parent, name, owner) {
            Err(error) if error.errno() == Errno::Exists => {}
            made => return made,
        }
        let ino = self.filesystem.lookup(parent, name)?;
        if self.filesystem.stat(ino)?.kind() == Some(FileKind::Directory) {
            return Ok(ino);
        }
        self.remove(parent, name)?;
        self.filesystem.mkdir(parent, name, owner)
    }

    /// Makes something in place of what has the name.
    fn replace(
        &mut self,
        parent: Ino,
        name: &[u8],
        make: impl Fn(&mut Ext4<D>) -> Result<Ino, Error>,
    ) -> Result<Ino, Error> {
        match make(self.filesystem) {
            Err(error) if error.errno() == Errno::Exists => {
                self.remove(parent, name)?;
                make(self.filesystem)
            }
            made => made,
        }
    }

    /// Removes a name; a directory must be empty.
    fn remove(&mut self, parent: Ino, name: &[u8]) -> Result<(), Error> {
        let ino = self.filesystem.lookup(parent, name)?;
        // A path through it may mean something else from now on.
        self.known.clear();
        if self.filesystem.stat(ino)?.kind() == Some(FileKind::Directory) {
            self.times.remove(&ino);
            return self.filesystem.rmdir(parent, name);
        }
        self.filesystem.unlink(parent, name)
    }

    fn link(
        &mut self,
        parent: Ino,
        name: &[u8],
        target: &[u8],
        path: &[u8],
    ) -> Result<(), ImportError> {
        let fail = |source| filesystem_error(path, source);
        let target = components(target)?.join(&b'/');
        let ino = self.filesystem.resolve_no_follow(&target).map_err(fail)?;
        match self.filesystem.link(ino, parent, name) {
            Err(error) if error.errno() == Errno::Exists => {
                if self.filesystem.lookup(parent, name).map_err(fail)? == ino {
                    return Ok(());
                }
                self.remove(parent, name).map_err(fail)?;
                self.filesystem.link(ino, parent, name).map_err(fail)
            }
            linked => linked.map_err(fail),
        }
    }

    fn contents(
        &mut self,
        ino: Ino,
        size: u64,
        segments: Option<&[Segment]>,
        path: &[u8],
        body: &mut dyn Read,
    ) -> Result<(), ImportError> {
        let whole = [Segment {
            offset: 0,
            length: size,
        }];
        for segment in segments.unwrap_or(&whole) {
            let mut at = segment.offset;
            let end = segment.offset.saturating_add(segment.length);
            while at < end {
                let count = (end - at).min(PIECE as u64) as usize;
                let piece = self.buffer.get_mut(..count).unwrap_or_default();
                body.read_exact(piece).map_err(|source| ImportError::Body {
                    path: path.to_vec(),
                    source,
                })?;
                let written = self
                    .filesystem
                    .write(ino, at, piece)
                    .map_err(|source| filesystem_error(path, source))?;
                if written < count {
                    return Err(filesystem_error(path, Errno::NoSpace.into()));
                }
                at += count as u64;
            }
            self.imported.bytes += segment.length;
        }
        let end = segments
            .unwrap_or(&whole)
            .last()
            .map_or(0, |last| last.offset.saturating_add(last.length));
        if end != size {
            self.filesystem
                .truncate(ino, size)
                .map_err(|source| filesystem_error(path, source))?;
        }
        Ok(())
    }

    /// What all but hard links have.
    fn finish_member(&mut self, ino: Ino, member: &Member<'_>) -> Result<(), ImportError> {
        let fail = |source| filesystem_error(member.path, source);
        for (name, value) in member.xattrs {
            self.filesystem
                .set_xattr(ino, name, value, SetXattr::Any)
                .map_err(fail)?;
        }
        let symlink = matches!(member.kind, Kind::Symlink(_));
        let set = SetAttributes {
            // Those of a link have no meaning, but 0777.
            permissions: (!symlink).then_some(member.owner.permissions),
            uid: Some(member.owner.uid),
            gid: Some(member.owner.gid),
            atime: Some(member.mtime),
            mtime: Some(member.mtime),
            ctime: None,
        };
        self.filesystem.set_attributes(ino, &set).map_err(fail)?;
        if matches!(member.kind, Kind::Directory) {
            self.times.insert(ino, member.mtime);
        }
        Ok(())
    }
}

fn filesystem_error(path: &[u8], source: Error) -> ImportError {
    ImportError::Filesystem {
        path: path.to_vec(),
        source,
    }
}

/// A path's components; `.` and empty ones mean nothing.
fn components(path: &[u8]) -> Result<Vec<&[u8]>, ImportError> {
    let wrong = |problem| ImportError::Path {
        path: path.to_vec(),
        problem,
    };
    let mut components = Vec::new();
    for component in path.split(|&byte| byte == b'/') {
        match component {
            b"" | b"." => {}
            b".." => return Err(wrong("`..` could lead out of the filesystem")),
            _ if component.contains(&0) => return Err(wrong("its name contains a NUL byte")),
            _ => components.push(component),
        }
    }
    Ok(components)
}
