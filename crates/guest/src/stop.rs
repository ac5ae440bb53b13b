//! The end of a machine: nothing running, nothing unwritten.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::WaitOptions;
use rustix::system::RebootCommand;

use crate::boot::UPPER;
use crate::exec::Sandbox;

/// Ends all processes, and waits for what they sent.
pub fn end_processes() {
    // Everything but process 1, which is the caller.
    // SAFETY: kill(2) touches no memory.
    unsafe { libc::kill(-1, libc::SIGKILL) };
    while !matches!(
        rustix::process::wait(WaitOptions::empty()),
        Err(Errno::CHILD)
    ) {}
    crate::network::settle();
}

/// Unmounts the disk that the sandbox's changes are on. What of that failed, if anything.
pub fn unmount_upper(sandbox: Sandbox) -> Option<String> {
    // The last that holds the sandbox's mount namespace, and so the overlay.
    drop(sandbox);
    rustix::fs::sync();
    // Only this says what of all that was written since the start never reached the disk.
    let flushed = rustix::fs::open(UPPER, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .and_then(|upper| rustix::fs::syncfs(&upper))
        .map_err(|errno| format!("flush the upper layer: {errno}"));
    let unmounted = rustix::mount::unmount(UPPER, UnmountFlags::empty())
        .map_err(|errno| format!("unmount the upper layer: {errno}"));
    flushed.and(unmounted).err()
}

/// Ends the machine. Comes back only with an error.
///
/// By a reset: the VMM is told to end with it, and it works on every machine. Powering off
/// needs ACPI, and without it the kernel would halt, which nobody outside can see.
pub fn end_machine() -> Errno {
    match rustix::system::reboot(RebootCommand::Restart) {
        Ok(()) => Errno::AGAIN,
        Err(errno) => errno,
    }
}
