//! A container's keeper: starts it, and passes its frames on until its end.

use std::convert::Infallible;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use micabox_jail::container::{Container, Interface, Started, Users, mount_erofs};
use micabox_jail::{Filter, Kind, take};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use super::{Link, Spec, agent, relay};
use crate::{Disk, FileRef};

/// The kind of worker that keeps a container.
pub const HOST_WORKER: Kind = Kind::new(KIND, work);

/// Its name on a command line.
pub(super) const KIND: &str = "host";

/// The system calls of a keeper whose container runs, beside those of every filter.
const CALLS: [libc::c_long; 16] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_ppoll,
    libc::SYS_poll,
    libc::SYS_wait4,
    libc::SYS_close,
    libc::SYS_exit_group,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_restart_syscall,
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
];

/// What ends it as its container ended: a signal of its own, and a filter's message.
const ENDING: [libc::c_long; 6] = [
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_tgkill,
];

/// Runs in the worker. Returns an exit code only if the container does not start.
fn work(descriptor: RawFd) -> i32 {
    let why = match keep(descriptor) {
        Ok(never) => match never {},
        Err(why) => why,
    };
    eprintln!("{why}");
    1
}

fn keep(descriptor: RawFd) -> Result<Infallible, String> {
    let read = || -> io::Result<Spec> {
        let mut text = Vec::new();
        File::from(own(descriptor)?).read_to_end(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
    };
    let spec = read().map_err(|error| format!("reading what to run: {error}"))?;
    let users = Users::claim().map_err(|error| format!("finding users: {error}"))?;
    let (started, link) = start(spec, &users)?;
    confine()?;
    let watched = started.handle.try_clone();
    let watched = watched.map_err(|error| format!("watching the container: {error}"))?;
    if let (Some(tap), Some(link)) = (&started.tap, &link) {
        relay::run(tap, link, &watched);
    }
    drop(link);
    started.end_as_it_does().map_err(|error| error.to_string())
}

/// Starts the container; returns it with its end of the network's link.
fn start(spec: Spec, users: &Users) -> Result<(Started, Option<OwnedFd>), String> {
    let taking = |error| format!("taking a descriptor: {error}");
    let initrd = File::from(own(spec.initrd.number).map_err(taking)?);
    let program = agent::copy_out(&initrd);
    let program = program.map_err(|error| format!("{}: {error}", spec.initrd.name))?;
    drop(initrd);
    let agent = own(spec.agent).map_err(taking)?;
    let serials: Vec<_> = spec.disks.iter().map(|disk| disk.serial.clone()).collect();
    let mounts = spec.disks.into_iter().map(mount);
    let mounts = mounts.collect::<Result<Vec<_>, String>>()?;
    let (interface, link) = match spec.network {
        None => (None, None),
        Some(Link {
            descriptor,
            address,
            mtu,
        }) => (
            Some(Interface { address, mtu }),
            Some(own(descriptor).map_err(taking)?),
        ),
    };
    let disks = serials.iter().zip(&mounts);
    let disks = disks.map(|(serial, mount)| format!("{serial}={}", mount.as_raw_fd()));
    let arguments = [
        "mica-guest".into(),
        "--on-host".into(),
        agent.as_raw_fd().to_string(),
    ];
    let arguments = arguments.into_iter().chain(disks).map(CString::new);
    let arguments = arguments.collect::<Result<Vec<_>, _>>();
    let arguments = arguments.map_err(|error| format!("naming a disk: {error}"))?;
    let keep = std::iter::once(&agent)
        .chain(&mounts)
        .map(AsRawFd::as_raw_fd);
    let keep: Vec<RawFd> = keep.collect();
    let container = Container {
        program: &program,
        arguments: &arguments,
        keep: &keep,
        mounts: &mounts,
        first_user: users.first(),
        interface,
    };
    let started = container.start().map_err(|error| error.to_string())?;
    Ok((started, link))
}

/// Mounts a disk's filesystem.
fn mount(disk: Disk<FileRef>) -> Result<OwnedFd, String> {
    let name = disk.files.first().map(|file| file.name.clone());
    let files = disk.files.into_iter().map(|file| own(file.number));
    let mounted = files
        .collect::<io::Result<Vec<_>>>()
        .and_then(|files| mount_erofs(&files));
    mounted.map_err(|error| format!("mounting {}: {error}", name.unwrap_or_default()))
}

/// Gives up all that passing frames on and waiting does not take. The identity stays: as the owner of the
/// container's user namespace, this process's end may end it.
fn confine() -> Result<(), String> {
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, none).map_err(|error| format!("dropping capabilities: {error}"))?;
    let filter = Filter::allowing(CALLS.into_iter().chain(ENDING));
    let descriptors = [libc::F_DUPFD_CLOEXEC.cast_unsigned()];
    filter
        .allow_if(libc::SYS_fcntl, 1, u32::MAX, &descriptors)
        .restrict()
        .map_err(|error| error.to_string())
}

/// Takes ownership of a descriptor that this worker inherited.
fn own(descriptor: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the owner gave it to this worker, and the description names it once.
    #[allow(unsafe_code)]
    unsafe {
        take(descriptor)
    }
}
