//! Copies files, as archives, into a sandbox that does not run and out of any sandbox with a disk.

use std::fs::File;
use std::os::fd::OwnedFd;

use micabox_overlay::view::PathKind;

use crate::jailed::{self, About, Look, Pack, Unread};
use crate::{Base, Error, SandboxRef, patch, upper};

impl SandboxRef {
    /// Returns what a path in the sandbox, which must not run, leads to, all symbolic links followed.
    /// Used before writing there.
    ///
    /// # Errors
    /// [`Error::NotKept`], [`Error::InPlace`], [`Error::Running`]; [`Error::Patch`] if the path
    /// can't be read.
    pub fn path_kind(&self, path: &[u8]) -> Result<PathKind, Error> {
        let (found, _lock) = self.hold()?;
        found.record.disk_size()?;
        let base = Base::of(self.sandboxes().store(), &found.record)?;
        let disk = upper::disk(&found.path);
        let about = About::new("reading", &disk, &base).asked(path);
        let (lower, below) = base.lower_files()?;
        let file = File::open(&disk).map_err(|error| about.disk(error))?;
        let look = Look {
            lower,
            path: path.to_vec(),
        };
        jailed::call(&look, file, below, 0).map_err(|error| about.error(error))
    }

    /// Reads what is at a path in the sandbox as an archive. Its members are below `name`, or below
    /// nothing if that is empty: files, directories and links. Devices, FIFOs and sockets are left
    /// out. With `follow`, a symbolic link at the path's end is followed.
    ///
    /// # Errors
    /// Those of [`SandboxRef::frozen_disk`]. [`Unread::finish`] has the others: [`Error::Patch`]
    /// if there is no such path.
    pub fn read_archive(&self, path: &[u8], follow: bool, name: &[u8]) -> Result<Unread, Error> {
        let frozen = self.frozen_disk()?;
        let base = self.base()?;
        let about = frozen.about("reading", &base).asked(path);
        let (lower, below) = base.lower_files()?;
        let disk = frozen.open(&about)?;
        let pack = Pack {
            lower,
            path: path.to_vec(),
            follow,
            name: name.to_vec(),
        };
        Unread::start(pack, about, disk, below)
    }

    /// Unpacks an archive below the directory `root` of the sandbox, which must have a disk and not run.
    /// Missing directories on the way are made.
    ///
    /// # Errors
    /// [`Error::NotKept`], [`Error::InPlace`], [`Error::Running`], [`Error::Patch`],
    /// [`Error::Disk`]. A part of the archive may have been unpacked then.
    pub fn write_archive(&self, root: &[u8], archive: OwnedFd) -> Result<(), Error> {
        let (found, _lock) = self.hold()?;
        found.record.disk_size()?;
        let base = Base::of(self.sandboxes().store(), &found.record)?;
        patch::unpack(&upper::disk(&found.path), &base, root, archive.into())
    }
}
