//! What a sandbox on the host's kernel does not see, or can't change, of `/proc` and `/sys`: Docker's
//! `MaskedPaths` and `ReadonlyPaths`.

use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, OpenTreeFlags};

use crate::mount::{Filesystem, attach, make_read_only};

/// Files and directories of `/proc` that are covered.
const PROC: [&str; 10] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
];

/// Parts of `/proc` that are read-only.
const PROC_READ_ONLY: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

/// Directories of `/sys` that are covered.
const SYS: [&str; 2] = ["/sys/firmware", "/sys/devices/virtual/powercap"];

/// Covers what is the host's in the `/proc` of this mount namespace.
pub fn cover_proc() -> rustix::io::Result<()> {
    cover(&PROC)?;
    for path in PROC_READ_ONLY {
        if let Some(tree) = existing(open_tree(path))? {
            make_read_only(&tree)?;
            attach(&tree, path)?;
        }
    }
    Ok(())
}

/// Covers what is the host's in its `/sys`.
pub fn cover_sys() -> rustix::io::Result<()> {
    cover(&SYS)
}

/// Mounts something empty and read-only on each path that exists: a directory, or `/dev/null`.
fn cover(paths: &[&str]) -> rustix::io::Result<()> {
    for path in paths {
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY;
        let opened = rustix::fs::open(*path, flags, Mode::empty());
        let empty = match opened {
            Ok(_) => empty_directory()?,
            Err(Errno::NOTDIR) => open_tree("/dev/null")?,
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(errno),
        };
        attach(&empty, *path)?;
    }
    Ok(())
}

fn empty_directory() -> rustix::io::Result<OwnedFd> {
    let empty = || {
        let tmpfs = Filesystem::new("tmpfs")?;
        tmpfs.set("size", "0")?;
        tmpfs.set("nr_inodes", "1")?;
        tmpfs.mount(MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NODEV)
    };
    empty().map_err(|error: crate::mount::Error| error.errno)
}

fn open_tree(path: &str) -> rustix::io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    rustix::mount::open_tree(CWD, path, flags)
}

fn existing(opened: rustix::io::Result<OwnedFd>) -> rustix::io::Result<Option<OwnedFd>> {
    match opened {
        Ok(tree) => Ok(Some(tree)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}
