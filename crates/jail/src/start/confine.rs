//! What a process may do from its first instruction on, before it confines
//! itself further.
//!
//! All of it happens in the child between fork and exec. A function here makes
//! nothing but system calls: in a program with threads, a lock (the allocator's, for
//! one) may be held for ever in the child.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;

/// What is decided before the fork.
#[derive(Clone, Debug)]
pub struct Confinement {
    /// Descriptors to inherit beside 0, 1 and 2.
    pub keep: Vec<RawFd>,
    /// Most bytes of address space.
    pub address_space: u64,
    /// Most bytes of a file that it writes to.
    pub file_size: u64,
    /// Seconds of processor time after which it gets SIGXCPU; a second more, and it is killed.
    pub processor_seconds: Option<u64>,
    /// Of root's capabilities, those that are left.
    pub capabilities: &'static [libc::c_ulong],
}

/// To read files whoever they belong to, as root could. Numbers of `linux/capability.h`.
pub const CAP_DAC_READ_SEARCH: libc::c_ulong = 2;
/// To become another group.
pub const CAP_SETGID: libc::c_ulong = 6;
/// To become another user.
pub const CAP_SETUID: libc::c_ulong = 7;
/// To mount things, among others.
pub const CAP_SYS_ADMIN: libc::c_ulong = 21;

/// More descriptors than a machine has extents and devices.
const MAX_FILES: u64 = 16 << 10;

impl Confinement {
    /// Confines the calling process, a child of `parent`, and everything it executes.
    pub(super) fn enter(&self, parent: libc::pid_t) -> io::Result<()> {
        die_with(parent)?;
        // Privileges can only become fewer from here on: no setuid program, and none
        // of root's powers but those it is left if this is root.
        set_no_new_privs()?;
        drop_capabilities(self.capabilities)?;
        // A disk full of core files, or of anything else, is not its to make.
        limit(libc::RLIMIT_CORE, 0, 0)?;
        limit(libc::RLIMIT_FSIZE, self.file_size, 0)?;
        limit(libc::RLIMIT_NOFILE, MAX_FILES, 0)?;
        limit(libc::RLIMIT_AS, self.address_space, 0)?;
        if let Some(seconds) = self.processor_seconds {
            limit(libc::RLIMIT_CPU, seconds, 1)?;
        }
        // The caller's other descriptors are not for it, even if one was not marked
        // close-on-exec.
        close_on_exec_from(3)?;
        for fd in &self.keep {
            inherit(*fd)?;
        }
        Ok(())
    }
}

/// Has the kernel kill this process when the thread that forked it ends.
fn die_with(parent: libc::pid_t) -> io::Result<()> {
    // SAFETY: takes an integer; getppid has no precondition.
    unsafe {
        check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
        // It may have ended before the request.
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

/// Drops all capabilities but some. A process without CAP_SETPCAP has no capabilities to
/// speak of, and the kernel says EPERM.
fn drop_capabilities(left: &[libc::c_ulong]) -> io::Result<()> {
    // The kernel answers EINVAL to the first number that it has no capability for.
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

/// Lowers a limit to at most `value`; the hard one to `beyond` more.
pub(crate) fn limit(
    resource: libc::__rlimit_resource_t,
    value: u64,
    beyond: u64,
) -> io::Result<()> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a live rlimit structure.
    check(unsafe { libc::getrlimit(resource, &raw mut limit) })?;
    limit.rlim_cur = limit.rlim_max.min(value);
    limit.rlim_max = limit.rlim_max.min(value.saturating_add(beyond));
    // SAFETY: as above.
    check(unsafe { libc::setrlimit(resource, &raw const limit) })
}

fn close_on_exec_from(first: RawFd) -> io::Result<()> {
    // SAFETY: changes flags of descriptors of this process, which is about to exec.
    let result = check(unsafe {
        libc::close_range(
            first.unsigned_abs(),
            u32::MAX,
            libc::CLOSE_RANGE_CLOEXEC.cast_signed(),
        )
    });
    match result {
        // Linux before 5.11 knows no such flag.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL)) => Ok(()),
        result => result,
    }
}

fn inherit(fd: RawFd) -> io::Result<()> {
    // SAFETY: changes a flag of a descriptor that the caller owns.
    check(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) })
}

pub(super) fn check(result: libc::c_int) -> io::Result<()> {
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
