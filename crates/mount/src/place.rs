//! Where a filesystem is mounted, and how.

mod helper;

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use micabox_fuse::Channel;
use rustix::fs::{Mode, OFlags, open, stat, syncfs};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{getegid, geteuid};

use crate::Error;

/// How to mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// For all of this machine: mount(2), which is root's.
    Kernel,
    /// For all of this machine, by the program that lets other users do so.
    Helper,
    /// In namespaces of this process and those that it starts. The process must have one thread.
    Namespace,
}

impl Manner {
    /// Returns how this process can mount a filesystem: only for itself and what it starts, if
    /// `only_own` suffices and there is no other way.
    ///
    /// # Errors
    /// [`Error::NoHelper`].
    pub fn possible(path: &Path, only_own: bool) -> Result<Self, Error> {
        if geteuid().is_root() {
            Ok(Self::Kernel)
        } else if helper::find().is_some() {
            Ok(Self::Helper)
        } else if only_own {
            Ok(Self::Namespace)
        } else {
            Err(Error::NoHelper(path.to_owned()))
        }
    }
}

/// A mounted filesystem.
#[derive(Debug)]
pub struct Place {
    path: PathBuf,
    manner: Manner,
    device: OwnedFd,
}

impl Place {
    /// Mounts a filesystem on a directory. It answers once it is [served](crate::serve).
    ///
    /// # Errors
    /// [`Error::Place`], [`Error::Device`], [`Error::Mount`], [`Error::Helper`], [`Error::Namespace`].
    pub fn mount(path: &Path, manner: Manner) -> Result<Self, Error> {
        let refused = |source| Error::Place {
            path: path.to_owned(),
            source,
        };
        let path = path.canonicalize().map_err(refused)?;
        if !path.is_dir() {
            return Err(refused(Errno::NOTDIR.into()));
        }
        let device = match manner {
            Manner::Helper => helper::mount(&path)?,
            Manner::Kernel => mount_device(&path)?,
            Manner::Namespace => {
                micabox_jail::enter_own_mounts().map_err(Error::Namespace)?;
                mount_device(&path)?
            }
        };
        Ok(Self {
            path,
            manner,
            device,
        })
    }

    /// Returns the directory, without links.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns one more channel to the kernel; the same once more where this user may not have another.
    pub(crate) fn channel(&self) -> Result<Channel, Errno> {
        let channel = match micabox_jail::clone_fuse_channel(self.device.as_fd()) {
            Ok(channel) => channel,
            Err(_) => fcntl_dupfd_cloexec(&self.device, 0)?,
        };
        Ok(Channel::new(channel))
    }

    /// Makes the kernel write what it has cached. It may be unmounted already, which wrote it.
    pub fn flush(&self) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        if let Ok(root) = open(&self.path, flags, Mode::empty()) {
            let _ = syncfs(root);
        }
    }

    /// Unmounts, so that no path leads there. What is still open there works until this process ends.
    pub fn unmount(&self) {
        // It may be unmounted already, which is no error.
        match self.manner {
            Manner::Helper => helper::unmount(&self.path),
            Manner::Kernel | Manner::Namespace => {
                let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
                let _ = unmount(&self.path, flags);
            }
        }
    }
}

/// Returns the options of a mount by the kernel, and of the helper's.
fn options(path: &Path) -> Result<String, Error> {
    let stat = stat(path).map_err(|source| Error::Place {
        path: path.to_owned(),
        source: source.into(),
    })?;
    Ok(format!("rootmode={:o},default_permissions", stat.st_mode))
}

fn mount_device(path: &Path) -> Result<OwnedFd, Error> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let device = open("/dev/fuse", flags, Mode::empty()).map_err(Error::Device)?;
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    let options = options(path)?;
    let fd = device.as_raw_fd();
    let options = format!("fd={fd},user_id={uid},group_id={gid},allow_other,{options}");
    // No zero byte is in numbers and words.
    let options = CString::new(options).unwrap_or_default();
    let flags = MountFlags::empty();
    mount(c"mica", path, c"fuse.memfs", flags, &*options).map_err(|source| Error::Mount {
        path: path.to_owned(),
        source,
    })?;
    Ok(device)
}
