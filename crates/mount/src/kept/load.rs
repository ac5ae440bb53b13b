//! Makes files of an archive's members.

use std::io::Read;

use micabox_memfs::{Change, Errno, FileKind, Filesystem, New, ROOT, SetMode, Stat, Time};
use micabox_tar::{Attributes, Kind, Member};

use super::KeepError;
use super::sent::Received;

/// Adds members to a filesystem. A later one replaces an earlier one of the same name, as GNU tar does.
pub(super) struct Loader<'a> {
    files: &'a Filesystem,
    /// Directories, whose attributes are set at the end: adding to one changes its time.
    directories: Vec<(u64, Attributes)>,
    buffer: Vec<u8>,
}

impl<'a> Loader<'a> {
    pub(super) fn new(files: &'a Filesystem) -> Self {
        Self {
            files,
            directories: Vec::new(),
            buffer: Vec::new(),
        }
    }

    /// Adds a member. Returns its number, for [`Loader::fill`] if it is a file.
    pub(super) fn add(&mut self, member: &Member) -> Result<u64, KeepError> {
        let path = names(&member.path)?;
        let at = |error| KeepError::file(&member.path, error);
        let Some((name, parents)) = path.split_last() else {
            if member.kind == Kind::Directory {
                self.directories.push((ROOT, member.attributes.clone()));
                return Ok(ROOT);
            }
            return Err(at(Errno::ISDIR));
        };
        let parent = self.directory(parents).map_err(at)?;
        let old = self.find(parent, name).map_err(at)?;
        if let (Kind::Directory, Some(old)) = (&member.kind, old)
            && old.kind == FileKind::Directory
        {
            self.directories
                .push((old.number, member.attributes.clone()));
            return Ok(old.number);
        }
        // Before the old name goes: it may be the link's own.
        let target = match &member.kind {
            Kind::HardLink(target) => Some(self.resolve(&names(target)?).map_err(at)?),
            _ => None,
        };
        if let Some(old) = old {
            if target == Some(old.number) {
                return Ok(old.number);
            }
            self.remove(parent, name, &old).map_err(at)?;
        }
        if let Some(target) = target {
            self.files.link(target, parent, name).map_err(at)?;
            self.files.forget(target, 1);
            return Ok(target);
        }
        let number = self.make(parent, name, member).map_err(at)?;
        match member.kind {
            Kind::Directory => self.directories.push((number, member.attributes.clone())),
            // Writing to it changes its time.
            Kind::File { .. } => {}
            _ => self.set(number, &member.attributes).map_err(at)?,
        }
        Ok(number)
    }

    /// Fills a file with contents that arrive, and sets its attributes.
    pub(super) fn fill(
        &mut self,
        number: u64,
        member: &Member,
        received: &mut Received<impl Read>,
    ) -> Result<(), KeepError> {
        let at = |error| KeepError::file(&member.path, error);
        while let Some(offset) = received.next_piece(&mut self.buffer)? {
            let written = self.files.write_back(number, offset, &self.buffer);
            written.map_err(at)?;
        }
        let Kind::File { size, .. } = member.kind else {
            return Ok(());
        };
        let change = Change {
            size: Some(size),
            ..Change::default()
        };
        self.files.set(number, &change).map_err(at)?;
        self.set(number, &member.attributes).map_err(at)
    }

    /// Sets the attributes of directories.
    pub(super) fn finish(self) -> Result<(), KeepError> {
        for (number, attributes) in &self.directories {
            match self.set(*number, attributes) {
                // A later member took its place.
                Err(Errno::STALE) => {}
                result => result.map_err(|error| KeepError::file(b"", error))?,
            }
        }
        Ok(())
    }

    /// Returns what a name stands for.
    fn find(&self, directory: u64, name: &[u8]) -> Result<Option<Stat>, Errno> {
        match self.files.look_up(directory, name) {
            Ok(stat) => {
                self.files.forget(stat.number, 1);
                Ok(Some(stat))
            }
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the directory at a path, which is made as far as it is not there.
    fn directory(&self, path: &[&[u8]]) -> Result<u64, Errno> {
        let mut at = ROOT;
        for name in path {
            at = match self.find(at, name)? {
                Some(stat) if stat.kind == FileKind::Directory => stat.number,
                Some(_) => return Err(Errno::NOTDIR),
                None => {
                    let stat = self.files.make(at, name, &New::directory(0o755, 0, 0))?;
                    self.files.forget(stat.number, 1);
                    stat.number
                }
            };
        }
        Ok(at)
    }

    /// Returns what is at a path.
    fn resolve(&self, path: &[&[u8]]) -> Result<u64, Errno> {
        path.iter().try_fold(ROOT, |at, name| {
            Ok(self.find(at, name)?.ok_or(Errno::NOENT)?.number)
        })
    }

    fn remove(&self, parent: u64, name: &[u8], old: &Stat) -> Result<(), Errno> {
        match old.kind {
            FileKind::Directory => self.files.remove_directory(parent, name),
            _ => self.files.unlink(parent, name),
        }
    }

    fn make(&self, parent: u64, name: &[u8], member: &Member) -> Result<u64, Errno> {
        let Attributes { mode, uid, gid, .. } = member.attributes;
        let of = |kind, device| New::of(kind, mode, device, uid, gid);
        let new = match &member.kind {
            Kind::Symlink(target) => New::symlink(target, uid, gid),
            Kind::Directory => of(FileKind::Directory, (0, 0)),
            Kind::CharDevice(major, minor) => of(FileKind::CharDevice, (*major, *minor)),
            Kind::BlockDevice(major, minor) => of(FileKind::BlockDevice, (*major, *minor)),
            Kind::Fifo => of(FileKind::Fifo, (0, 0)),
            Kind::File { .. } | Kind::HardLink(_) => of(FileKind::File, (0, 0)),
        };
        let stat = self.files.make(parent, name, &new)?;
        self.files.forget(stat.number, 1);
        Ok(stat.number)
    }

    fn set(&self, number: u64, attributes: &Attributes) -> Result<(), Errno> {
        let is_link = self.files.stat(number)?.kind == FileKind::Symlink;
        let change = Change {
            mode: (!is_link).then_some(attributes.mode),
            uid: Some(attributes.uid),
            gid: Some(attributes.gid),
            mtime: Some(Time::At(attributes.mtime)),
            ..Change::default()
        };
        self.files.set(number, &change)?;
        for (name, value) in &attributes.xattrs {
            self.files
                .set_xattr(number, name, value, SetMode::Any, false)?;
        }
        Ok(())
    }
}

/// Returns the names in a path, without those that lead nowhere.
fn names(path: &[u8]) -> Result<Vec<&[u8]>, KeepError> {
    let names = path.split(|&byte| byte == b'/');
    let names: Vec<_> = names.filter(|name| !matches!(*name, b"" | b".")).collect();
    if names.contains(&&b".."[..]) {
        return Err(KeepError::Outside(path.to_vec()));
    }
    Ok(names)
}
