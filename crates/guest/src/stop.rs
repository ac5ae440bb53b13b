//! The end of a machine: ends all processes and flushes all writes.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::WaitOptions;
use rustix::system::RebootCommand;

use crate::boot::{UPPER, disk};
use crate::sandbox::Sandbox;

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

/// Unmounts the mounted disks, and the disk with the sandbox's changes if there is one. Returns the first
/// error, if any.
pub fn unmount_disks(sandbox: Sandbox, has_upper: bool) -> Option<String> {
    let upper = has_upper.then(|| ("the upper layer".to_owned(), UPPER.to_owned()));
    let mounted = disk::mounted().into_iter();
    let mounted = mounted.map(|path| (path.clone(), path));
    let disks: Vec<(String, String)> = upper.into_iter().chain(mounted).collect();
    if disks.is_empty() {
        return None;
    }
    // The sandbox holds the last reference to its mount namespace, and so to the overlay.
    drop(sandbox);
    rustix::fs::sync();
    let unmounted: Vec<_> = disks
        .iter()
        .map(|(name, path)| unmount(name, path))
        .collect();
    unmounted.into_iter().find_map(Result::err)
}

fn unmount(name: &str, path: &str) -> Result<(), String> {
    // Only syncfs reports whether some of the data written since the start never reached the disk.
    let flushed = rustix::fs::open(path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .and_then(|root| rustix::fs::syncfs(&root))
        .map_err(|errno| format!("flush {name}: {errno}"));
    let unmounted = rustix::mount::unmount(path, UnmountFlags::empty())
        .map_err(|errno| format!("unmount {name}: {errno}"));
    flushed.and(unmounted)
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
