//! A container: a process that is the first one of namespaces of its own, and all that it starts.
//!
//! It is for programs that are not trusted and need a kernel with all that programs expect of one, so
//! this is no jail for a parser: the first process is root, of a user namespace of its own whose users
//! own nothing outside. It begins in a root of a few device nodes, `/proc` and `/sys`, with the
//! descriptors that it is given, and confines further what it starts.
//!
//! The process that starts it stays outside as its keeper: it mounts what only the host's root can,
//! maps the users, and ends with the container, as the container does with it.

#![allow(unsafe_code)]

mod mounts;
mod subordinate;
mod tap;
pub mod tree;
mod users;

use std::convert::Infallible;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::ptr;

use rustix::process::{
    DumpableBehavior, Gid, Pid, PidfdFlags, Uid, geteuid, getpid, pidfd_open, set_dumpable_behavior,
};
use rustix::thread::{
    LinkNameSpaceType, move_into_link_name_space, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};

use crate::start::confine::{close_on_exec_from, inherit};
use crate::walls::namespaces::{Owner, die_with, keep_until_it_ends};

pub use mounts::{map_owners, mount_erofs};
pub use subordinate::Subordinate;
pub use tap::Interface;
pub use users::{USERS, Users};

/// The namespaces of a container.
const NAMESPACES: libc::c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// The step of an error in making namespaces, with a hint.
const REFUSED: &str = "making namespaces (are user namespaces allowed here? sysctl \
     user.max_user_namespaces)";

/// The step of an error in making a network interface.
const INTERFACE: &str = "making its network interface (/dev/net/tun)";

/// The message of a new container with its network device.
const TAP: u8 = b't';
/// The message of one that does not start, with the reason behind it.
const FAILED: u8 = b'!';

/// Why a container does not start.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub struct Error {
    /// The step.
    pub what: String,
    /// The kernel's error.
    pub source: io::Error,
}

/// Converts the kernel's error about a step.
fn step<E: Into<io::Error>>(what: &str) -> impl FnOnce(E) -> Error {
    let what = what.to_owned();
    move |source| Error {
        what,
        source: source.into(),
    }
}

/// A container to start.
#[derive(Debug)]
pub struct Container<'a> {
    /// The program of its first process, open for reading or as a path (`O_PATH`).
    pub program: &'a OwnedFd,
    /// The program's arguments, its name included.
    pub arguments: &'a [CString],
    /// The descriptors that the program inherits, under the same numbers, beside 0, 1 and 2.
    pub keep: &'a [RawFd],
    /// Detached mounts, whose files belong inside to the users that they belong to on their
    /// filesystems.
    pub mounts: &'a [OwnedFd],
    /// Its users.
    pub users: Whose<'a>,
    /// Its network interface beside loopback, if any.
    pub interface: Option<Interface>,
}

/// What the host's root makes for a container, as detached filesystems; nothing where another user starts it.
#[derive(Clone, Copy)]
struct Devices<'a> {
    /// The nodes of its `/dev`.
    nodes: Option<&'a OwnedFd>,
    /// The node by which it makes its network interface.
    tun: Option<&'a OwnedFd>,
}

/// The users of a container.
#[derive(Clone, Copy, Debug)]
pub enum Whose<'a> {
    /// Users of the host: [`USERS`] from this one on. The mounts are of a filesystem with the host's.
    Hosts(u32),
    /// All users of a user namespace, which the mounts' filesystems are in.
    Namespaces(&'a OwnedFd),
}

/// A container that runs.
#[derive(Debug)]
pub struct Started {
    pid: Pid,
    /// Readable when the first process has ended, and so every other one.
    pub handle: OwnedFd,
    /// The other end of its network interface: frames, each behind 12 bytes (`struct
    /// virtio_net_hdr_v1`). Does not block.
    pub tap: Option<OwnedFd>,
}

impl Container<'_> {
    /// Starts the container. The calling process must have one thread, and be the host's root with the
    /// capabilities to mount and to change users, or own the user namespace with its users, which it
    /// enters; it is the container's keeper from now on.
    ///
    /// # Errors
    /// [`Error`]; nothing is left behind.
    pub fn start(&self) -> Result<Started, Error> {
        let (ours, theirs) = UnixStream::pair().map_err(step("making a channel"))?;
        let keeper =
            pidfd_open(getpid(), PidfdFlags::empty()).map_err(step("naming its keeper"))?;
        let is_root = geteuid().is_root();
        let nodes = is_root.then(mounts::make_nodes).transpose();
        let nodes = nodes.map_err(step("making its device nodes"))?;
        let tun = (is_root && self.interface.is_some()).then(mounts::make_tun);
        let tun = tun.transpose().map_err(step(INTERFACE))?;
        let give_nodes = |users: &OwnedFd| {
            if let Some(nodes) = &nodes {
                // Before Linux 6.3 they are nobody's inside.
                let _ = mounts::map_owners(nodes, users);
            }
        };
        let mut count = USERS;
        if let Whose::Namespaces(users) = self.users {
            give_nodes(users);
            count = enter_users(users)?;
        }
        let signal = libc::SIGCHLD;
        // SAFETY: without a stack and shared memory this is fork(2), and this process has one thread.
        let pid = match unsafe { libc::syscall(libc::SYS_clone, NAMESPACES | signal, 0, 0, 0, 0) } {
            -1 => {
                return Err(step(REFUSED)(io::Error::last_os_error()));
            }
            0 => {
                drop(ours);
                let devices = Devices {
                    nodes: nodes.as_ref(),
                    tun: tun.as_ref(),
                };
                self.run(theirs, &keeper, devices, count > 1)
            }
            pid => pid as libc::pid_t,
        };
        drop(theirs);
        let pid = Pid::from_raw(pid).ok_or_else(|| step("naming it")(rustix::io::Errno::SRCH))?;
        let handle = pidfd_open(pid, PidfdFlags::empty()).map_err(step("naming it"))?;
        match self.users {
            Whose::Namespaces(_) => {
                users::map_all(pid, count).map_err(step("mapping its users"))?;
            }
            Whose::Hosts(first) => {
                users::map(pid, first).map_err(step("mapping its users"))?;
                let users = users::namespace(pid).map_err(step("finding its users"))?;
                for mount in self.mounts {
                    let mapped = mounts::map_owners(mount, &users);
                    mapped.map_err(step("mapping the owners of its files"))?;
                }
                give_nodes(&users);
            }
        }
        (&ours).write_all(b"g").map_err(step("starting it"))?;
        let tap = receive(&ours)?;
        Ok(Started { pid, handle, tap })
    }

    /// Becomes the container's first process.
    fn run(
        &self,
        keeper: UnixStream,
        keeper_process: &OwnedFd,
        devices: Devices<'_>,
        has_groups: bool,
    ) -> ! {
        let error = match self.become_first(&keeper, keeper_process, devices, has_groups) {
            Ok(never) => match never {},
            Err(error) => error,
        };
        let mut message = vec![FAILED];
        message.extend(error.to_string().into_bytes());
        let _ = (&keeper).write_all(&message);
        // SAFETY: ends the process without running the keeper's exit handlers.
        unsafe { libc::_exit(1) }
    }

    fn become_first(
        &self,
        keeper: &UnixStream,
        process: &OwnedFd,
        devices: Devices<'_>,
        has_groups: bool,
    ) -> Result<Infallible, Error> {
        let failed =
            |error: crate::walls::Error| step("tying it to its keeper")(io::Error::other(error));
        die_with(process).map_err(failed)?;
        let mut go = [0];
        { keeper }
            .read_exact(&mut go)
            .map_err(step("waiting for its keeper"))?;
        if let Some(interface) = &self.interface {
            // As the user outside, who may open the device.
            let tap = mounts::open_tun(devices.tun).map_err(step(INTERFACE))?;
            interface.make(&tap).map_err(step(INTERFACE))?;
            micabox_socket::send(keeper, &[TAP], &[tap.as_fd()])
                .map_err(step("handing its network interface over"))?;
        }
        become_root(has_groups).map_err(step("becoming root inside"))?;
        // The change of users has undone it.
        die_with(process).map_err(failed)?;
        mounts::change_root(devices.nodes)?;
        close_on_exec_from(3).map_err(step("closing descriptors"))?;
        for descriptor in self.keep {
            inherit(*descriptor).map_err(step("keeping a descriptor"))?;
        }
        Err(step("executing its program")(execute(
            self.program,
            self.arguments,
        )))
    }
}

impl Started {
    /// Waits for the container's end, and ends the calling process as it did.
    ///
    /// # Errors
    /// If it was waited for before.
    pub fn end_as_it_does(self) -> Result<Infallible, crate::WallsError> {
        keep_until_it_ends(self.pid.as_raw_nonzero().get())
    }
}

/// Enters a user namespace that this process owns, as its root: the kernel makes a namespace below one only for
/// one of its users. Returns how many users there are.
fn enter_users(users: &OwnedFd) -> Result<u32, Error> {
    let enter = || -> io::Result<u32> {
        let parent = Owner::now();
        move_into_link_name_space(users.as_fd(), Some(LinkNameSpaceType::User))?;
        let count = users::count()?;
        become_root(count > 1)?;
        // The change of users has undone it, and has made files below /proc the host's root's.
        parent.die_with().map_err(io::Error::other)?;
        set_dumpable_behavior(DumpableBehavior::Dumpable)?;
        Ok(count)
    };
    enter().map_err(step("entering its users"))
}

/// Becomes root of this user namespace, without groups; where there is one group only, those that the
/// user has outside can't be left.
fn become_root(has_groups: bool) -> rustix::io::Result<()> {
    if has_groups {
        set_thread_groups(&[])?;
    }
    set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT)?;
    set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT)
}

/// Executes an open program; returns the error if that fails. Its environment is empty.
fn execute(program: &OwnedFd, arguments: &[CString]) -> io::Error {
    let pointers = arguments.iter().map(|argument| argument.as_ptr());
    let pointers: Vec<_> = pointers.chain([ptr::null()]).collect();
    let environment = [ptr::null::<libc::c_char>()];
    let path: &CStr = c"";
    // SAFETY: a descriptor, strings, and lists of strings with a null pointer at their ends, that live.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            path.as_ptr(),
            pointers.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    io::Error::last_os_error()
}

/// Receives the network interface, if there is one, and waits until the program is executed, which
/// closes the channel.
fn receive(container: &UnixStream) -> Result<Option<OwnedFd>, Error> {
    const STEP: &str = "starting it";
    let mut tap = None;
    loop {
        let mut kind = [0];
        let received = micabox_socket::receive(container, &mut kind, 1).map_err(step(STEP))?;
        if received.bytes == 0 {
            return Ok(tap);
        }
        if kind == [TAP] {
            tap = received.descriptors.into_iter().next();
            continue;
        }
        let mut why = String::new();
        let file = container.try_clone().map_err(step(STEP))?;
        File::from(OwnedFd::from(file))
            .read_to_string(&mut why)
            .map_err(step(STEP))?;
        return Err(step(STEP)(io::Error::other(why)));
    }
}
