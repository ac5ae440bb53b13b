//! A root directory with nothing in it.

use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, mount_remount, unmount,
};
use rustix::process::{chdir, pivot_root};

use super::{Error, step};

/// A directory that every Linux system has, to mount the new root on.
const PLACE: &str = "/proc";

/// Replaces the root of this mount namespace by an empty file system that nothing can be
/// written to. No other file system is left.
pub(super) fn make_empty() -> Result<(), Error> {
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )
    .map_err(step("keeping mounts to itself"))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount(
        "none",
        PLACE,
        "tmpfs",
        flags,
        c"mode=555,size=4k,nr_inodes=1",
    )
    .map_err(step("mounting an empty root"))?;
    chdir(PLACE).map_err(step("entering its empty root"))?;
    // The old root comes to lie on the new one, and goes.
    pivot_root(".", ".").map_err(step("changing the root"))?;
    unmount(".", UnmountFlags::DETACH).map_err(step("leaving the old root"))?;
    mount_remount("/", flags | MountFlags::RDONLY, "").map_err(step("sealing its root"))?;
    chdir("/").map_err(step("entering its empty root"))
}
