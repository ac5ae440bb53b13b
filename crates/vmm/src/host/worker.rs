//! A container's keeper: starts it, and passes its frames on until its end.

use std::convert::Infallible;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use micabox_jail::container::{Container, Interface, Started, Users, Whose};
use micabox_jail::{Filter, Kind, forbid_paths, take};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use super::{Link, Spec, agent, relay};
use crate::Tree;

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

/// What ends it, as its container ended: a signal of its own, a filter's message, and the end of its thread.
const ENDING: [libc::c_long; 7] = [
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
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
    let Running {
        started,
        link,
        holders,
        _held,
        _users,
    } = start(spec)?;
    confine()?;
    let ends: Vec<&OwnedFd> = std::iter::once(&started.handle).chain(&holders).collect();
    if let (Some(tap), Some(link)) = (&started.tap, &link) {
        relay::run(tap, link, &ends);
    }
    drop(link);
    if relay::wait(&ends) != Some(0) {
        // The container ends with this process.
        return Err("the server of its image has ended".to_owned());
    }
    started.end_as_it_does().map_err(|error| error.to_string())
}

/// A container that runs, and what this process has for it.
struct Running {
    started: Started,
    /// This process's end of the network's link.
    link: Option<OwnedFd>,
    /// The connections to the holders of its trees, if the trees end with them.
    holders: Vec<OwnedFd>,
    _held: Vec<OwnedFd>,
    _users: Option<Users>,
}

/// Starts the container.
fn start(spec: Spec) -> Result<Running, String> {
    let taking = |error| format!("taking a descriptor: {error}");
    let initrd = File::from(own(spec.initrd.number).map_err(taking)?);
    let program = agent::copy_out(&initrd);
    let program = program.map_err(|error| format!("{}: {error}", spec.initrd.name))?;
    drop(initrd);
    let agent = own(spec.agent).map_err(taking)?;
    let trees = spec.trees.into_iter().map(|tree| tree.try_map(own));
    let trees: Vec<Tree<OwnedFd>> = trees.collect::<Result<_, _>>().map_err(taking)?;
    let mut serials = Vec::new();
    let (mut mounts, mut namespaces) = (Vec::new(), Vec::new());
    let (mut holders, mut held) = (Vec::new(), Vec::new());
    for tree in trees {
        serials.push(tree.serial);
        mounts.push(tree.mount);
        match tree.users {
            // Its server ends with its holder.
            Some(users) => {
                namespaces.push(users);
                holders.push(tree.holder);
            }
            None => held.push(tree.holder),
        }
    }
    let claimed = match namespaces.len() {
        0 => Some(Users::claim().map_err(|error| format!("finding users: {error}"))?),
        count if count == mounts.len() => None,
        _ => return Err("its trees have different users".to_owned()),
    };
    let users = match (&claimed, namespaces.first()) {
        (Some(claimed), _) => Whose::Hosts(claimed.first()),
        (None, Some(users)) => Whose::Namespaces(users),
        (None, None) => return Err("it has no users".to_owned()),
    };
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
        users,
        interface,
    };
    let started = container.start().map_err(|error| error.to_string())?;
    Ok(Running {
        started,
        link,
        holders,
        _held: held,
        _users: claimed,
    })
}

/// Gives up all that passing frames on and waiting does not take. The identity stays: as the owner of the
/// container's user namespace, this process's end may end it. Having one thread, it has the allocator's main
/// arena, which opens no file when it gives memory back.
fn confine() -> Result<(), String> {
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, none).map_err(|error| format!("dropping capabilities: {error}"))?;
    // Containers of the same users must not look into it.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|error| format!("clearing the dumpable flag: {error}"))?;
    forbid_paths().map_err(|error| error.to_string())?;
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
