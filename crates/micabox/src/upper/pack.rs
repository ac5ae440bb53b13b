//! What a sandbox sees at a path, as an archive.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};

use micabox_ext4::FileKind;
use micabox_ext4::archive::{Kind, Member, Writer};

use super::merged::{Directory, Entry, Found, Merged, MergedError};

/// Why an archive can't be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PackError {
    #[error(transparent)]
    Files(#[from] MergedError),
    #[error(transparent)]
    Output(#[from] io::Error),
}

type Result<T> = std::result::Result<T, PackError>;

/// Writes what is at a path as an archive, its members below `name`, or below nothing if that is
/// empty: files, directories and links, names in the order of their bytes. Devices, FIFOs and
/// sockets are left out.
pub(crate) fn pack(
    merged: &mut Merged,
    found: Found,
    name: &[u8],
    output: impl Write,
) -> Result<()> {
    let mut packing = Packing {
        merged,
        archive: Writer::new(output),
        linked: HashMap::new(),
    };
    match found {
        Found::Other(entry) => packing.other(name, &entry)?,
        Found::Directory(directory) => packing.tree(name, directory)?,
    }
    packing.archive.finish()?;
    Ok(())
}

/// An archive that is being made.
struct Packing<'a, W: Write> {
    merged: &'a mut Merged,
    archive: Writer<W>,
    /// The first names of files that have several.
    linked: HashMap<(bool, u64), Vec<u8>>,
}

impl<W: Write> Packing<'_, W> {
    /// A directory with all that is in it; each before what is in it.
    fn tree(&mut self, name: &[u8], root: Directory) -> Result<()> {
        // A damaged disk could have them in a circle.
        let mut visited = HashSet::from([root.identity()]);
        let mut path = name.to_vec();
        if !path.is_empty() {
            self.directory(&path, &root)?;
            path.push(b'/');
        }
        let names = self.merged.names(&root)?;
        let mut levels = vec![(path.len(), root, names.into_iter())];
        while let Some((length, directory, names)) = levels.last_mut() {
            path.truncate(*length);
            let Some(name) = names.next() else {
                levels.pop();
                continue;
            };
            path.extend_from_slice(&name);
            match self.merged.lookup(directory, &name)? {
                None => {}
                Some(Found::Other(entry)) => self.other(&path, &entry)?,
                Some(Found::Directory(directory)) => {
                    if !visited.insert(directory.identity()) {
                        return Err(MergedError::Again.into());
                    }
                    self.directory(&path, &directory)?;
                    path.push(b'/');
                    let names = self.merged.names(&directory)?;
                    levels.push((path.len(), directory, names.into_iter()));
                }
            }
        }
        Ok(())
    }

    fn directory(&mut self, path: &[u8], directory: &Directory) -> Result<()> {
        let entry = self.merged.directory_entry(directory)?;
        Ok(self.archive.add(&member(path, &entry, Kind::Directory))?)
    }

    /// Something that is no directory.
    fn other(&mut self, path: &[u8], entry: &Entry) -> Result<()> {
        if let Some(file) = entry.linked() {
            if let Some(first) = self.linked.get(&file) {
                let link = member(path, entry, Kind::HardLink(first));
                return Ok(self.archive.add(&link)?);
            }
            if entry.kind() == Some(FileKind::File) {
                self.linked.insert(file, path.to_vec());
            }
        }
        match entry.kind() {
            Some(FileKind::File) => {
                let segments = self.merged.segments(entry)?;
                let kind = Kind::File {
                    size: entry.size(),
                    segments: Some(&segments),
                };
                self.archive
                    .add_file(&member(path, entry, kind), |offset, piece| {
                        match self.merged.read(entry, offset, piece)? == piece.len() {
                            true => Ok(()),
                            false => Err(MergedError::Short.into()),
                        }
                    })
            }
            Some(FileKind::Symlink) => {
                let target = self.merged.read_link(entry)?;
                let link = member(path, entry, Kind::Symlink(&target));
                Ok(self.archive.add(&link)?)
            }
            _ => Ok(()),
        }
    }
}

fn member<'m>(path: &'m [u8], entry: &Entry, kind: Kind<'m>) -> Member<'m> {
    Member {
        path,
        kind,
        owner: entry.owner(),
        mtime: entry.mtime(),
        xattrs: &[],
    }
}
