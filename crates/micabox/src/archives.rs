//! Copies files, as archives, into a sandbox and out of it: by its agent while it runs, otherwise
//! from and to its disk.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use micabox_disks as patch;
use micabox_disks::Base;
use micabox_disks::upper::Unread;
use micabox_error::Error;
use micabox_file::FileKind;
use micabox_operations::LeftOut;
use micabox_overlay::through_links;
use micabox_overlay::view::PathKind;
use micabox_owner::Client;
use micabox_parsers::{Look, Pack};
use micabox_state::upper_disk;

use crate::SandboxRef;

impl SandboxRef {
    /// Returns what a path in the sandbox leads to, all symbolic links followed, and where that is: a path whose
    /// last name is no link. A link that dangles leads to where its file would be. Used before writing there.
    ///
    /// # Errors
    /// [`Error::File`] in a running sandbox; [`Error::NotKept`], [`Error::InPlace`] without a disk;
    /// [`Error::Patch`] if the path can't be read there.
    pub fn leads_to(&self, path: &[u8]) -> Result<(PathKind, Vec<u8>), Error> {
        if self.runs() {
            return self.leads_to_inside(path);
        }
        let (found, _lock) = self.hold()?;
        let frozen = self.frozen_disk()?;
        let base = Base::of(self.sandboxes().store(), &found.record)?;
        let about = frozen.about("reading", &base).asked(path);
        let (lower, below) = base.lower_files()?;
        let disk = frozen.open(&about)?;
        let look = Look {
            medium: disk.medium,
            lower,
            path: path.to_vec(),
        };
        micabox_parsers::call(&look, disk.file, below, 0).map_err(|error| about.error(error))
    }

    fn leads_to_inside(&self, path: &[u8]) -> Result<(PathKind, Vec<u8>), Error> {
        let files = self.files();
        let is_nothing = |error: &Error| matches!(error, Error::File { source, .. } if source.kind() == io::ErrorKind::NotFound);
        let path = through_links(path, |path| {
            let path = OsStr::from_bytes(path);
            match files.stat_link(path) {
                Ok(stat) if stat.kind == FileKind::Symlink => {
                    let target = files.read_link(path)?;
                    Ok(Some(target.into_os_string().into_vec()))
                }
                Ok(_) => Ok(None),
                Err(error) if is_nothing(&error) => Ok(None),
                Err(error) => Err(error),
            }
        })?;
        let kind = match files.stat(OsStr::from_bytes(&path)) {
            Ok(stat) if stat.kind == FileKind::Directory => PathKind::Directory,
            Ok(_) => PathKind::Other,
            Err(error) if is_nothing(&error) => PathKind::Nothing,
            Err(error) => return Err(error),
        };
        Ok((kind, path))
    }

    /// Reads what is at a path in the sandbox as an archive, with owners, times and extended
    /// attributes. Its members are below `name`, or below nothing if that is empty. Sockets are left
    /// out. With `follow`, a symbolic link at the path's end is followed.
    ///
    /// # Errors
    /// [`Error::File`] in a running sandbox; those of [`SandboxRef::frozen_disk`] otherwise.
    /// [`Unread::finish`] has the others: [`Error::Patch`] if there is no such path.
    pub fn read_archive(&self, path: &[u8], follow: bool, name: &[u8]) -> Result<Unread, Error> {
        if self.runs() {
            return Ok(Unread::of(self.files().pack(path, follow, name)?));
        }
        let frozen = self.frozen_disk()?;
        let base = self.base()?;
        let about = frozen.about("reading", &base).asked(path);
        let (lower, below) = base.lower_files()?;
        let disk = frozen.open(&about)?;
        let pack = Pack {
            medium: disk.medium,
            lower,
            path: path.to_vec(),
            follow,
            name: name.to_vec(),
        };
        Unread::start(pack, about, disk, below)
    }

    /// Unpacks an archive below the directory `root` of the sandbox. Missing directories on the way are
    /// made. Symbolic links are followed as inside. Returns what could not be made there.
    ///
    /// # Errors
    /// [`Error::File`] in a running sandbox; otherwise [`Error::NotKept`], [`Error::InPlace`],
    /// [`Error::Patch`], [`Error::Disk`]. A part of the archive may have been unpacked then.
    pub fn write_archive(&self, root: &[u8], archive: OwnedFd) -> Result<Vec<LeftOut>, Error> {
        if self.runs() {
            return self.files().unpack(root, archive);
        }
        let (found, _lock) = self.hold()?;
        found.record.disk_size()?;
        let base = Base::of(self.sandboxes().store(), &found.record)?;
        patch::unpack(&upper_disk(&found.path), &base, root, archive.into())?;
        Ok(Vec::new())
    }

    /// Returns whether the sandbox runs and has an owner, which can ask its agent. An owner whose
    /// sandbox has ended has its socket for a moment longer.
    fn runs(&self) -> bool {
        let is_live = self.reload().is_ok_and(|now| now.record().status.is_live());
        is_live && Client::connect(self.path()).is_ok()
    }
}
