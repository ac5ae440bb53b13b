//! Reads the lower layer: the files below a sandbox's changes.

use std::fs::File;

use micabox_erofs::format::{self, FileType};
use micabox_erofs::reader::Inode;
use micabox_erofs::{BLOCK_SIZE, Concat, Reader};
use micabox_ext4::device::ReadOnly;
use micabox_ext4::{DirEntry, Errno, Ext4, FileKind, Ino, Options, ROOT, Segment, Timestamp};
use serde::{Deserialize, Serialize};

use crate::words::WHITEOUT_DEVICE;

/// A tree of files.
pub enum Lower {
    /// An image.
    Erofs(Reader<Concat<File>>),
    /// An ext4 filesystem.
    Ext4(Box<Ext4<ReadOnly<File>>>),
    /// An empty tree.
    Nothing,
}

/// A file of the tree.
#[derive(Clone, Debug)]
pub struct Node {
    at: At,
    /// Kind of file.
    pub kind: FileKind,
    /// Permission, set-id and sticky bits.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of the contents.
    pub mtime: Timestamp,
    /// Major and minor number of a device.
    pub device: (u32, u32),
    /// Size of a regular file in bytes.
    pub size: u64,
    /// A number that all names of the file share, if it has more than one.
    pub linked: Option<u64>,
}

#[derive(Clone, Debug)]
enum At {
    Erofs(Box<Inode>),
    Ext4(Ino),
}

/// Why the lower layer can't be read.
#[derive(Debug, thiserror::Error)]
pub enum LowerError {
    /// The EROFS image can't be read.
    #[error(transparent)]
    Erofs(#[from] micabox_erofs::Error),
    /// The ext4 filesystem can't be read.
    #[error(transparent)]
    Ext4(#[from] micabox_ext4::Error),
    /// No file was given.
    #[error("there is no file to read it from")]
    NoFile,
}

type Result<T> = std::result::Result<T, LowerError>;

/// Kind of lower layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LowerKind {
    /// An image: metadata, then layers, one after the other.
    Erofs,
    /// An ext4 filesystem.
    Ext4,
}

impl Node {
    /// Returns whether overlayfs treats the file as a whiteout.
    pub(crate) fn is_whiteout(&self) -> bool {
        self.kind == FileKind::CharDevice && self.device == WHITEOUT_DEVICE
    }

    /// Returns the file's inode number, unique in the tree.
    pub fn number(&self) -> u64 {
        match &self.at {
            At::Erofs(inode) => inode.nid,
            At::Ext4(ino) => (*ino).into(),
        }
    }
}

impl Lower {
    /// Opens the tree in `files`: an image's metadata, then its layers, each file padded to whole
    /// blocks; or one ext4 filesystem.
    ///
    /// # Errors
    /// [`LowerError`].
    pub fn open(kind: LowerKind, files: Vec<File>) -> Result<Self> {
        Ok(match kind {
            LowerKind::Erofs => {
                // Each file is padded to whole blocks, as on the device.
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
    /// Returns the root directory.
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

    /// Returns a directory's entry with a name.
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

    /// Returns the names in a directory, without `.` and `..`.
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

    /// Reads from a file. Returns the number of bytes, 0 at its end.
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

    /// Returns the parts of a file that are not holes, ascending.
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

    /// Returns the target of a symbolic link.
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

    /// Returns names and values of extended attributes.
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
            (Self::Ext4(filesystem), At::Ext4(ino)) => {
                let names = filesystem.xattr_names(*ino)?.into_iter();
                let pair = names.map(|name| {
                    let value = filesystem.xattr(*ino, &name)?;
                    Ok::<_, LowerError>((name.into_vec(), value))
                });
                pair.collect::<Result<_>>()?
            }
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
        // Only an inode on a damaged disk has no kind; it is treated like a FIFO, without contents.
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
