//! Reads the lower layer: the files below a sandbox's changes.

use std::fs::File;
use std::sync::Mutex;

use micabox_erofs::format::{self, FileType};
use micabox_erofs::reader::Inode;
use micabox_erofs::{BLOCK_SIZE, Concat, Reader};
use micabox_ext4::device::ReadOnly;
use micabox_ext4::{DirEntry, Errno, Ext4, FileKind, Ino, Options, ROOT, Segment};
use micabox_file::Stat;
use micabox_ground::lock;
use serde::{Deserialize, Serialize};

use crate::upper::{Upper, UpperError};
use crate::words::WHITEOUT_DEVICE;

/// A tree of files. Several threads may read it: an image side by side, an ext4 filesystem, whose
/// reader keeps what it has read, one after the other.
pub enum Lower {
    /// An image.
    Erofs(Reader<Concat<File>>),
    /// An ext4 filesystem.
    Ext4(Box<Mutex<Disk>>),
    /// A directory of the host, by a reader of upper layers.
    Folder(Mutex<Box<dyn Upper + Send>>),
    /// An empty tree.
    Nothing,
}

type Disk = Ext4<ReadOnly<File>>;

/// A file of the tree.
#[derive(Clone, Debug)]
pub struct Node {
    at: At,
    /// Its attributes.
    pub stat: Stat,
}

/// An entry of a directory.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its name.
    pub name: Box<[u8]>,
    /// Its file's number.
    pub number: u64,
    /// Its file's kind, as the directory has it; none if the directory says nothing.
    pub kind: Option<FileKind>,
}

#[derive(Clone, Debug)]
enum At {
    Erofs(Box<Inode>),
    Ext4(Ino),
    Folder(Ino),
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
    /// The directory can't be read.
    #[error(transparent)]
    Folder(#[from] UpperError),
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
        self.stat.kind == FileKind::CharDevice && self.stat.device == WHITEOUT_DEVICE
    }

    /// Returns the file's inode number, unique in the tree.
    pub fn number(&self) -> u64 {
        self.stat.number
    }

    /// Returns the number, which all names of the file share, if it has more than one.
    pub fn linked(&self) -> Option<u64> {
        (self.stat.links > 1).then(|| self.number())
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
                Self::Ext4(Box::new(Mutex::new(filesystem)))
            }
        })
    }
}

impl Lower {
    /// A tree that is the whole layer of a reader, whatever marks there are in it.
    pub fn folder(reader: Box<dyn Upper + Send>) -> Self {
        Self::Folder(Mutex::new(reader))
    }

    /// Checks that no file needs what this reader lacks: compressed ones of an image.
    ///
    /// # Errors
    /// [`LowerError::Erofs`].
    pub fn check_files(&self) -> Result<()> {
        match self {
            Self::Erofs(reader) if reader.may_be_compressed() => {
                match reader.walk(|_, _| Ok(())) {
                    Err(error @ micabox_erofs::Error::Compressed(_)) => Err(error.into()),
                    // What is damaged is where it is read.
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Returns the root directory.
    ///
    /// # Errors
    /// [`LowerError`].
    pub fn root(&self) -> Result<Node> {
        match self {
            Self::Erofs(reader) => erofs_node(reader.inode(reader.root())?),
            Self::Ext4(disk) => ext4_node(&mut lock(disk), ROOT),
            Self::Folder(reader) => {
                let reader = &mut lock(reader);
                let root = reader.layer()?.ok_or(LowerError::NoFile)?;
                folder_node(reader, root)
            }
            Self::Nothing => Err(LowerError::NoFile),
        }
    }

    /// Returns a directory's entry with a name.
    ///
    /// # Errors
    /// [`LowerError`].
    pub fn lookup(&self, directory: &Node, name: &[u8]) -> Result<Option<Node>> {
        match (self, &directory.at) {
            (Self::Erofs(reader), At::Erofs(inode)) => match reader.lookup(inode, name)? {
                Some(entry) => erofs_node(reader.inode(entry.nid)?).map(Some),
                None => Ok(None),
            },
            (Self::Ext4(disk), At::Ext4(ino)) => {
                let disk = &mut lock(disk);
                match disk.lookup(*ino, name) {
                    Ok(ino) => ext4_node(disk, ino).map(Some),
                    Err(error) if error.errno() == Errno::NotFound => Ok(None),
                    Err(error) => Err(error.into()),
                }
            }
            (Self::Folder(reader), At::Folder(ino)) => {
                let reader = &mut lock(reader);
                let found = reader.entry(*ino, name)?;
                found.map(|ino| folder_node(reader, ino)).transpose()
            }
            _ => Ok(None),
        }
    }

    /// Returns the file with a number.
    ///
    /// # Errors
    /// [`LowerError`].
    pub fn node(&self, number: u64) -> Result<Node> {
        match self {
            Self::Erofs(reader) => erofs_node(reader.inode(number)?),
            Self::Ext4(disk) => {
                // No inode has a number beyond 32 bits, and none has the number 0.
                let ino = Ino::try_from(number).unwrap_or_default();
                ext4_node(&mut lock(disk), ino)
            }
            Self::Folder(reader) => {
                folder_node(&mut lock(reader), Ino::try_from(number).unwrap_or_default())
            }
            Self::Nothing => Err(LowerError::NoFile),
        }
    }

    /// Returns a directory's entries, without `.` and `..`.
    ///
    /// # Errors
    /// [`LowerError`].
    pub fn entries(&self, directory: &Node) -> Result<Vec<Entry>> {
        Ok(match (self, &directory.at) {
            (Self::Erofs(reader), At::Erofs(inode)) => {
                let entries = reader.read_dir(inode)?.into_iter();
                let entry = entries.map(|entry| Entry {
                    name: entry.name,
                    number: entry.nid,
                    kind: Some(kind(entry.kind)),
                });
                entry.collect()
            }
            (Self::Ext4(disk), At::Ext4(ino)) => {
                let entries = lock(disk).read_dir(*ino)?.into_iter();
                let entry = entries.map(|DirEntry { name, ino, kind }| Entry {
                    name,
                    number: ino.into(),
                    kind,
                });
                entry.collect()
            }
            (Self::Folder(reader), At::Folder(ino)) => {
                let entries = lock(reader).entries(*ino)?.into_iter();
                let entry = entries.map(|(name, ino)| Entry {
                    name,
                    number: ino.into(),
                    kind: None,
                });
                entry.collect()
            }
            _ => Vec::new(),
        })
    }

    /// Reads from a file. Returns the number of bytes, 0 at its end.
    ///
    /// # Errors
    /// [`LowerError`].
    pub fn read(&self, file: &Node, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        Ok(match (self, &file.at) {
            (Self::Erofs(reader), At::Erofs(inode)) => reader.read(inode, offset, buffer)?,
            (Self::Ext4(disk), At::Ext4(ino)) => lock(disk).read(*ino, offset, buffer)?,
            (Self::Folder(reader), At::Folder(ino)) => {
                lock(reader).read_at(*ino, offset, buffer)?
            }
            _ => 0,
        })
    }

    /// Returns the parts of a file that are not holes, ascending.
    ///
    /// # Errors
    /// [`LowerError`].
    pub fn segments(&self, file: &Node) -> Result<Vec<Segment>> {
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
            (Self::Ext4(disk), At::Ext4(ino)) => lock(disk).segments(*ino)?,
            (Self::Folder(reader), At::Folder(ino)) => lock(reader).data(*ino)?,
            _ => Vec::new(),
        })
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// [`LowerError`].
    pub fn read_link(&self, link: &Node) -> Result<Vec<u8>> {
        Ok(match (self, &link.at) {
            (Self::Erofs(reader), At::Erofs(inode)) => reader.read_link(inode)?.into_vec(),
            (Self::Ext4(disk), At::Ext4(ino)) => lock(disk).read_link(*ino)?,
            (Self::Folder(reader), At::Folder(ino)) => lock(reader).target(*ino)?,
            _ => Vec::new(),
        })
    }

    /// Returns names and values of extended attributes.
    ///
    /// # Errors
    /// [`LowerError`].
    pub fn xattrs(&self, node: &Node) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        Ok(match (self, &node.at) {
            (Self::Erofs(reader), At::Erofs(inode)) => {
                let xattrs = reader.xattrs(inode)?.into_iter();
                let pair = xattrs.map(|xattr| (xattr.name.to_vec(), xattr.value.to_vec()));
                pair.collect()
            }
            (Self::Ext4(disk), At::Ext4(ino)) => {
                let disk = &mut lock(disk);
                let names = disk.xattr_names(*ino)?.into_iter();
                let pair = names.map(|name| {
                    let value = disk.xattr(*ino, &name)?;
                    Ok::<_, LowerError>((name.into_vec(), value))
                });
                pair.collect::<Result<_>>()?
            }
            (Self::Folder(reader), At::Folder(ino)) => {
                let reader = &mut lock(reader);
                let mut pairs = Vec::new();
                for name in reader.attribute_names(*ino)? {
                    let value = reader.attribute(*ino, &name)?;
                    pairs.extend(value.map(|value| (name.into_vec(), value)));
                }
                pairs
            }
            _ => Vec::new(),
        })
    }
}

fn kind(kind: FileType) -> FileKind {
    match kind {
        FileType::Regular => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::CharDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::Symlink => FileKind::Symlink,
    }
}

fn erofs_node(inode: Inode) -> Result<Node> {
    let stat = Stat {
        number: inode.nid,
        kind: kind(inode.kind),
        mode: inode.mode,
        uid: inode.uid,
        gid: inode.gid,
        // The only time that an image has, as the kernel shows it too.
        atime: inode.mtime,
        mtime: inode.mtime,
        ctime: inode.mtime,
        born: inode.mtime,
        device: format::decode_device(inode.device),
        size: inode.size,
        blocks: inode.size.div_ceil(BLOCK_SIZE) * (BLOCK_SIZE / 512),
        links: inode.nlink,
    };
    let at = At::Erofs(Box::new(inode));
    Ok(Node { at, stat })
}

fn ext4_node(disk: &mut Disk, ino: Ino) -> Result<Node> {
    Ok(Node {
        at: At::Ext4(ino),
        stat: disk.stat(ino)?.into(),
    })
}

fn folder_node(reader: &mut Box<dyn Upper + Send>, ino: Ino) -> Result<Node> {
    Ok(Node {
        at: At::Folder(ino),
        stat: reader.attributes(ino)?.into(),
    })
}
