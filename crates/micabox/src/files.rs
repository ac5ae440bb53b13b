//! Files into a sandbox that does not run, and out of any that has a disk: as archives.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use micabox_ext4::FileKind;
use micabox_image::Store;
use tar::{Builder, EntryType, Header};

use crate::upper::merged::{Directory, Entry, Found, Merged, MergedError};
use crate::upper::{self, Scratch};
use crate::{Base, Error, Record, Sandboxes, patch};

/// What a path in a sandbox leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// Nothing.
    Nothing,
    /// A directory.
    Directory,
    /// Something else.
    Other,
}

impl Sandboxes {
    /// What a path in a sandbox that does not run leads to, all symbolic links followed: for
    /// whoever is to write there.
    ///
    /// # Errors
    /// [`Error::NotKept`], [`Error::InPlace`], [`Error::Running`]; [`Error::Patch`] if it can't
    /// be read.
    pub fn path_kind(&self, store: &Store, sandbox: &str, path: &[u8]) -> Result<PathKind, Error> {
        let (found, _lock) = self.hold(sandbox)?;
        found.record.disk_size()?;
        let mut merged = merged(store, &found.record, &upper::disk(&found.path))?;
        match merged.find(path, true) {
            Ok(Found::Directory(_)) => Ok(PathKind::Directory),
            Ok(Found::Other(_)) => Ok(PathKind::Other),
            Err(MergedError::Nothing) => Ok(PathKind::Nothing),
            Err(error) => Err(reading(path, error)),
        }
    }

    /// Writes what is at a path in a sandbox as an archive, its members below `name`, or below
    /// nothing if that is empty: files, directories and links. Devices, FIFOs and sockets are
    /// left out. A symbolic link at the path's end is followed if `follow`.
    ///
    /// # Errors
    /// Those of [`Sandboxes::still_disk`]; [`Error::Patch`] if there is no such path;
    /// [`Error::System`] if `to` fails.
    pub fn read_archive(
        &self,
        store: &Store,
        sandbox: &str,
        path: &[u8],
        follow: bool,
        name: &[u8],
        to: &mut dyn Write,
    ) -> Result<(), Error> {
        let record = self.get(sandbox)?;
        let still = self.still_disk(&record.id)?;
        let mut merged = merged(store, &record, still.path())?;
        let found = merged.find(path, follow);
        let found = found.map_err(|error| reading(path, error))?;
        let mut packing = Packing {
            merged: &mut merged,
            archive: Builder::new(to),
            linked: HashMap::new(),
        };
        let packed = match found {
            Found::Other(entry) => packing.other(name, &entry),
            Found::Directory(directory) => packing.tree(name, directory),
        };
        let packed = packed.and_then(|()| Ok(packing.archive.finish()?));
        packed.map_err(|problem| match problem {
            Problem::Files(error) => reading(path, error),
            Problem::Output(source) => Error::System {
                what: "writing the archive",
                source,
            },
        })
    }

    /// Unpacks an archive below the directory `root` of a sandbox that has a disk and does not
    /// run. Directories on the way are made if they are missing.
    ///
    /// # Errors
    /// [`Error::NotKept`], [`Error::InPlace`], [`Error::Running`], [`Error::Patch`],
    /// [`Error::Disk`]. Half of it may be done then.
    pub fn write_archive(
        &self,
        store: &Store,
        sandbox: &str,
        root: &[u8],
        archive: &mut dyn Read,
    ) -> Result<(), Error> {
        let (found, _lock) = self.hold(sandbox)?;
        found.record.disk_size()?;
        let base = Base::of(store, &found.record)?;
        patch::unpack(&upper::disk(&found.path), &base, root, archive)
    }
}

/// What is seen in the sandbox of `record` with its disk, or a copy of that, at `disk`.
fn merged(store: &Store, record: &Record, disk: &Path) -> Result<Merged<Scratch>, Error> {
    let lower = Base::of(store, record)?.lower()?;
    Ok(Merged::new(upper::open(disk)?, lower))
}

fn reading(path: &[u8], error: MergedError) -> Error {
    Error::Patch {
        what: format!("reading {}", String::from_utf8_lossy(path)),
        problem: error.to_string(),
    }
}

/// Why an archive can't be made.
enum Problem {
    Files(MergedError),
    Output(io::Error),
}

impl From<MergedError> for Problem {
    fn from(error: MergedError) -> Self {
        Self::Files(error)
    }
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// An archive that is being made.
struct Packing<'a, W: Write> {
    merged: &'a mut Merged<Scratch>,
    archive: Builder<W>,
    /// The first names of files that have several.
    linked: HashMap<(bool, u64), Vec<u8>>,
}

impl<W: Write> Packing<'_, W> {
    /// A directory with all that is in it; each before what is in it.
    fn tree(&mut self, name: &[u8], root: Directory) -> Result<(), Problem> {
        let mut left = vec![(name.to_vec(), root)];
        while let Some((path, directory)) = left.pop() {
            if !path.is_empty() {
                let entry = self.merged.directory_entry(&directory)?;
                let mut header = header(&entry, EntryType::Directory);
                let name = [&path, &b"/"[..]].concat();
                self.append(&mut header, &name, &mut io::empty())?;
            }
            for name in self.merged.names(&directory)? {
                let path = match path.is_empty() {
                    true => name.to_vec(),
                    false => [&path, &b"/"[..], &name].concat(),
                };
                match self.merged.lookup(&directory, &name)? {
                    Some(Found::Directory(directory)) => left.push((path, directory)),
                    Some(Found::Other(entry)) => self.other(&path, &entry)?,
                    None => {}
                }
            }
        }
        Ok(())
    }

    /// Something that is no directory.
    fn other(&mut self, path: &[u8], entry: &Entry) -> Result<(), Problem> {
        let first = entry.linked().map(|file| self.linked.entry(file));
        if let Some(std::collections::hash_map::Entry::Occupied(first)) = first {
            let mut header = header(entry, EntryType::Link);
            let first = OsStr::from_bytes(first.get()).to_owned();
            let path = OsStr::from_bytes(path);
            return Ok(self.archive.append_link(&mut header, path, first)?);
        }
        match entry.kind() {
            Some(FileKind::File) => {
                if let Some(file) = entry.linked() {
                    self.linked.insert(file, path.to_vec());
                }
                let mut header = header(entry, EntryType::Regular);
                header.set_size(entry.size());
                let mut contents = Contents {
                    merged: self.merged,
                    entry,
                    at: 0,
                };
                header.set_cksum();
                let path = OsStr::from_bytes(path);
                Ok(self.archive.append_data(&mut header, path, &mut contents)?)
            }
            Some(FileKind::Symlink) => {
                let target = self.merged.read_link(entry)?;
                let mut header = header(entry, EntryType::Symlink);
                let target = OsStr::from_bytes(&target);
                let path = OsStr::from_bytes(path);
                Ok(self.archive.append_link(&mut header, path, target)?)
            }
            _ => Ok(()),
        }
    }

    fn append(&mut self, header: &mut Header, path: &[u8], data: &mut dyn Read) -> io::Result<()> {
        let path = OsStr::from_bytes(path);
        self.archive.append_data(header, path, data)
    }
}

fn header(entry: &Entry, kind: EntryType) -> Header {
    let mut header = Header::new_gnu();
    let (uid, gid) = entry.owner();
    header.set_entry_type(kind);
    header.set_mode(entry.permissions().into());
    header.set_uid(uid.into());
    header.set_gid(gid.into());
    header.set_mtime(u64::try_from(entry.mtime().seconds).unwrap_or(0));
    header.set_size(0);
    header
}

/// A file's contents: as many bytes as it had when its header was made.
struct Contents<'a> {
    merged: &'a mut Merged<Scratch>,
    entry: &'a Entry,
    at: u64,
}

impl Read for Contents<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.merged.read(self.entry, self.at, buffer);
        let count = read.map_err(io::Error::other)?;
        self.at += count as u64;
        Ok(count)
    }
}
