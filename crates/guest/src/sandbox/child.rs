//! The agent's child processes: creates them, and detaches them from the agent's state.

use std::os::fd::AsFd;

use rustix::process::Pid;
use rustix::stdio::raw_stderr;
use rustix::thread::LinkNameSpaceType;

use super::place::Place;
use crate::errno::last_errno;

/// Calls fork(2). Returns None in the child.
pub fn fork() -> rustix::io::Result<Option<Pid>> {
    // SAFETY: the agent has one thread, so the child's memory is consistent. In tests there are
    // other threads; then glibc keeps its allocator usable in the child, and the child takes no
    // other lock.
    match unsafe { libc::fork() } {
        0 => Ok(None),
        pid => Pid::from_raw(pid)
            .filter(|_| pid > 0)
            .map(Some)
            .ok_or_else(last_errno),
    }
}

/// Calls kill(2) for a child that has not been waited for. An error means that it has ended.
pub fn kill(pid: Pid, signal: i32) {
    // SAFETY: kill(2) touches no memory.
    let _ = unsafe { libc::kill(pid.as_raw_pid(), signal) };
}

/// Calls kill(2) for the process group of a child that has not been waited for. Returns false if it
/// leads none.
pub fn kill_group(leader: Pid, signal: i32) -> bool {
    // SAFETY: kill(2) touches no memory.
    unsafe { libc::kill(-leader.as_raw_pid(), signal) == 0 }
}

/// Ends this process without running the agent's exit handlers.
pub fn exit(code: i32) -> ! {
    // SAFETY: _exit(2) touches no memory.
    unsafe { libc::_exit(code) }
}

/// Resets the signal settings of the agent (and of Rust's runtime, for SIGPIPE): a process passes
/// its ignored and blocked signals on to its program.
pub fn reset_signals() {
    /// The kernel's `struct sigaction`, larger than on any architecture; all zeros mean SIG_DFL
    /// without flags.
    const DEFAULT: [u64; 8] = [0; 8];
    /// Bytes of the kernel's signal set.
    const SET: usize = 8;
    for signal in 1..=64 {
        // A direct system call, because the C library reserves two signals, and they may have been
        // inherited as ignored. The kernel rejects SIGKILL and SIGSTOP.
        // SAFETY: the kernel reads `DEFAULT`, and no handler is installed.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                DEFAULT.as_ptr(),
                std::ptr::null_mut::<u64>(),
                SET,
            )
        };
    }
    let none = 0_u64;
    // SAFETY: the kernel reads the eight bytes of `none`.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const none,
            std::ptr::null_mut::<u64>(),
            SET,
        )
    };
}

/// Moves this process into the sandbox, and into its control group if there is one.
pub fn enter(place: &Place) -> rustix::io::Result<()> {
    if let Place::Namespace {
        group: Some(group), ..
    } = place
    {
        group.join()?;
    }
    enter_mounts(place)
}

/// Moves this process into the sandbox's mount namespace and root.
pub fn enter_mounts(place: &Place) -> rustix::io::Result<()> {
    let Place::Namespace { mounts, root, .. } = place else {
        return Ok(());
    };
    rustix::thread::move_into_link_name_space(mounts.as_fd(), Some(LinkNameSpaceType::Mount))?;
    rustix::process::fchdir(root)?;
    rustix::process::chroot(".")
}

/// Closes all descriptors but the standard streams and those of `kept`.
pub fn close_others(mut kept: Vec<i32>) -> rustix::io::Result<()> {
    kept.sort_unstable();
    let mut from = raw_stderr() + 1;
    for kept in kept.into_iter().chain([i32::MAX]) {
        if from < kept {
            // SAFETY: the owners of these descriptors are in code that this process never returns
            // to.
            let result = unsafe { libc::close_range(from as u32, kept as u32 - 1, 0) };
            if result != 0 {
                return Err(last_errno());
            }
        }
        from = kept.saturating_add(1);
    }
    Ok(())
}
