//! Writes the visible files at a path as an archive.

use std::collections::HashMap;
use std::io::{self, Write};

use micabox_ext4::{BlockDevice, FileKind, Owner};
use micabox_tar::{Attributes, Kind, Member, Writer};

use crate::view::{Entry, Found, View, ViewError};
use crate::walk::{Scope, Walk};

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
/// `name` is empty: files, directories and links, names in the order of their bytes. Devices,
/// FIFOs and sockets are left out.
///
/// # Errors
/// [`PackError`].
pub fn pack<D: BlockDevice>(
    view: &mut View<D>,
    found: Found,
    name: &[u8],
    output: impl Write,
) -> Result<()> {
    let mut packing = Packing {
        archive: Writer::new(output),
        linked: HashMap::new(),
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
struct Packing<W: Write> {
    archive: Writer<W>,
    /// First names of files that have several.
    linked: HashMap<(bool, u64), Vec<u8>>,
}

impl<W: Write> Packing<W> {
    fn add<D: BlockDevice>(
        &mut self,
        view: &mut View<D>,
        path: &[u8],
        entry: &Entry,
    ) -> Result<()> {
        let kind = entry.kind();
        let linked = entry.linked().filter(|_| kind != Some(FileKind::Directory));
        if let Some(file) = linked {
            if let Some(first) = self.linked.get(&file) {
                let link = member(path, entry, Kind::HardLink(first.clone()));
                return Ok(self.archive.add(&link)?);
            }
            if kind == Some(FileKind::File) {
                self.linked.insert(file, path.to_vec());
            }
        }
        match kind {
            Some(FileKind::Directory) => {
                Ok(self.archive.add(&member(path, entry, Kind::Directory))?)
            }
            Some(FileKind::File) => {
                let kind = Kind::File {
                    size: entry.size(),
                    segments: Some(view.segments(entry)?),
                };
                let member = member(path, entry, kind);
                self.archive.add_file(&member, |offset, piece| {
                    if view.read(entry, offset, piece)? == piece.len() {
                        Ok(())
                    } else {
                        Err(PackError::Short)
                    }
                })
            }
            Some(FileKind::Symlink) => {
                let target = view.read_link(entry)?;
                let link = member(path, entry, Kind::Symlink(target));
                Ok(self.archive.add(&link)?)
            }
            _ => Ok(()),
        }
    }
}

fn member(path: &[u8], entry: &Entry, kind: Kind) -> Member {
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
            xattrs: Vec::new(),
        },
    }
}
