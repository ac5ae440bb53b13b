//! Limits on a process from its first instruction on, before it confines itself further.
//!
//! All of this happens in the child between fork and exec. A function here makes only system calls:
//! in a program with threads, a lock (the allocator's, for one) may be held for ever in the child.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The restrictions of a child process, decided before the fork.
#[derive(Clone, Debug)]
pub struct Confinement {
    /// Descriptors to inherit beside 0, 1 and 2.
    pub keep: Vec<RawFd>,
    /// Maximum bytes of address space.
    pub address_space: u64,
    /// Maximum length in bytes of a file that the process writes to.
    pub file_size: u64,
    /// Maximum number of descriptors: [`MAX_FILES`] for most.
    pub descriptors: u64,
    /// Seconds of processor time after which the process gets SIGXCPU; one second later it is
    /// killed.
    pub processor_seconds: Option<u64>,
    /// The capabilities that root keeps.
    pub capabilities: &'static [libc::c_ulong],
}

/// Read files regardless of their permissions, as root can. Numbers of `linux/capability.h`.
pub const CAP_DAC_READ_SEARCH: libc::c_ulong = 2;
/// Change the group.
pub const CAP_SETGID: libc::c_ulong = 6;
/// Change the user.
pub const CAP_SETUID: libc::c_ulong = 7;
/// Make device nodes.
pub const CAP_MKNOD: libc::c_ulong = 27;
/// Mount file systems, among others.
pub const CAP_SYS_ADMIN: libc::c_ulong = 21;

/// Maximum number of descriptors: more than a machine has extents and devices.
pub const MAX_FILES: u64 = 16 << 10;

impl Confinement {
    /// Confines the calling process, a child of `parent`, and everything it executes.
    pub(super) fn enter(&self, parent: libc::pid_t) -> io::Result<()> {
        die_with(parent)?;
        // Privileges can only decrease from here on: no setuid program and, if this is root, only
        // the capabilities that it keeps.
        set_no_new_privs()?;
        drop_capabilities(self.capabilities)?;
        // The process must not fill a disk with core files or other output.
        limit(Resource::Core, 0, 0)?;
        limit(Resource::Fsize, self.file_size, 0)?;
        limit(Resource::Nofile, self.descriptors, 0)?;
        limit(Resource::As, self.address_space, 0)?;
        if let Some(seconds) = self.processor_seconds {
            limit(Resource::Cpu, seconds, 1)?;
        }
        // The child does not inherit the caller's other descriptors, even one that was not marked
        // close-on-exec.
        close_on_exec_from(3)?;
        for fd in &self.keep {
            inherit(*fd)?;
        }
        Ok(())
    }
}

/// Makes the kernel kill this process when the thread that forked it ends.
fn die_with(parent: libc::pid_t) -> io::Result<()> {
    // SAFETY: takes an integer; getppid has no precondition.
    unsafe {
        check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
        // The parent may have ended before the request.
        if libc::getppid() != parent {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
    }
    Ok(())
}

fn set_no_new_privs() -> io::Result<()> {
    // SAFETY: takes integers only.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })
}

/// Drops all capabilities except `left`. A process without CAP_SETPCAP has no relevant
/// capabilities, and the kernel returns EPERM.
fn drop_capabilities(left: &[libc::c_ulong]) -> io::Result<()> {
    // The kernel returns EINVAL for the first number that is not a capability.
    for capability in 0..64 {
        if left.contains(&capability) {
            continue;
        }
        // SAFETY: takes integers only.
        match check(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) }) {
            Ok(()) => {}
            Err(error) => match error.raw_os_error() {
                Some(libc::EPERM | libc::EINVAL) => break,
                _ => return Err(error),
            },
        }
    }
    Ok(())
}

/// Lowers the soft limit to at most `value`, and the hard limit to at most `beyond` more.
pub(crate) fn limit(resource: Resource, value: u64, beyond: u64) -> io::Result<()> {
    let most = getrlimit(resource).maximum.unwrap_or(u64::MAX);
    let lowered = Rlimit {
        current: Some(most.min(value)),
        maximum: Some(most.min(value.saturating_add(beyond))),
    };
    Ok(setrlimit(resource, lowered)?)
}

/// Lets no descriptor from `first` on survive the execution of a program.
pub(crate) fn close_on_exec_from(first: RawFd) -> io::Result<()> {
    // SAFETY: changes flags of descriptors of this process, which is about to exec.
    let result = unsafe {
        close_range(
            first.unsigned_abs(),
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    match result {
        // Linux before 5.11 doesn't have the flag.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL)) => Ok(()),
        result => result,
    }
}

/// Closes the descriptors from `first` to `last`, or does with them what `flags` say: close_range(2), for which
/// musl has no function.
///
/// # Safety
/// As closing each of them.
pub(crate) unsafe fn close_range(
    first: libc::c_uint,
    last: libc::c_uint,
    flags: libc::c_uint,
) -> io::Result<()> {
    // SAFETY: numbers; the caller answers for the descriptors.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Lets a descriptor survive the execution of a program.
pub(crate) fn inherit(fd: RawFd) -> io::Result<()> {
    // SAFETY: changes a flag of a descriptor that the caller owns.
    check(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) })
}

pub(super) fn check(result: libc::c_int) -> io::Result<()> {
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
