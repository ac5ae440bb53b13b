//! Writes the visible files at a path as an archive.

use std::collections::HashMap;
use std::io::{self, Write};

use micabox_ext4::{FileKind, Owner};
use micabox_tar::{Attributes, Kind, Member, Writer};

use crate::upper::Upper;
use crate::view::{Entry, Found, View, ViewError};
use crate::walk::{Scope, Walk};
use crate::words;

/// Why packing failed.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// The layers can't be read.
    #[error(transparent)]
    View(#[from] ViewError),
    /// The disk is damaged: a directory has several names.
    #[error("a directory has several names")]
    Again,
    /// The disk is damaged: a file is shorter than its size.
    #[error("a file is shorter than its size")]
    Short,
    /// The archive can't be written.
    #[error(transparent)]
    Output(#[from] io::Error),
}

type Result<T> = std::result::Result<T, PackError>;

/// Writes the files at a path as an archive, with the members below `name`, or at the top if
/// `name` is empty; names are in the order of their bytes. `left_out` is called with the paths of
/// sockets, which archives can't hold.
///
/// # Errors
/// [`PackError`].
pub fn pack<U: Upper>(
    view: &mut View<U>,
    found: Found,
    name: &[u8],
    output: impl Write,
    left_out: &mut dyn FnMut(&[u8]),
) -> Result<()> {
    let mut packing = Packing {
        archive: Writer::new(output),
        linked: HashMap::new(),
        left_out,
    };
    match found {
        Found::Other(entry) => packing.add(view, name, &entry)?,
        Found::Directory(directory) => {
            if !name.is_empty() {
                let entry = view.entry(&directory)?;
                packing.add(view, name, &entry)?;
            }
            let mut walk = Walk::new(Scope::Seen, directory, name);
            while let Some(step) = walk.next(view)? {
                if step.again {
                    return Err(PackError::Again);
                }
                let entry = step.slot.seen().ok_or(ViewError::Nothing)?;
                packing.add(view, walk.path(), &entry)?;
            }
        }
    }
    packing.archive.finish()?;
    Ok(())
}

/// An archive that is being written.
struct Packing<'a, W: Write> {
    archive: Writer<W>,
    left_out: &'a mut dyn FnMut(&[u8]),
    /// First names of files that have several.
    linked: HashMap<(bool, u64), Vec<u8>>,
}

impl<W: Write> Packing<'_, W> {
    fn add<U: Upper>(&mut self, view: &mut View<U>, path: &[u8], entry: &Entry) -> Result<()> {
        let kind = entry.kind();
        let linked = entry.linked().filter(|_| kind != Some(FileKind::Directory));
        if let Some(file) = linked {
            if let Some(first) = self.linked.get(&file) {
                let first = Kind::HardLink(first.clone());
                return Ok(self.archive.add(&member(path, entry, first, Vec::new()))?);
            }
            if kind != Some(FileKind::Socket) {
                self.linked.insert(file, path.to_vec());
            }
        }
        let (major, minor) = entry.device();
        let kind = match kind {
            Some(FileKind::File) => Kind::File {
                size: entry.size(),
                segments: Some(view.segments(entry)?),
            },
            Some(FileKind::Directory) => Kind::Directory,
            Some(FileKind::Symlink) => Kind::Symlink(view.read_link(entry)?),
            Some(FileKind::CharDevice) => Kind::CharDevice(major, minor),
            Some(FileKind::BlockDevice) => Kind::BlockDevice(major, minor),
            Some(FileKind::Fifo) => Kind::Fifo,
            Some(FileKind::Socket) | None => {
                (self.left_out)(path);
                return Ok(());
            }
        };
        let member = member(path, entry, kind, xattrs(view, entry)?);
        self.archive.add_file(&member, |offset, piece| {
            if view.read(entry, offset, piece)? == piece.len() {
                Ok(())
            } else {
                Err(PackError::Short)
            }
        })
    }
}

/// Returns the extended attributes that a file has in a sandbox.
fn xattrs<U: Upper>(view: &mut View<U>, entry: &Entry) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut xattrs = Vec::new();
    for (name, value) in view.xattrs(entry)? {
        if !words::is_marker(&name) {
            xattrs.push((words::unescape_xattr_name(&name).into(), value));
        }
    }
    Ok(xattrs)
}

fn member(path: &[u8], entry: &Entry, kind: Kind, xattrs: Vec<(Vec<u8>, Vec<u8>)>) -> Member {
    let Owner {
        permissions,
        uid,
        gid,
    } = entry.owner();
    Member {
        path: path.to_vec(),
        kind,
        attributes: Attributes {
            mode: permissions,
            uid,
            gid,
            mtime: entry.mtime(),
            xattrs,
        },
    }
}
