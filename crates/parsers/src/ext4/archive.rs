//! Exports archives from a filesystem, and imports them into one.

use std::fs::File;
use std::io::BufWriter;
use std::os::fd::OwnedFd;

use micabox_ext4::{Errno, Ext4, FileKind, Options};
use micabox_jail::Call;
use micabox_overlay::edit::Edit;
use micabox_overlay::export::{ExportError, Exporter};
use micabox_overlay::through_links;
use micabox_overlay::unpack::{self, UnpackError, Unpacked};
use serde::{Deserialize, Serialize};

use super::{PIECE, Result, notes, open};
use crate::HEADERS;
use crate::{Fault, Files, Notes, Stream, length};

/// Where an archive with a single top member is unpacked. The top's own name is replaced.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Destination {
    /// A directory that the top goes into, or the path that the top gets.
    pub path: Vec<u8>,
    /// The top's name if `path` is an existing directory.
    pub name: Vec<u8>,
    /// Whether the top is a directory.
    pub is_directory: bool,
}

/// Writes what is at a path as an archive, symbolic links followed. Files: the filesystem, a pipe.
#[derive(Debug, Serialize, Deserialize)]
pub struct Export {
    path: Vec<u8>,
    /// Its name in the archive.
    name: Vec<u8>,
    xattrs: bool,
    /// Whether anything but a directory is refused.
    directory: bool,
}

/// Unpacks an archive. Files: the filesystem, the archive.
#[derive(Debug, Serialize, Deserialize)]
pub struct Import {
    /// None: at the root, under the archive's own names.
    into: Option<Destination>,
}

/// Exports the directory at `path` as an archive with all attributes.
///
/// # Errors
/// [`CallError`](micabox_jail::CallError); more come from [`Stream::finish`].
pub fn export(file: File, path: &[u8]) -> Result<Stream<Export>> {
    let export = Export {
        path: path.to_vec(),
        name: Vec::new(),
        xattrs: true,
        directory: true,
    };
    start_export(&export, file)
}

/// Exports what is at `path` as an archive without extended attributes, under the name `name`.
///
/// # Errors
/// [`CallError`](micabox_jail::CallError); more come from [`Stream::finish`].
pub fn pack(file: File, path: &[u8], name: &[u8]) -> Result<Stream<Export>> {
    let export = Export {
        path: path.to_vec(),
        name: name.to_vec(),
        xattrs: false,
        directory: false,
    };
    start_export(&export, file)
}

fn start_export(export: &Export, file: File) -> Result<Stream<Export>> {
    // As for a sandbox's disk: its bytes, and as many again with headers for attributes.
    let size = length(&file).unwrap_or(0);
    let most = size.saturating_mul(2).saturating_add(HEADERS);
    Stream::start(export, file, Vec::new(), most)
}

/// Unpacks an archive, to the root or elsewhere. Returns the number of members and bytes of
/// contents.
///
/// # Errors
/// [`CallError`](micabox_jail::CallError): [`Fault::Disk`] is about the filesystem as a whole,
/// [`Fault::Asked`] about the archive, [`Fault::Output`] about a member that can't be unpacked.
pub fn import(file: File, archive: OwnedFd, into: Option<Destination>) -> Result<(u64, u64)> {
    let size = length(&file).unwrap_or(0);
    crate::call(&Import { into }, file, vec![archive.into()], size)
}

impl Call for Export {
    const KIND: &'static str = "ext4-export";
    type Reply = Notes;
    type Error = Fault;

    fn run(self, files: Vec<OwnedFd>) -> std::result::Result<Notes, Fault> {
        let mut files = Files::new(files);
        let mut filesystem = open(files.take()?)?;
        let output = BufWriter::with_capacity(PIECE, files.take()?);
        let ino = filesystem.resolve(&self.path).map_err(Fault::disk)?;
        if self.directory {
            let stat = filesystem.stat(ino).map_err(Fault::disk)?;
            if stat.kind() != Some(FileKind::Directory) {
                return Err(Fault::disk(micabox_ext4::Error::from(Errno::NotADirectory)));
            }
        }
        let mut export = Exporter::new(&filesystem, output);
        let xattr = |_: &[u8]| (!self.xattrs).then(Vec::new);
        export
            .tree(&mut filesystem, ino, &self.name, xattr)
            .and_then(|()| export.finish())
            .map_err(|error| match error {
                ExportError::Output(error) => Fault::output(error),
                error => Fault::asked(error),
            })
            .map(|exported| notes(&filesystem).with(exported))
    }
}

impl Call for Import {
    const KIND: &'static str = "ext4-import";
    type Reply = (u64, u64);
    type Error = Fault;

    fn run(self, files: Vec<OwnedFd>) -> std::result::Result<(u64, u64), Fault> {
        let mut files = Files::new(files);
        let file = files.take()?;
        let archive = files.take()?;
        let filesystem = Ext4::open(file, Options::default()).map_err(Fault::disk)?;
        let Unpacked { members, bytes } = unpack(filesystem, archive, self.into.as_ref())?;
        Ok((members, bytes))
    }
}

fn unpack(
    mut filesystem: Ext4<File>,
    archive: File,
    into: Option<&Destination>,
) -> std::result::Result<Unpacked, Fault> {
    let top = into.map(|into| top(&mut filesystem, into)).transpose()?;
    let mut edit = Edit::filesystem(filesystem);
    let unpacked = unpack::unpack(&mut edit, archive, |path| match &top {
        Some(top) => below(top, path),
        None => path.to_vec(),
    });
    // The filesystem must be consistent even after a failed import.
    let closed = edit.close().map_err(Fault::disk);
    let unpacked = unpacked.map_err(|error| match error {
        UnpackError::Archive(error) => Fault::asked(error),
        error => Fault::output(error),
    })?;
    closed?;
    Ok(unpacked)
}

/// Returns the path of the archive's top.
fn top(filesystem: &mut Ext4<File>, into: &Destination) -> std::result::Result<Vec<u8>, Fault> {
    let Destination {
        path,
        name,
        is_directory,
    } = into;
    let is_directory_there = |filesystem: &mut Ext4<File>, ino| {
        let stat = filesystem.stat(ino).map_err(Fault::disk)?;
        Ok::<_, Fault>(stat.kind() == Some(FileKind::Directory))
    };
    let path = &through_links(path, |path| link(filesystem, path))?;
    if let Ok(ino) = filesystem.resolve(path)
        && is_directory_there(filesystem, ino)?
    {
        return Ok([path, &b"/"[..], name].concat());
    }
    let (parent, last) = filesystem.resolve_parent(path).map_err(Fault::disk)?;
    // A directory does not replace a file.
    if *is_directory
        && let Ok(ino) = filesystem.lookup(parent, last)
        && !is_directory_there(filesystem, ino)?
    {
        let error = micabox_ext4::Error::from(Errno::NotADirectory);
        return Err(Fault::disk(error));
    }
    Ok(path.clone())
}

/// Returns what the symbolic link at a path says; none if there is none.
fn link(filesystem: &mut Ext4<File>, path: &[u8]) -> std::result::Result<Option<Vec<u8>>, Fault> {
    let Ok((parent, name)) = filesystem.resolve_parent(path) else {
        return Ok(None);
    };
    let Ok(ino) = filesystem.lookup(parent, name) else {
        return Ok(None);
    };
    let stat = filesystem.stat(ino).map_err(Fault::disk)?;
    if stat.kind() != Some(FileKind::Symlink) {
        return Ok(None);
    }
    filesystem.read_link(ino).map(Some).map_err(Fault::disk)
}

/// Replaces the first component of a member's path.
fn below(top: &[u8], path: &[u8]) -> Vec<u8> {
    match path.iter().position(|byte| *byte == b'/') {
        Some(slash) => [top, path.get(slash..).unwrap_or_default()].concat(),
        None => top.to_vec(),
    }
}
