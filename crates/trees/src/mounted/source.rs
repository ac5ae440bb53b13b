//! What can be mounted, and the files that it is read from.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use micabox_disks::upper::copy_frozen;
use micabox_disks::{Base, Snapshot, Snapshots, snapshot};
use micabox_error::{DiskProblem, Error};
use micabox_image::store::Image;
use micabox_overlay::lower::LowerKind;
use micabox_parsers::{Format, filesystem, foreign, is_wrapped, unwrap};
use micabox_spec::Upper;
use micabox_state::{BaseName, Record, Sandboxes};
use rustix::fs::{Mode, OFlags};

use super::TreeKind;
use crate::mounted::Below;

/// A tree that can be mounted.
#[derive(Clone, Debug)]
pub enum Tree {
    /// An image in the store.
    Image(Box<Image>),
    /// A sandbox with a disk.
    Sandbox(Box<Record>),
    /// A snapshot.
    Snapshot(Box<Snapshot>),
    /// A file with an EROFS or ext4 filesystem.
    File(PathBuf),
    /// A directory of the host.
    Directory(PathBuf),
}

/// The files of a tree.
pub(super) struct Files {
    pub(super) base: Option<BaseName>,
    /// A sandbox's changes.
    pub(super) disk: Option<File>,
    pub(super) format: Below,
    pub(super) below: Vec<File>,
}

impl Tree {
    /// Finds what a user means by `name`: the first that there is of a file, a sandbox, a snapshot, an image and
    /// a directory. A path of a directory with a slash in it is that directory's.
    ///
    /// # Errors
    /// [`Error::NoSuchTree`].
    pub fn find(sandboxes: impl AsRef<Sandboxes>, name: &OsStr) -> Result<Self, Error> {
        let sandboxes = sandboxes.as_ref();
        let path = Path::new(name);
        let none = || Error::NoSuchTree(name.to_string_lossy().into_owned());
        if path.exists() && !path.is_dir() {
            return Ok(Self::File(path.to_owned()));
        }
        let directory = || path.is_dir().then(|| Self::Directory(path.to_owned()));
        let text = match name.to_str() {
            Some(text) if !text.contains('/') => text,
            text => match directory() {
                Some(directory) => return Ok(directory),
                None => text.ok_or_else(none)?,
            },
        };
        match sandboxes.find(text) {
            Ok(found) => return Ok(Self::Sandbox(Box::new(found.record))),
            Err(Error::NoSuchSandbox(_)) => {}
            Err(error) => return Err(error),
        }
        match Snapshots(sandboxes).get(text) {
            Ok(found) => return Ok(Self::Snapshot(Box::new(found))),
            Err(Error::NoSuchSnapshot(_)) => {}
            Err(error) => return Err(error),
        }
        match sandboxes.store().image(text) {
            Ok(image) => Ok(Self::Image(Box::new(image))),
            Err(_) => directory().ok_or_else(none),
        }
    }

    /// Returns what it is of.
    #[must_use]
    pub fn kind(&self) -> TreeKind {
        match self {
            Self::Image(_) => TreeKind::Image,
            Self::Sandbox(_) => TreeKind::Sandbox,
            Self::Snapshot(_) => TreeKind::Snapshot,
            Self::File(_) => TreeKind::File,
            Self::Directory(_) => TreeKind::Directory,
        }
    }

    /// Returns the image that it is, or is over.
    pub(super) fn image(&self, sandboxes: &Sandboxes) -> Result<Option<Box<Image>>, Error> {
        let base = match self {
            Self::Image(image) => return Ok(Some(image.clone())),
            Self::Sandbox(record) => Base::of(sandboxes.store(), record)?,
            Self::Snapshot(snapshot) => Base::of_snapshot(sandboxes.store(), snapshot)?,
            Self::File(_) | Self::Directory(_) => return Ok(None),
        };
        Ok(match base {
            Base::Image(image) => Some(image),
            _ => None,
        })
    }

    /// Opens its files.
    pub(super) fn open(&self, sandboxes: &Sandboxes) -> Result<Files, Error> {
        let (base, disk) = match self {
            Self::File(path) => return open_file(path),
            Self::Directory(path) => return open_directory(path),
            Self::Image(image) => (Base::Image(image.clone()), None),
            Self::Sandbox(record) => {
                let base = Base::of(sandboxes.store(), record)?;
                (base, Some(copy_of(sandboxes, record)?))
            }
            Self::Snapshot(snapshot) => {
                let disk = snapshot::open_disk(sandboxes.store(), snapshot.directory())?;
                let base = Base::of_snapshot(sandboxes.store(), snapshot)?;
                (base, Some(disk))
            }
        };
        let (format, below) = base.lower_files()?;
        Ok(Files {
            base: Some(base.name()),
            disk,
            format: Below::Filesystem(format),
            below,
        })
    }
}

/// Copies a sandbox's disk as it is now, with shared extents where the host's filesystem can: the
/// sandbox may run on, or be started, while it is mounted.
fn copy_of(sandboxes: &Sandboxes, record: &Record) -> Result<File, Error> {
    if let Upper::Folder { path } = &record.spec.upper {
        return Err(Error::MountedFolder(path.clone().into()));
    }
    record.disk_size()?;
    let copy = sandboxes.store().unnamed(&[])?;
    copy_frozen(sandboxes.directory(), &record.id, &copy)?;
    File::open(format!("/proc/self/fd/{}", copy.as_raw_fd())).map_err(|source| Error::System {
        what: "opening the copy of the sandbox's disk",
        source,
    })
}

fn open_directory(path: &Path) -> Result<Files, Error> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| {
        Error::Mount(micabox_mount::Error::Place {
            path: path.to_owned(),
            source: error.into(),
        })
    })?;
    Ok(Files {
        base: None,
        disk: None,
        format: Below::Folder,
        below: vec![directory.into()],
    })
}

fn open_file(path: &Path) -> Result<Files, Error> {
    let failed = |problem| Error::RootDisk {
        path: path.to_owned(),
        problem,
    };
    // A FIFO would wait for a writer.
    let file = File::options()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path)
        .map_err(|error| failed(DiskProblem::Unusable(error.to_string())))?;
    let file = match filesystem(&file) {
        Some(_) => file,
        None if is_wrapped(&file) => unwrap(&file, path, None).map_err(failed)?.file,
        None => return Err(failed(foreign(&file))),
    };
    let format = match filesystem(&file) {
        Some(Format::Ext4) => LowerKind::Ext4,
        Some(Format::Erofs) => LowerKind::Erofs,
        None => return Err(failed(DiskProblem::Unknown)),
    };
    Ok(Files {
        base: None,
        disk: None,
        format: Below::Filesystem(format),
        below: vec![file],
    })
}
