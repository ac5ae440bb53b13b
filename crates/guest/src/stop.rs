//! The end of a machine: ends all processes and flushes all writes.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::WaitOptions;
use rustix::system::RebootCommand;

use crate::boot::UPPER;
use crate::exec::Sandbox;

/// Kills all processes, and waits until the data that they sent has arrived.
pub fn end_processes() {
    // All processes but process 1, which is the caller.
    // SAFETY: kill(2) touches no memory.
    unsafe { libc::kill(-1, libc::SIGKILL) };
    while !matches!(
        rustix::process::wait(WaitOptions::empty()),
        Err(Errno::CHILD)
    ) {}
    crate::network::settle();
}

/// Unmounts the disk with the sandbox's changes. Returns the first error, if any.
pub fn unmount_upper(sandbox: Sandbox) -> Option<String> {
    // The sandbox holds the last reference to its mount namespace, and so to the overlay.
    drop(sandbox);
    rustix::fs::sync();
    // Only syncfs reports whether some of the data written since the start never reached the disk.
    let flushed = rustix::fs::open(UPPER, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .and_then(|upper| rustix::fs::syncfs(&upper))
        .map_err(|errno| format!("flush the upper layer: {errno}"));
    let unmounted = rustix::mount::unmount(UPPER, UnmountFlags::empty())
        .map_err(|errno| format!("unmount the upper layer: {errno}"));
    flushed.and(unmounted).err()
}

/// Ends the machine. Returns only with an error.
///
/// A reset works on every machine, and the VMM ends with it. Powering off needs ACPI; without ACPI
/// the kernel would halt, which can't be observed from outside.
pub fn end_machine() -> Errno {
    match rustix::system::reboot(RebootCommand::Restart) {
        Ok(()) => Errno::AGAIN,
        Err(errno) => errno,
    }
}
