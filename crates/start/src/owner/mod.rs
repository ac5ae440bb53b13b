//! The process that owns a sandbox: how it is started, and how it starts the machine before it
//! serves clients.
//!
//! It is one of this program's ([`KIND`]), in a session of its own. Its stdin is the
//! connection of the process that started it, which sends a [`Job`] first, with the locks that the
//! owner takes over and all files of the machine: that process has opened and checked them, and the
//! owner opens none. Then the two use the owner's protocol. An owner that a [pool](crate::Pool) has
//! started gets its sandbox later, from the sandbox's creator.

mod job;
mod log;
mod machine;
mod parts;
mod sandbox;
mod start;

use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use micabox_holders::{receive, send};
use micabox_jail::Kind;
use micabox_socket::receive_descriptors;
use micabox_vmm::Machine;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

pub use job::{Descriptors, Job, MachineJob, Origin, Ready, SandboxJob, ShareJob};
pub use log::log_with;
pub use start::{Owner, start};

use micabox_error::Error;
use micabox_ground::chain;
use micabox_holders::own_process;

use crate::network::Link;
use job::Received;
use machine::Started;
use sandbox::Sandbox;

/// The kind of worker that owns a sandbox.
pub const KIND: Kind = Kind::new(NAME, work);

const NAME: &str = "owner";

/// Runs an owner. Returns its exit code.
fn work(_: RawFd) -> i32 {
    let own = || -> io::Result<()> {
        let (connection, job, files) = own_process::begin()?;
        match job {
            Job::Sandbox(jobs) => {
                let (sandbox, machine) = *jobs;
                own(sandbox, machine, files, connection)
            }
            Job::Pooled(machine) => own_later(*machine, files, connection),
        }
    };
    let owned = own();
    own_process::end();
    match owned {
        Ok(()) => 0,
        // The creator sees its connection end.
        Err(_) => 1,
    }
}

/// Starts the machine, and owns the sandbox until its end.
fn own(
    job: SandboxJob,
    machine: MachineJob,
    files: Vec<OwnedFd>,
    creator: UnixStream,
) -> io::Result<()> {
    let mut files = files.into_iter();
    Sandbox::new(job, &mut files)?.own(creator, |sandbox| {
        let backend = machine.backend()?;
        let link = machine.link(&*backend)?;
        let interface = link.as_ref().map(|link| link.interface.clone());
        let lifeline = Some(sandbox.lifeline()?);
        let files = Received::new(files);
        // Before the network, which has threads: without any, a container's keeper can be forked.
        let started = machine.start(&*backend, files, interface, lifeline)?;
        let network = sandbox.start_network(link)?;
        if backend.limits().own_kernel {
            sandbox.machine_started(&started)?;
        } else {
            sandbox.is_given(&started);
        }
        Ok((started, network))
    })
}

/// Starts a machine for a pool, and waits for a creator to own a sandbox with it. The machine ends
/// with the pool's connection. It has no file of a sandbox's, so no lock has to outlast it.
fn own_later(machine: MachineJob, files: Vec<OwnedFd>, pool: UnixStream) -> io::Result<()> {
    let start = || -> Result<(Started, Option<Link>), Error> {
        let backend = machine.backend()?;
        let link = machine.link(&*backend)?;
        let interface = link.as_ref().map(|link| link.interface.clone());
        let files = Received::new(files.into_iter());
        Ok((machine.start(&*backend, files, interface, None)?, link))
    };
    let (started, link) = match start() {
        Ok(started) => started,
        Err(error) => return send(&pool, &Ready::Err(chain(&error)), []),
    };
    send(&pool, &Ready::Ok(()), [])?;
    let Some(creator) = wait_for_creator(&pool, &started.machine)? else {
        return Ok(());
    };
    drop(pool);
    let (job, files) = receive::<SandboxJob>(&creator)?;
    Sandbox::new(job, &mut files.into_iter())?.own(creator, |sandbox| {
        let network = sandbox.start_network(link)?;
        sandbox.is_given(&started);
        Ok((started, network))
    })
}

/// Waits for the creator's connection; none if the pool or the machine ends first.
fn wait_for_creator(
    pool: &UnixStream,
    machine: &Arc<dyn Machine>,
) -> io::Result<Option<UnixStream>> {
    let pid = Pid::from_raw(machine.pid().cast_signed());
    let pid = pid.ok_or(io::ErrorKind::NotFound)?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let mut ready = [
        PollFd::new(pool, PollFlags::IN),
        PollFd::new(&process, PollFlags::IN),
    ];
    rustix::io::retry_on_intr(|| poll(&mut ready, None))?;
    let [pool_is_ready, has_ended] = ready.map(|fd| !fd.revents().is_empty());
    if has_ended || !pool_is_ready {
        return Ok(None);
    }
    // The pool's end is the end of the stream.
    let creator = receive_descriptors(pool).ok();
    Ok(creator.and_then(|mut sockets| sockets.pop().map(UnixStream::from)))
}
