//! Where a filesystem is mounted, and how.

mod helper;
mod target;

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;

use rustix::fs::{Mode, OFlags, fstat, open, syncfs};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::mount::{MountFlags, UnmountFlags, mount};
use rustix::process::{getegid, geteuid};

use crate::Error;
pub use target::Target;

/// Most threads that serve a filesystem.
const THREADS: usize = 8;

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
    /// Returns how this process mounts for all of this machine.
    fn for_all(path: &Path) -> Result<Self, Error> {
        if geteuid().is_root() {
            Ok(Self::Kernel)
        } else if helper::find().is_some() {
            Ok(Self::Helper)
        } else {
            Err(Error::NoHelper(path.to_owned()))
        }
    }
}

/// What is mounted, as the system's table of mounts has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// A filesystem in memory: `fuse.memfs`. It is as trusted as what its users put there.
    Memory {
        /// Whether others made what it begins with. Its devices and set-id bits then have no effect.
        is_foreign: bool,
    },
    /// A tree that others made: `fuse.mica`. Its devices and set-id bits have no effect.
    Tree {
        /// Whether nothing in it can be changed.
        is_read_only: bool,
    },
}

impl Shown {
    fn subtype(self) -> &'static str {
        match self {
            Self::Memory { .. } => "memfs",
            Self::Tree { .. } => "mica",
        }
    }

    fn flags(self) -> MountFlags {
        let foreign = MountFlags::NOSUID | MountFlags::NODEV;
        match self {
            Self::Memory { is_foreign: false } => MountFlags::empty(),
            Self::Memory { is_foreign: true }
            | Self::Tree {
                is_read_only: false,
            } => foreign,
            Self::Tree { is_read_only: true } => foreign | MountFlags::RDONLY,
        }
    }
}

/// A mounted filesystem.
#[derive(Debug)]
pub struct Place {
    path: PathBuf,
    manner: Manner,
    device: OwnedFd,
    is_for_one_user: bool,
}

impl Place {
    /// Mounts a filesystem on a directory. It answers once it is [served](crate::Tree::serve). If `only_own`
    /// suffices and this user may not mount for others, only this process, which must have one thread, and
    /// what it starts see it.
    ///
    /// # Errors
    /// [`Error::Place`], [`Error::NoHelper`], [`Error::Device`], [`Error::Mount`], [`Error::Helper`],
    /// [`Error::Namespace`].
    pub fn mount(path: &Path, only_own: bool, shown: Shown) -> Result<Self, Error> {
        let for_all = Manner::for_all(path).and_then(|manner| Self::mount_in(path, manner, shown));
        match for_all {
            Err(Error::NoHelper(_)) if only_own => Self::mount_in(path, Manner::Namespace, shown),
            Err(refused @ Error::Helper { .. }) if only_own => {
                // If neither works, the usual way is the one to mend.
                Self::mount_in(path, Manner::Namespace, shown).map_err(|_| refused)
            }
            mounted => mounted,
        }
    }

    fn mount_in(path: &Path, manner: Manner, shown: Shown) -> Result<Self, Error> {
        let find = |path: &Path| {
            Target::find(path).map_err(|source| Error::Place {
                path: path.to_owned(),
                source,
            })
        };
        let mut target = find(path)?;
        // A tree that only its user reaches, who has all of its files anyway, is theirs to look into and
        // to change, whatever owners its files have.
        let is_for_one_user = match (shown, manner) {
            (Shown::Memory { .. }, _) | (_, Manner::Kernel) => false,
            (_, Manner::Helper) => !helper::may_allow_others(),
            (_, Manner::Namespace) => true,
        };
        let device = match manner {
            // It opens the directory itself, as its user.
            Manner::Helper => helper::mount(target.path(), shown, is_for_one_user)?,
            Manner::Kernel => mount_device(&target, shown, is_for_one_user)?,
            Manner::Namespace => {
                micabox_jail::enter_own_mounts().map_err(Error::Namespace)?;
                // What was found before is in the other namespace, and links' owners are not known in this one.
                target = find(target.path())?;
                mount_device(&target, shown, is_for_one_user)?
            }
        };
        Ok(Self {
            path: target.path().to_owned(),
            manner,
            device,
            is_for_one_user,
        })
    }

    /// Returns the directory, without links.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether no other user can reach it, so that the kernel checks no permissions.
    #[must_use]
    pub fn is_for_one_user(&self) -> bool {
        self.is_for_one_user
    }

    /// Returns how it was mounted.
    #[must_use]
    pub fn manner(&self) -> Manner {
        self.manner
    }

    /// Returns channels to the kernel, one for each thread that is to serve the filesystem; the same more
    /// than once where this user may not have another.
    ///
    /// # Errors
    /// [`Error::Serving`].
    pub fn channels(&self) -> Result<Vec<OwnedFd>, Error> {
        let threads = available_parallelism().map_or(2, |count| count.get().clamp(2, THREADS));
        let channel = || match micabox_jail::clone_fuse_channel(self.device.as_fd()) {
            Ok(channel) => Ok(channel),
            Err(_) => fcntl_dupfd_cloexec(&self.device, 0),
        };
        let channels: Result<_, _> = (0..threads).map(|_| channel()).collect();
        channels.map_err(Error::Serving)
    }

    /// Makes the kernel write what it has cached. It may be unmounted already, which wrote it.
    /// Which files had no room for it, their filesystem knows ([`torn_files`](crate::Filesystem::torn_files)).
    pub fn flush(&self) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        if let Ok(root) = open(&self.path, flags, Mode::empty()) {
            let _ = syncfs(root);
        }
    }

    /// Unmounts, so that no path leads there. What is still open there works until this process ends.
    pub fn unmount(&self) {
        // It may be unmounted already, which is no error.
        let _ = unmount(&self.path, self.manner, true);
    }
}

/// Unmounts what is mounted on a directory, whose path has no links; with `is_forced`, also what is in
/// use, so that no path leads there.
///
/// # Errors
/// [`Errno::BUSY`] if it is in use, and the system's; of the helper, those that it exits for.
pub fn unmount(path: &Path, manner: Manner, is_forced: bool) -> Result<(), Errno> {
    match manner {
        Manner::Helper => helper::unmount(path, is_forced),
        Manner::Kernel | Manner::Namespace => {
            let forced = if is_forced {
                UnmountFlags::DETACH
            } else {
                UnmountFlags::empty()
            };
            rustix::mount::unmount(path, forced | UnmountFlags::NOFOLLOW)
        }
    }
}

/// Returns the options of a mount by the kernel, and of the helper's.
fn options(target: &Target, is_for_one_user: bool) -> Result<String, Error> {
    let stat = fstat(target).map_err(|source| Error::Place {
        path: target.path().to_owned(),
        source: source.into(),
    })?;
    let permissions = if is_for_one_user {
        ""
    } else {
        ",default_permissions"
    };
    Ok(format!("rootmode={:o}{permissions}", stat.st_mode))
}

fn mount_device(target: &Target, shown: Shown, is_for_one_user: bool) -> Result<OwnedFd, Error> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let device = open("/dev/fuse", flags, Mode::empty()).map_err(Error::Device)?;
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    let options = options(target, is_for_one_user)?;
    let fd = device.as_raw_fd();
    let options = format!("fd={fd},user_id={uid},group_id={gid},allow_other,{options}");
    // No zero byte is in numbers and words.
    let options = CString::new(options).unwrap_or_default();
    let kind = format!("fuse.{}", shown.subtype());
    let mounted = mount(
        c"mica",
        target.held_path(),
        &*kind,
        shown.flags(),
        &*options,
    );
    mounted.map_err(|source| Error::Mount {
        path: target.path().to_owned(),
        source,
    })?;
    Ok(device)
}
