//! What a new process gives up before it becomes its command.

use micabox_wire::{Confinement, DOCKERS_CAPABILITIES, StartFailed, StartFailure, Ulimit};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::filter;
use super::program::failed;
use crate::errno::{describe, last_errno};
use crate::kernel::{Kernel, has_one_user};

/// The capability to trace processes, as a mask.
const SYS_PTRACE: u64 = 1 << 19;

/// Returns what limits a command on a kernel: on the host's, root has Docker's capabilities unless others
/// are named. Where root is the only user, the agent is that user's as well and can't be kept from a command that
/// may trace: none may.
pub fn on(kernel: Kernel, confinement: &Confinement) -> Confinement {
    let mut capabilities = confinement.capabilities;
    if kernel == Kernel::Hosts {
        let refused = if has_one_user() { SYS_PTRACE } else { 0 };
        capabilities = Some(capabilities.unwrap_or(DOCKERS_CAPABILITIES) & !refused);
    }
    Confinement {
        capabilities,
        ..confinement.clone()
    }
}

/// On the host's kernel, gives up what Docker's profile of system calls refuses; there, or if asked to,
/// all privileges that the execution of a program could bring.
pub fn restrict(kernel: Kernel, confinement: &Confinement) -> rustix::io::Result<()> {
    if kernel == Kernel::Hosts || confinement.no_new_privileges {
        rustix::thread::set_no_new_privs(true)?;
    }
    if kernel == Kernel::Own {
        return Ok(());
    }
    filter::install(confinement.capabilities.unwrap_or_default())
}

/// Sets the resource limits.
pub fn set_ulimits(ulimits: &[Ulimit]) -> Result<(), StartFailed> {
    for ulimit in ulimits {
        let value = |limit: Option<u64>| limit.unwrap_or(libc::RLIM_INFINITY);
        let limit = libc::rlimit {
            rlim_cur: value(ulimit.soft),
            rlim_max: value(ulimit.hard),
        };
        // SAFETY: the kernel reads `limit`.
        let result = unsafe { libc::setrlimit(ulimit.resource as _, &raw const limit) };
        if result != 0 {
            let errno = last_errno();
            let what = name(ulimit.resource);
            let message = format!("set the resource limit {what}: {}", describe(errno));
            return Err(failed(StartFailure::Other, message, Some(errno)));
        }
    }
    Ok(())
}

/// Returns a resource's name.
fn name(resource: u32) -> String {
    const NAMES: [&str; 16] = [
        "cpu",
        "fsize",
        "data",
        "stack",
        "core",
        "rss",
        "nproc",
        "nofile",
        "memlock",
        "as",
        "locks",
        "sigpending",
        "msgqueue",
        "nice",
        "rtprio",
        "rttime",
    ];
    let known = NAMES.get(resource as usize);
    known.map_or_else(|| resource.to_string(), |name| (*name).to_owned())
}

/// Takes all capabilities but these out of the bounding set: no program can get them, whatever user
/// executes it. Needs `CAP_SETPCAP`, so it comes before the switch of users.
pub fn bound_capabilities(confinement: &Confinement) -> rustix::io::Result<()> {
    let Some(kept) = confinement.capabilities else {
        return Ok(());
    };
    for number in 0..64 {
        if kept & 1 << number != 0 {
            continue;
        }
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // There are no more.
            Err(Errno::INVAL) => break,
            result => result?,
        }
    }
    Ok(())
}

/// Gives up all capabilities but these: root's, as the kernel took those of other users.
pub fn drop_capabilities(confinement: &Confinement) -> rustix::io::Result<()> {
    let Some(kept) = confinement.capabilities else {
        return Ok(());
    };
    let own = rustix::thread::capabilities(None)?;
    let kept = CapabilitySet::from_bits_retain(kept);
    rustix::thread::set_capabilities(
        None,
        CapabilitySets {
            effective: own.effective & kept,
            permitted: own.permitted & kept,
            inheritable: CapabilitySet::empty(),
        },
    )
}
