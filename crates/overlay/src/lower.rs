//! The lower layer: the files below a sandbox's changes.

use std::fs::File;

use micabox_erofs::format::{self, FileType};
use micabox_erofs::reader::Inode;
use micabox_erofs::{BLOCK_SIZE, Concat, Reader};
use micabox_ext4::device::ReadOnly;
use micabox_ext4::{DirEntry, Errno, Ext4, FileKind, Ino, Options, ROOT, Segment, Timestamp};
use serde::{Deserialize, Serialize};

use crate::view;
use crate::words::WHITEOUT_DEVICE;

/// A tree of files.
pub enum Lower {
    /// An image.
    Erofs(Reader<Concat<File>>),
    /// An ext4 filesystem.
    Ext4(Box<Ext4<ReadOnly<File>>>),
    /// No files at all.
    Nothing,
}

/// Something in it.
#[derive(Clone, Debug)]
pub struct Node {
    at: At,
    /// What it is.
    pub kind: FileKind,
    /// Permission, set-id and sticky bits.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// When its contents were changed last.
    pub mtime: Timestamp,
    /// Major and minor number of a device.
    pub device: (u32, u32),
    /// Bytes, of a regular file.
    pub size: u64,
    /// A number that all names of a file have in common, if it has more than one.
    pub linked: Option<u64>,
}

#[derive(Clone, Debug)]
enum At {
    Erofs(Box<Inode>),
    Ext4(Ino),
}

/// Why it can't be read.
#[derive(Debug, thiserror::Error)]
pub enum LowerError {
    /// An EROFS image.
    #[error(transparent)]
    Erofs(#[from] micabox_erofs::Error),
    /// An ext4 filesystem.
    #[error(transparent)]
    Ext4(#[from] micabox_ext4::Error),
    /// It has no file.
    #[error("there is no file to read it from")]
    NoFile,
}

type Result<T> = std::result::Result<T, LowerError>;

/// How to read what is below.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LowerKind {
    /// An image: metadata, then layers, as they lie.
    Erofs,
    /// An ext4 filesystem.
    Ext4,
}

impl Node {
    /// Whether overlayfs takes it for nothing.
    pub(crate) fn is_whiteout(&self) -> bool {
        self.kind == FileKind::CharDevice && self.device == WHITEOUT_DEVICE
    }

    /// A number that nothing else in the tree has.
    pub fn number(&self) -> u64 {
        match &self.at {
            At::Erofs(inode) => inode.nid,
            At::Ext4(ino) => (*ino).into(),
        }
    }
}

impl Lower {
    /// Reads what is in `files`: an image's metadata, then its layers, each file padded to whole
    /// blocks; or one ext4 filesystem.
    ///
    /// # Errors
    /// [`LowerError`].
    pub fn open(kind: LowerKind, files: Vec<File>) -> Result<Self> {
        Ok(match kind {
            LowerKind::Erofs => {
                // They are padded as they lie.
                let source = Concat::new(files, BLOCK_SIZE).map_err(micabox_erofs::Error::Read)?;
                Self::Erofs(Reader::open(source)?)
            }
            LowerKind::Ext4 => {
                let file = files.into_iter().next().ok_or(LowerError::NoFile)?;
                let filesystem = Ext4::open_read_only(ReadOnly(file), Options::default())?;
                Self::Ext4(Box::new(filesystem))
            }
        })
    }
}

impl Lower {
    /// The root directory.
    ///
    /// # Errors
    /// [`LowerError`].
    pub fn root(&mut self) -> Result<Node> {
        match self {
            Self::Erofs(reader) => erofs_node(reader.inode(reader.root())?),
            Self::Ext4(filesystem) => ext4_node(filesystem, ROOT),
            Self::Nothing => Err(LowerError::NoFile),
        }
    }

    /// What a directory has at a name.
    ///
    /// # Errors
    /// [`LowerError`].
    pub fn lookup(&mut self, directory: &Node, name: &[u8]) -> Result<Option<Node>> {
        match (self, &directory.at) {
            (Self::Erofs(reader), At::Erofs(inode)) => match reader.lookup(inode, name)? {
                Some(entry) => erofs_node(reader.inode(entry.nid)?).map(Some),
                None => Ok(None),
            },
            (Self::Ext4(filesystem), At::Ext4(ino)) => match filesystem.lookup(*ino, name) {
                Ok(ino) => ext4_node(filesystem, ino).map(Some),
                Err(error) if error.errno() == Errno::NotFound => Ok(None),
                Err(error) => Err(error.into()),
            },
            _ => Ok(None),
        }
    }

    /// The names in a directory, without `.` and `..`.
    ///
    /// # Errors
    /// [`LowerError`].
    pub fn names(&mut self, directory: &Node) -> Result<Vec<Box<[u8]>>> {
        Ok(match (self, &directory.at) {
            (Self::Erofs(reader), At::Erofs(inode)) => {
                let entries = reader.read_dir(inode)?.into_iter();
                entries.map(|entry| entry.name).collect()
            }
            (Self::Ext4(filesystem), At::Ext4(ino)) => {
                let entries = filesystem.read_dir(*ino)?.into_iter();
                entries.map(|DirEntry { name, .. }| name).collect()
            }
            _ => Vec::new(),
        })
    }

    /// Reads from a file: how many bytes, 0 at its end.
    ///
    /// # Errors
    /// [`LowerError`].
    pub fn read(&mut self, file: &Node, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        Ok(match (self, &file.at) {
            (Self::Erofs(reader), At::Erofs(inode)) => reader.read(inode, offset, buffer)?,
            (Self::Ext4(filesystem), At::Ext4(ino)) => filesystem.read(*ino, offset, buffer)?,
            _ => 0,
        })
    }

    /// The parts of a file that are no holes, ascending.
    ///
    /// # Errors
    /// [`LowerError`].
    pub fn segments(&mut self, file: &Node) -> Result<Vec<Segment>> {
        Ok(match (self, &file.at) {
            (Self::Erofs(reader), At::Erofs(inode)) => {
                let extents = reader.extents(inode)?.into_iter();
                let data = extents.filter(|extent| extent.address.is_some());
                let segments = data.map(|extent| Segment {
                    offset: extent.offset,
                    length: extent.length,
                });
                segments.collect()
            }
            (Self::Ext4(filesystem), At::Ext4(ino)) => filesystem.segments(*ino)?,
            _ => Vec::new(),
        })
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// [`LowerError`].
    pub fn read_link(&mut self, link: &Node) -> Result<Vec<u8>> {
        Ok(match (self, &link.at) {
            (Self::Erofs(reader), At::Erofs(inode)) => reader.read_link(inode)?.into_vec(),
            (Self::Ext4(filesystem), At::Ext4(ino)) => filesystem.read_link(*ino)?,
            _ => Vec::new(),
        })
    }

    /// Names and values of extended attributes.
    ///
    /// # Errors
    /// [`LowerError`].
    pub fn xattrs(&mut self, node: &Node) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        Ok(match (self, &node.at) {
            (Self::Erofs(reader), At::Erofs(inode)) => {
                let xattrs = reader.xattrs(inode)?.into_iter();
                let pair = xattrs.map(|xattr| (xattr.name.to_vec(), xattr.value.to_vec()));
                pair.collect()
            }
            (Self::Ext4(filesystem), At::Ext4(ino)) => view::xattrs(filesystem, *ino)?,
            _ => Vec::new(),
        })
    }
}

fn erofs_node(inode: Inode) -> Result<Node> {
    Ok(Node {
        kind: match inode.kind {
            FileType::Regular => FileKind::File,
            FileType::Directory => FileKind::Directory,
            FileType::CharDevice => FileKind::CharDevice,
            FileType::BlockDevice => FileKind::BlockDevice,
            FileType::Fifo => FileKind::Fifo,
            FileType::Socket => FileKind::Socket,
            FileType::Symlink => FileKind::Symlink,
        },
        permissions: inode.mode,
        uid: inode.uid,
        gid: inode.gid,
        mtime: inode.mtime,
        device: format::decode_device(inode.device),
        size: inode.size,
        linked: (inode.nlink > 1).then_some(inode.nid),
        at: At::Erofs(Box::new(inode)),
    })
}

fn ext4_node(filesystem: &mut Ext4<ReadOnly<File>>, ino: Ino) -> Result<Node> {
    let stat = filesystem.stat(ino)?;
    Ok(Node {
        at: At::Ext4(ino),
        // Only a damaged one has none; it is read as nothing.
        kind: stat.kind().unwrap_or(FileKind::Fifo),
        permissions: stat.mode & 0o7777,
        uid: stat.uid,
        gid: stat.gid,
        mtime: stat.mtime,
        device: stat.device,
        size: stat.size,
        linked: (stat.links > 1).then_some(ino.into()),
    })
}
