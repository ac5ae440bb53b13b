//! Reads names, attributes and contents of files.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::fd::OwnedFd;

use micabox_ext4::{FileKind, Ino, Stat, Timestamp};
use micabox_jail::Call;
use serde::{Deserialize, Serialize};

use super::{Filesystem, PIECE, Result, notes, open};
use crate::stream::Records;
use crate::{Fault, Files, Notes, Stream, records};

/// The attributes of one inode.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Attributes {
    /// Its number.
    pub inode: u32,
    /// Type and permissions.
    pub mode: u16,
    /// Number of hard links.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// Blocks of 512 bytes.
    pub blocks: u64,
    /// Major and minor number of a device.
    pub device: (u32, u32),
    /// Last access. All times are in seconds and nanoseconds since 1970-01-01 UTC.
    pub atime: (i64, u32),
    /// Last change of the contents.
    pub mtime: (i64, u32),
    /// Last change of the inode.
    pub ctime: (i64, u32),
    /// Creation.
    pub crtime: (i64, u32),
    /// The target of a symbolic link.
    pub target: Option<Vec<u8>>,
}

impl Attributes {
    /// Returns the type; none if the mode has no valid one.
    pub fn kind(&self) -> Option<FileKind> {
        FileKind::from_mode(self.mode)
    }
}

/// A name in a directory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Listed {
    /// The name.
    pub name: Vec<u8>,
    /// The attributes of its inode, if requested.
    pub attributes: Option<Attributes>,
}

/// The attributes of an inode, with its extended attributes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Shown {
    /// The other attributes.
    pub attributes: Attributes,
    /// Names and values of extended attributes.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Notes about the filesystem.
    pub notes: Notes,
}

/// Lists the names in a directory in order. Files: the filesystem, a pipe.
#[derive(Debug, Serialize, Deserialize)]
pub struct List {
    path: Vec<u8>,
    long: bool,
}

/// Reads the attributes of a path, without following a symbolic link at its end. File: the
/// filesystem.
#[derive(Debug, Serialize, Deserialize)]
pub struct Show {
    path: Vec<u8>,
}

/// Reads a file's contents. Files: the filesystem, a pipe.
#[derive(Debug, Serialize, Deserialize)]
pub struct Read {
    path: Vec<u8>,
}

/// Lists the names in the directory at `path`, in the order of their bytes; with `long`, with
/// attributes.
///
/// # Errors
/// [`CallError`](micabox_jail::CallError); more come from reading them.
pub fn list(file: File, path: &[u8], long: bool) -> Result<Records<List, Listed>> {
    let path = path.to_vec();
    let list = List { path, long };
    Ok(Records::new(Stream::start(
        &list,
        file,
        Vec::new(),
        u64::MAX,
    )?))
}

/// Reads the attributes of the inode at `path`, without following a symbolic link at its end.
///
/// # Errors
/// [`CallError`](micabox_jail::CallError).
pub fn show(file: File, path: &[u8]) -> Result<Shown> {
    let path = path.to_vec();
    crate::call(&Show { path }, file, Vec::new(), 0)
}

/// Reads the contents of the file at `path`, holes as zeros.
///
/// # Errors
/// [`CallError`](micabox_jail::CallError); more come from [`Stream::finish`].
pub fn read(file: File, path: &[u8]) -> Result<Stream<Read>> {
    let path = path.to_vec();
    Stream::start(&Read { path }, file, Vec::new(), u64::MAX)
}

fn attributes(filesystem: &mut Filesystem, ino: Ino) -> std::result::Result<Attributes, Fault> {
    let stat = filesystem.stat(ino).map_err(Fault::disk)?;
    let target = match stat.kind() {
        Some(FileKind::Symlink) => Some(filesystem.read_link(ino).map_err(Fault::disk)?),
        _ => None,
    };
    let time = |time: Timestamp| (time.seconds, time.nanos);
    let Stat {
        mode,
        links,
        uid,
        gid,
        size,
        blocks,
        device,
        ..
    } = stat;
    Ok(Attributes {
        inode: ino,
        mode,
        links,
        uid,
        gid,
        size,
        blocks,
        device,
        atime: time(stat.atime),
        mtime: time(stat.mtime),
        ctime: time(stat.ctime),
        crtime: time(stat.crtime),
        target,
    })
}

impl Call for List {
    const KIND: &'static str = "ext4-list";
    type Reply = Notes;
    type Error = Fault;

    fn run(self, files: Vec<OwnedFd>) -> std::result::Result<Notes, Fault> {
        let mut files = Files::new(files);
        let mut filesystem = open(files.take()?)?;
        let mut output = BufWriter::new(files.take()?);
        let directory = filesystem.resolve(&self.path).map_err(Fault::disk)?;
        let mut names = filesystem.read_dir(directory).map_err(Fault::disk)?;
        names.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        for entry in names {
            let attributes = if self.long {
                Some(attributes(&mut filesystem, entry.ino)?)
            } else {
                None
            };
            let name = entry.name.into_vec();
            let listed = Listed { name, attributes };
            records::write(&mut output, &listed).map_err(Fault::output)?;
        }
        output.flush().map_err(Fault::output)?;
        Ok(notes(&filesystem))
    }
}

impl Call for Show {
    const KIND: &'static str = "ext4-show";
    type Reply = Shown;
    type Error = Fault;

    fn run(self, files: Vec<OwnedFd>) -> std::result::Result<Shown, Fault> {
        let mut filesystem = open(Files::new(files).take()?)?;
        let ino = filesystem.resolve_no_follow(&self.path);
        let ino = ino.map_err(Fault::disk)?;
        let mut xattrs = Vec::new();
        for name in filesystem.xattr_names(ino).map_err(Fault::disk)? {
            let value = filesystem.xattr(ino, &name).map_err(Fault::disk)?;
            xattrs.push((name.into_vec(), value));
        }
        Ok(Shown {
            attributes: attributes(&mut filesystem, ino)?,
            xattrs,
            notes: notes(&filesystem),
        })
    }
}

impl Call for Read {
    const KIND: &'static str = "ext4-read";
    type Reply = Notes;
    type Error = Fault;

    fn run(self, files: Vec<OwnedFd>) -> std::result::Result<Notes, Fault> {
        let mut files = Files::new(files);
        let mut filesystem = open(files.take()?)?;
        let mut output = files.take()?;
        let ino = filesystem.resolve(&self.path).map_err(Fault::disk)?;
        let mut buffer = vec![0; PIECE];
        let mut offset = 0;
        loop {
            let count = filesystem.read(ino, offset, &mut buffer);
            let count = count.map_err(Fault::disk)?;
            if count == 0 {
                return Ok(notes(&filesystem));
            }
            let piece = buffer.get(..count).unwrap_or_default();
            output.write_all(piece).map_err(Fault::output)?;
            offset += count as u64;
        }
    }
}
