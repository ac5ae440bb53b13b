//! Mounts filesystems, and collects the kernel's messages when that fails.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen, move_mount,
};

use crate::errno::{describe, last_errno};

/// A filesystem that is being configured for its mount, with fsopen(2) and related calls.
#[derive(Debug)]
pub struct Filesystem {
    context: OwnedFd,
}

/// Why a filesystem can't be mounted.
#[derive(Debug)]
pub struct Error {
    /// The kernel's error number.
    pub errno: Errno,
    /// The messages that the filesystem left in its context, one per line.
    pub log: Vec<String>,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&describe(self.errno))?;
        self.log.iter().try_for_each(|line| write!(f, "; {line}"))
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Self {
            errno,
            log: Vec::new(),
        }
    }
}

impl Filesystem {
    /// Opens a filesystem of the given type.
    pub fn new(kind: &str) -> Result<Self, Error> {
        let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
        Ok(Self { context })
    }

    /// Sets an option that has a value.
    pub fn set(&self, option: &str, value: impl rustix::path::Arg) -> Result<(), Error> {
        fsconfig_set_string(self.context.as_fd(), option, value).map_err(|errno| self.error(errno))
    }

    /// Sets an option that has no value.
    pub fn set_flag(&self, option: &str) -> Result<(), Error> {
        fsconfig_set_flag(self.context.as_fd(), option).map_err(|errno| self.error(errno))
    }

    /// Creates a detached mount of the filesystem.
    pub fn mount(&self, attributes: MountAttrFlags) -> Result<OwnedFd, Error> {
        fsconfig_create(self.context.as_fd())
            .and_then(|()| {
                fsmount(
                    self.context.as_fd(),
                    FsMountFlags::FSMOUNT_CLOEXEC,
                    attributes,
                )
            })
            .map_err(|errno| self.error(errno))
    }

    fn error(&self, errno: Errno) -> Error {
        // Each read of the context returns one message: a letter for its severity, a space, the
        // text. After the last, ENODATA.
        let mut log = Vec::new();
        let mut buffer = [0; 1024];
        while let Ok(count @ 1..) = rustix::io::read(&self.context, &mut buffer) {
            let text = String::from_utf8_lossy(buffer.get(..count).unwrap_or_default());
            let text = text.trim_end();
            log.push(text.get(2..).unwrap_or(text).to_owned());
        }
        Error { errno, log }
    }
}

/// Attaches a detached mount at `path`.
pub fn attach(mount: &OwnedFd, path: impl rustix::path::Arg) -> rustix::io::Result<()> {
    move_mount(
        mount,
        c"",
        CWD,
        path,
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )
}

/// Attaches a detached mount to an open directory or file.
pub fn attach_to(mount: &OwnedFd, place: &OwnedFd) -> rustix::io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, c"", place, c"", flags)
}

/// Makes a mount read-only.
pub fn make_read_only(mount: &OwnedFd) -> rustix::io::Result<()> {
    /// `struct mount_attr` of `linux/mount.h`: flags to set and to clear, propagation, a user
    /// namespace.
    const READ_ONLY: [u64; 4] = [libc::MOUNT_ATTR_RDONLY, 0, 0, 0];
    // SAFETY: an open descriptor, an empty path, and a structure of the given size that lives.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            READ_ONLY.as_ptr(),
            size_of_val(&READ_ONLY),
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(last_errno())
    }
}
