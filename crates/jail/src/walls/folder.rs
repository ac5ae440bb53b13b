//! The jail for the server of a folder: the folder is its root, and all that it can open.

use std::os::fd::OwnedFd;

use landlock::{ABI, Access, AccessFs, BitFlags};
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat, stat};
use rustix::process::{DumpableBehavior, fchdir, geteuid, set_dumpable_behavior, umask};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use super::landlock::forbid_all_but;
use super::{Error, namespaces, root, step};
use crate::call::parser_filter;
use crate::seccomp::Filter;
use crate::start::confine::{CAP_DAC_READ_SEARCH, CAP_SYS_ADMIN};

/// The capabilities that root keeps until it is in this jail: to change its root, and to use files
/// as root does.
pub const FOLDER_CAPABILITIES: &[libc::c_ulong] = &[
    CAP_DAC_OVERRIDE,
    CAP_DAC_READ_SEARCH,
    CAP_FOWNER,
    CAP_SYS_ADMIN,
];

/// Use files regardless of their permissions, and what only owners may do. Numbers of
/// `linux/capability.h`.
const CAP_DAC_OVERRIDE: libc::c_ulong = 1;
const CAP_FOWNER: libc::c_ulong = 3;

/// What is left of them: the rights of a file's owner whatever its permissions are. In a user's own
/// namespace they reach that user's files only.
const LEFT: CapabilitySet = CapabilitySet::DAC_OVERRIDE
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER);

/// Capabilities kept to read `trusted.*` attributes, which needs `CAP_SYS_ADMIN`. The filter permits none of the other
/// calls that this capability is for.
const LEFT_TO_READ_ALL: CapabilitySet = LEFT.union(CapabilitySet::SYS_ADMIN);

/// Puts the calling process, which must have one thread only, into a jail whose root is `folder`; or,
/// if that is a file, where it can open that file only. The process keeps its user, in namespaces
/// without any other process and without a network. Its working directory is that of its own
/// descriptors (`/proc/self/fd`), by which an open file can be opened once more, and its umask is 0.
/// What is mounted below the folder is there only if `with_mounts`.
/// If `as_it_is`, root's process sees all extended attributes, those of the system (`trusted.*`) too.
/// Returns the folder.
///
/// Where the host refuses a user its namespaces, the process continues within the other walls.
///
/// # Errors
/// [`Error`], in the process where it happened.
pub fn enter_folder(
    folder: OwnedFd,
    read_only: bool,
    with_mounts: bool,
    as_it_is: bool,
) -> Result<OwnedFd, Error> {
    let checked = fstat(&folder).map_err(step("looking at the folder"))?;
    let is_directory = FileType::from_raw_mode(checked.st_mode) == FileType::Directory;
    let owner = namespaces::Owner::now();
    if is_directory {
        // The kernel moves this directory to the new mount namespace.
        fchdir(&folder).map_err(step("entering the folder"))?;
    }
    let entered = if geteuid().is_root() {
        namespaces::enter_without_user().or_else(|_| namespaces::enter())
    } else {
        namespaces::enter()
    };
    let has_namespaces = match entered {
        Ok(()) => true,
        Err(Error::Namespaces { .. }) if !geteuid().is_root() => {
            owner.die_with()?;
            false
        }
        Err(error) => return Err(error),
    };
    let place = OFlags::PATH | OFlags::CLOEXEC;
    let own = openat(
        CWD,
        "/proc/self/fd",
        place | OFlags::DIRECTORY,
        Mode::empty(),
    )
    .map_err(step("finding its descriptors"))?;
    let mut folder = folder;
    if has_namespaces && is_directory {
        root::make_of_here(read_only, with_mounts)?;
        let there = stat("/").map_err(step("looking at its root"))?;
        if (there.st_dev, there.st_ino) != (checked.st_dev, checked.st_ino) {
            return Err(step("entering the folder")(rustix::io::Errno::STALE));
        }
        folder = openat(CWD, "/", place | OFlags::DIRECTORY, Mode::empty())
            .map_err(step("opening its root"))?;
    } else if has_namespaces {
        root::make_empty()?;
    }
    fchdir(own).map_err(step("entering its descriptors"))?;
    umask(Mode::empty());
    let left = if as_it_is && geteuid().is_root() {
        LEFT_TO_READ_ALL
    } else {
        LEFT
    };
    let left = CapabilitySets {
        effective: left,
        permitted: left,
        inheritable: CapabilitySet::empty(),
    };
    // A user without a namespace has none to keep.
    if set_capabilities(None, left).is_err() {
        set_capabilities(None, super::no_capabilities()).map_err(step("dropping capabilities"))?;
    }
    // Processes of the same user must not look into this one.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(step("clearing the dumpable flag"))?;
    let all: BitFlags<AccessFs> = match (is_directory, read_only) {
        (true, false) => AccessFs::from_all(ABI::V6),
        (true, true) => AccessFs::ReadFile | AccessFs::ReadDir,
        (false, false) => AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate,
        (false, true) => AccessFs::ReadFile.into(),
    };
    let again = folder.try_clone().map_err(step("sharing the folder"))?;
    let has_landlock = forbid_all_but(vec![(again, all)])?;
    if !has_namespaces && (!has_landlock || as_it_is) {
        // Nothing but the server's own care would keep it in the folder.
        return Err(step("confining it to the folder")(rustix::io::Errno::NOSYS));
    }
    filter().restrict()?;
    Ok(folder)
}

/// Calls to use files of the folder, beside those of a parser: to open, make, link, rename and remove
/// them, and their attributes; to wait for a machine's queues, and to talk to its monitor.
const CALLS: [libc::c_long; 40] = [
    libc::SYS_accept4,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd2,
    libc::SYS_fchmodat,
    libc::SYS_fstatfs,
    libc::SYS_getdents64,
    libc::SYS_getsockname,
    libc::SYS_getxattr,
    libc::SYS_inotify_add_watch,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_rm_watch,
    libc::SYS_linkat,
    libc::SYS_listxattr,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_openat,
    libc::SYS_poll,
    libc::SYS_prlimit64,
    libc::SYS_pwritev2,
    libc::SYS_readlinkat,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_removexattr,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_sched_getaffinity,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setxattr,
    libc::SYS_shutdown,
    libc::SYS_symlinkat,
    libc::SYS_sync_file_range,
    libc::SYS_syncfs,
    libc::SYS_truncate,
    libc::SYS_unlinkat,
    libc::SYS_utimensat,
    libc::SYS_fchmodat2,
];

fn filter() -> Filter {
    parser_filter(CALLS)
}
