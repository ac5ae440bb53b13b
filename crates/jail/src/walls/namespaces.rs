//! Namespaces without any other process, and the keeper, which stays outside.

#![allow(unsafe_code)]

use std::convert::Infallible;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::{
    DumpableBehavior, Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getgid, getpid, getppid,
    getuid, pidfd_open, set_dumpable_behavior, set_parent_process_death_signal, waitpid,
};
use rustix::thread::{UnshareFlags, gettid, unshare_unsafe};

use super::identity::NOBODY;
use super::{Error, step};
use crate::start::confine::close_range;

/// Enters new namespaces. Returns in a child, which is process 1 of its namespace.
pub(super) fn enter() -> Result<(), Error> {
    let owner = Owner::now();
    let (uid, gid) = (getuid().as_raw(), getgid().as_raw());
    let refused = |source| Error::Namespaces { source };
    let own = own_directory().map_err(refused)?;
    unshare(UnshareFlags::NEWNS | UnshareFlags::NEWPID | WITHOUT_PATHS).map_err(refused)?;
    map_identity(&own, uid, gid).map_err(refused)?;
    become_first(&owner)
}

/// As [`enter`], for root, which stays the user that it is: without a user namespace.
pub(super) fn enter_without_user() -> Result<(), Error> {
    let owner = Owner::now();
    let refused = |source| Error::Namespaces { source };
    let others = WITHOUT_PATHS.difference(UnshareFlags::NEWUSER);
    unshare(UnshareFlags::NEWNS | UnshareFlags::NEWPID | others).map_err(refused)?;
    become_first(&owner)
}

/// Continues in a child, which is process 1 of the new namespace.
fn become_first(owner: &Owner) -> Result<(), Error> {
    owner.die_with()?;
    let keeper = pidfd_open(getpid(), PidfdFlags::empty()).map_err(step("naming its keeper"))?;
    let waited = Waited::block();
    // SAFETY: the process has one thread, so that no lock is held in the child.
    match unsafe { libc::fork() } {
        -1 => Err(step("starting the jailed process")(
            io::Error::last_os_error(),
        )),
        0 => {
            waited.unblock();
            die_with(&keeper)
        }
        child => match keep(child, &waited)? {},
    }
}

/// The signals that a keeper waits for: its child's end, and the request to end it.
struct Waited(libc::sigset_t);

impl Waited {
    fn block() -> Self {
        // SAFETY: a set of signals is plain data, and lives.
        unsafe {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGCHLD);
            libc::sigaddset(&raw mut set, libc::SIGTERM);
            libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            Self(set)
        }
    }

    fn unblock(&self) {
        // SAFETY: a set that lives.
        unsafe { libc::sigprocmask(libc::SIG_UNBLOCK, &raw const self.0, std::ptr::null_mut()) };
    }

    /// Waits for one of them; returns its number.
    fn next(&self) -> libc::c_int {
        // SAFETY: a set that lives; the details of a signal are not asked for.
        unsafe { libc::sigwaitinfo(&raw const self.0, std::ptr::null_mut()) }
    }
}

/// The process that started this one.
pub(crate) struct Owner(Option<Pid>);

impl Owner {
    pub(crate) fn now() -> Self {
        Self(getppid())
    }

    /// Makes the kernel kill this process when the owner ends. A change of identity clears this
    /// setting, so it must come after that.
    pub(crate) fn die_with(&self) -> Result<(), Error> {
        let tying = "tying it to its parent";
        set_parent_process_death_signal(Some(Signal::KILL)).map_err(step(tying))?;
        if getppid() != self.0 {
            return Err(step(tying)(rustix::io::Errno::SRCH));
        }
        Ok(())
    }
}

/// Namespaces that need no path, the user namespace first.
const WITHOUT_PATHS: UnshareFlags = UnshareFlags::NEWUSER
    .union(UnshareFlags::NEWNET)
    .union(UnshareFlags::NEWIPC)
    .union(UnshareFlags::NEWUTS)
    .union(UnshareFlags::NEWCGROUP);

fn unshare(namespaces: UnshareFlags) -> io::Result<()> {
    // SAFETY: no other thread shares the table of descriptors, before or after.
    Ok(unsafe { unshare_unsafe(namespaces) }?)
}

/// Opens this process's directory in /proc, for use when that path no longer exists.
pub(super) fn own_directory() -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open("/proc/self", flags, Mode::empty())?)
}

/// Moves this process, with its privileges, into a mount namespace of its own.
pub(crate) fn enter_mounts() -> io::Result<()> {
    unshare(UnshareFlags::NEWNS)
}

/// Moves this process into namespaces of its own, except for a process namespace, so that it stays
/// the child that its owner started; and with a mount namespace only if `with_mounts`.
pub(super) fn enter_in_place(own: &OwnedFd, with_mounts: bool) -> Result<(), Error> {
    let (uid, gid) = (getuid().as_raw(), getgid().as_raw());
    let refused = |source| Error::Namespaces { source };
    let mounts = if with_mounts {
        UnshareFlags::NEWNS
    } else {
        UnshareFlags::empty()
    };
    unshare(mounts | WITHOUT_PATHS).map_err(refused)?;
    map_identity(own, uid, gid).map_err(refused)
}

/// Moves this process, which must have one thread, into a user namespace and a mount namespace of its
/// own, where it has its user's number and may mount what such a namespace allows. No mount there is
/// seen outside.
///
/// # Errors
/// The system's.
pub fn enter_own_mounts() -> io::Result<()> {
    let (uid, gid) = (getuid().as_raw(), getgid().as_raw());
    let own = own_directory()?;
    unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)?;
    map(&own, (uid, uid), (gid, gid))
}

/// Maps `nobody` as the only user and group inside to the caller's outside.
fn map_identity(own: &OwnedFd, uid: u32, gid: u32) -> io::Result<()> {
    map(own, (NOBODY, uid), (NOBODY, gid))
}

/// Maps one user and one group, each inside to one outside.
fn map(own: &OwnedFd, uid: (u32, u32), gid: (u32, u32)) -> io::Result<()> {
    // A process that changed its identity doesn't own its files below /proc.
    set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    let write = |name: &str, text: String| {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(own, name, flags, Mode::empty())?;
        File::from(file).write_all(text.as_bytes())
    };
    write("setgroups", "deny".to_owned())?;
    write("gid_map", format!("{} {} 1", gid.0, gid.1))?;
    write("uid_map", format!("{} {} 1", uid.0, uid.1))
}

/// Makes the kernel kill this process when its keeper ends.
pub(crate) fn die_with(keeper: &OwnedFd) -> Result<(), Error> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(step("tying it to its keeper"))?;
    // The keeper may have ended before the request, and its process ID means nothing inside this
    // namespace.
    let mut ended = [PollFd::from_borrowed_fd(keeper.as_fd(), PollFlags::IN)];
    let count = poll(&mut ended, Some(&Timespec::default())).map_err(step("asking for it"))?;
    if count > 0 {
        return Err(step("tying it to its keeper")(rustix::io::Errno::SRCH));
    }
    Ok(())
}

/// Waits for the child without any descriptor, and ends as it did. A request to end (SIGTERM) kills the child, so that
/// this process can wait for it, and no other one gets it.
fn keep(child: libc::pid_t, waited: &Waited) -> Result<Infallible, Error> {
    // Descriptors that only the child uses must close when it ends: its channels, its memory's
    // files.
    // SAFETY: no code in this process uses a descriptor any more.
    let _ = unsafe { close_range(0, libc::c_uint::MAX, 0) };
    loop {
        if waited.next() == libc::SIGTERM {
            // SAFETY: numbers; the child was not waited for, so that the number is its own.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        match waitpid(Pid::from_raw(child), WaitOptions::NOHANG) {
            Ok(Some((_, status))) => {
                waited.unblock();
                end_as(status)
            }
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(step("waiting for the jailed process")(error)),
        }
    }
}

/// Waits for the child and ends as it did.
pub(crate) fn keep_until_it_ends(child: libc::pid_t) -> Result<Infallible, Error> {
    loop {
        match waitpid(Pid::from_raw(child), WaitOptions::empty()) {
            Ok(Some((_, status))) => end_as(status),
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(step("waiting for the jailed process")(error)),
        }
    }
}

fn end_as(status: WaitStatus) -> ! {
    if let Some(signal) = status.terminating_signal() {
        let (process, thread) = (getpid().as_raw_pid(), gettid().as_raw_pid());
        // SAFETY: calls with numbers; this process's parent sees the same end. A C library's `raise` may
        // remember the thread's number from before a fork, and musl's makes a call that filters refuse.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::syscall(libc::SYS_tgkill, process, thread, signal);
        }
    }
    // SAFETY: ends the process without running exit handlers, which are the child's.
    unsafe { libc::_exit(status.exit_status().unwrap_or(1)) }
}
