//! The sandbox's `/proc`, which its process 1 mounts.

use std::ffi::CStr;
use std::os::fd::OwnedFd;

use rustix::mount::MountAttrFlags;

use super::masks;
use crate::kernel::Kernel;
use crate::mount::{Error, Filesystem, attach};

/// Returns a detached mount of the calling process's PID namespace, for [`attach_masked`]. Made where the
/// agent's `/proc` is still seen: in a user namespace, the kernel makes no other.
pub fn mount() -> Result<OwnedFd, Error> {
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    Filesystem::new("proc")?.mount(attributes)
}

/// Attaches a mount of a PID namespace at the sandbox's `/proc`, and hides what belongs to the host.
pub fn attach_masked(proc: &OwnedFd, kernel: Kernel) -> Result<(), Error> {
    let path: &CStr = c"/proc";
    attach(proc, path)?;
    match kernel {
        Kernel::Own => Ok(()),
        Kernel::Hosts => Ok(masks::cover_proc()?),
    }
}
