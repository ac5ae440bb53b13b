//! Where a tree is mounted for many containers: a mount namespace that has nothing else, and unless the
//! tree is for this machine's own users, a user namespace, whose users all of the containers have.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::fs::{CWD, Mode, OFlags, open};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount,
    open_tree, unmount,
};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, chdir, getpid, pidfd_open, pidfd_send_signal, pivot_root,
    waitpid,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::{Error, Subordinate, step, users};
use crate::walls::namespaces::{die_with, enter_mounts};
use crate::walls::root::{PLACE, keep_mounts};

/// The users of a tree and of its containers.
#[derive(Debug)]
pub enum Owners {
    /// This machine's, without a namespace: a container's are mapped to them for each mount.
    Machine,
    /// Users of this machine from this one on, which own nothing else. Root maps them.
    Range(u32),
    /// A user's subordinate IDs.
    Subordinate(Subordinate),
    /// The calling user alone, who is root inside. All files of the tree have to be root's.
    One,
    /// Those of another tree, whose containers see this one as well.
    Of(OwnedFd),
}

/// A process in the namespaces of a tree. Dropping it ends the process, and so the namespaces unless
/// containers use them.
#[derive(Debug)]
pub struct Space {
    pid: Pid,
    handle: OwnedFd,
    /// A stream to the process.
    pub channel: UnixStream,
}

/// What that process has.
#[derive(Debug)]
pub struct Inside {
    /// A stream to the process that started it.
    pub channel: UnixStream,
    keeper: OwnedFd,
}

impl Owners {
    /// Starts a process in new namespaces, which calls `work` and exits. The calling process must have
    /// one thread; the new one ends with it.
    ///
    /// # Errors
    /// [`Error`]; nothing is left behind.
    pub fn start(&self, work: impl FnOnce(&Inside) -> io::Result<()>) -> Result<Space, Error> {
        let (ours, theirs) = UnixStream::pair().map_err(step("making a channel"))?;
        let keeper = pidfd_open(getpid(), PidfdFlags::empty());
        let keeper = keeper.map_err(step("naming its keeper"))?;
        let users = match self {
            Self::Machine | Self::Of(_) => 0,
            Self::Range(_) | Self::Subordinate(_) | Self::One => libc::CLONE_NEWUSER,
        };
        // SAFETY: without a stack and shared memory this is fork(2), and this process has one thread.
        let pid = match unsafe { libc::syscall(libc::SYS_clone, users | libc::SIGCHLD, 0, 0, 0, 0) }
        {
            -1 => return Err(step(super::REFUSED)(io::Error::last_os_error())),
            0 => {
                drop(ours);
                let inside = Inside {
                    channel: theirs,
                    keeper,
                };
                let run = || -> io::Result<()> {
                    die_with(&inside.keeper).map_err(io::Error::other)?;
                    (&inside.channel).read_exact(&mut [0])?;
                    if let Self::Of(users) = self {
                        let kind = Some(LinkNameSpaceType::User);
                        move_into_link_name_space(users.as_fd(), kind)?;
                    }
                    enter_mounts()?;
                    keep_mounts().map_err(io::Error::other)?;
                    work(&inside)
                };
                let code = i32::from(run().is_err());
                // SAFETY: ends the process without running the caller's exit handlers.
                unsafe { libc::_exit(code) }
            }
            pid => pid as libc::pid_t,
        };
        drop(theirs);
        let pid = Pid::from_raw(pid).ok_or_else(|| step("naming it")(rustix::io::Errno::SRCH))?;
        let handle = pidfd_open(pid, PidfdFlags::empty()).map_err(step("naming it"))?;
        let space = Space {
            pid,
            handle,
            channel: ours,
        };
        let mapped = match self {
            Self::Machine | Self::Of(_) => Ok(()),
            Self::Range(first) => users::map(pid, *first),
            Self::Subordinate(ranges) => ranges.map(pid),
            Self::One => users::map_own(pid),
        };
        mapped.map_err(step("mapping its users"))?;
        (&space.channel)
            .write_all(b"g")
            .map_err(step("starting it"))?;
        Ok(space)
    }
}

impl Inside {
    /// Becomes root of a user namespace: FUSE has no number for any other user of this machine's, and so
    /// no request.
    ///
    /// # Errors
    /// The kernel's.
    pub fn become_root(&self) -> io::Result<()> {
        super::become_root(users::count()? > 1)?;
        // The change of users has undone it.
        die_with(&self.keeper).map_err(io::Error::other)
    }
}

impl Space {
    /// Waits for the end of the process.
    pub fn wait(&self) {
        let _ = waitpid(Some(self.pid), WaitOptions::empty());
    }

    /// Ends the process, for which [`Space::wait`] waits.
    pub fn end(&self) {
        let _ = pidfd_send_signal(&self.handle, Signal::KILL);
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        self.end();
    }
}

/// Opens the calling process's user namespace.
///
/// # Errors
/// The system's.
pub fn own_users() -> io::Result<OwnedFd> {
    Ok(File::open("/proc/self/ns/user")?.into())
}

/// A FUSE filesystem that is mounted nowhere yet.
#[derive(Debug)]
pub struct FuseTree {
    /// The mount, read-only.
    pub mount: OwnedFd,
    /// The kernel's channels to its server, at least one.
    pub channels: Vec<OwnedFd>,
}

/// Who may use a FUSE filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    /// All users of this user namespace and of those in it.
    All,
    /// This user, in any namespace.
    Owner,
}

/// Mounts a FUSE filesystem of which `/dev/fuse`, opened in this user namespace, is asked; with this
/// number of channels if it may be opened as often.
///
/// # Errors
/// The kernel's.
pub fn mount_fuse(channels: usize, readers: Readers) -> io::Result<FuseTree> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let device = open("/dev/fuse", flags, Mode::empty())
        .map_err(|error| io::Error::other(format!("/dev/fuse: {}", io::Error::from(error))))?;
    let fuse = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let context = fuse.as_fd();
    for (option, value) in [
        ("source", "mica"),
        ("fd", &*device.as_raw_fd().to_string()),
        ("rootmode", "40755"),
        ("user_id", "0"),
        ("group_id", "0"),
    ] {
        fsconfig_set_string(context, option, value)?;
    }
    let others = (readers == Readers::All).then_some("allow_other");
    for option in others.into_iter().chain(["default_permissions", "ro"]) {
        fsconfig_set_flag(context, option)?;
    }
    fsconfig_create(context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NODEV;
    let mount = fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    let more = (1..channels).map_while(|_| crate::clone_fuse_channel(device.as_fd()).ok());
    let more: Vec<OwnedFd> = more.collect();
    let channels = std::iter::once(device).chain(more).collect();
    Ok(FuseTree { mount, channels })
}

/// Makes a mount the root of this mount namespace. No other mount is left in it, so that it keeps none
/// of the host's filesystems busy.
///
/// # Errors
/// The kernel's.
pub fn make_root(mount: &OwnedFd) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(mount, c"", CWD, PLACE, flags)?;
    chdir(PLACE)?;
    // The old root is stacked on the new one, and then detached.
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    Ok(chdir("/")?)
}

/// Returns one more mount of this mount namespace's root, detached.
///
/// # Errors
/// The kernel's.
pub fn another_root() -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    Ok(open_tree(CWD, "/", flags)?)
}
