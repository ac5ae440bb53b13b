//! Virtual machines: their configuration, and the backends that run them.
//!
//! A [`MachineConfig`] lists what a machine has: a kernel, RAM, read-only pmem regions, disks. A
//! [`Backend`] turns it into a running [`Machine`] with one byte stream to the agent inside. A
//! configuration has nothing that is specific to one backend, and code above this crate does not
//! depend on which one runs.
//!
//! The guest is hostile. All that it sends, including its console output, is bounded here.
//!
//! There are two backends for machines: [`kvm`], our own, where KVM works, and [`qemu`], which runs
//! everywhere. A third one, [`host`], has no machines: its sandboxes share this machine's kernel.

#![warn(unsafe_code)]

mod backend;
mod config;
mod console;
mod cpu;
mod error;
mod file;
pub mod host;
mod host_kvm;
#[cfg(target_arch = "x86_64")]
pub mod kvm;
mod lack;
mod needs;
mod process;
pub mod qemu;
mod snapshot;

use std::path::PathBuf;

use micabox_spec::BackendChoice;

pub use backend::{Acceleration, Backend, Exit, FilesPerRegion, Limits, Machine, Memory};
pub use config::{
    Begin, Disk, MachineConfig, NetworkInterface, PartServers, PmemRegion, Share, ShareServer,
    Sockets, Tree,
};
pub use error::Error;
pub use file::{FileRef, MachineFile, Part};
pub use host::{HOST_WORKER, Host};
#[cfg(target_arch = "x86_64")]
pub use kvm::{Kvm, WORKER, userfaultfd};
pub use lack::Lack;
pub use needs::{Difference, LeafDifference, NEEDS, Needs, Unreadable};
pub use qemu::{QEMU_WORKER, Qemu};
pub use snapshot::Snapshot;

/// Returns the directory of the control groups that limit machines' processes, and the controllers
/// in use: `memory`, `cpu`, `pids`.
///
/// # Errors
/// Why control groups are not available, continuing a sentence.
pub fn control_groups() -> Result<(PathBuf, Vec<&'static str>), String> {
    let place = micabox_jail::Place::find()?;
    Ok((place.directory().to_owned(), place.controllers))
}

/// Name of the virtio-serial port that carries the byte stream to the guest's agent.
pub const AGENT_PORT: &str = "micabox.agent.0";

/// Returns the best backend for this host: ours where KVM works, QEMU elsewhere.
///
/// # Errors
/// [`Error::NoQemu`], with what to install.
pub fn probe() -> Result<Box<dyn Backend>, Error> {
    choose(BackendChoice::Auto)
}

/// Returns the backend that `choice` names.
///
/// # Errors
/// [`Error::NoKvm`], [`Error::NoQemu`] or [`Error::NoContainers`].
pub fn choose(choice: BackendChoice) -> Result<Box<dyn Backend>, Error> {
    match choice {
        BackendChoice::Kvm => own(Kvm::probe),
        BackendChoice::Qemu => Ok(Box::new(Qemu::probe()?)),
        BackendChoice::Host => on_host(),
        BackendChoice::Auto => own(Kvm::probe).or_else(|_| Ok(Box::new(Qemu::probe()?))),
    }
}

/// Returns the backend that [`choose`] most probably returns, in a fraction of the time: without
/// making a machine to see whether KVM works. For hosts on which machines have run since they were
/// booted.
///
/// # Errors
/// Those of [`choose`].
pub fn expect(choice: BackendChoice) -> Result<Box<dyn Backend>, Error> {
    match choice {
        BackendChoice::Kvm => own(Kvm::expect),
        BackendChoice::Qemu => Ok(Box::new(Qemu::probe()?)),
        BackendChoice::Host => on_host(),
        BackendChoice::Auto => own(Kvm::expect).or_else(|_| Ok(Box::new(Qemu::probe()?))),
    }
}

fn on_host() -> Result<Box<dyn Backend>, Error> {
    match Host::probe() {
        Ok(host) => Ok(Box::new(host)),
        Err(lack) => Err(Error::NoContainers(lack)),
    }
}

#[cfg(target_arch = "x86_64")]
fn own(find: fn() -> Result<Kvm, Lack>) -> Result<Box<dyn Backend>, Error> {
    match find() {
        Ok(kvm) => Ok(Box::new(kvm)),
        Err(lack) => Err(Error::NoKvm(lack)),
    }
}

/// Checks that a machine of our own monitor has memory filled when it is missed.
///
/// # Errors
/// Always, elsewhere than on x86-64.
#[cfg(not(target_arch = "x86_64"))]
pub fn userfaultfd() -> Result<(), Lack> {
    Err(Lack::new("our own virtual machine monitor is for x86-64"))
}

/// Our own backend, which is for x86-64.
#[cfg(not(target_arch = "x86_64"))]
enum Kvm {}

#[cfg(not(target_arch = "x86_64"))]
impl Kvm {
    fn probe() -> Result<Self, Lack> {
        Err(Lack::new("our own virtual machine monitor is for x86-64"))
    }

    fn expect() -> Result<Self, Lack> {
        Self::probe()
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn own(find: fn() -> Result<Kvm, Lack>) -> Result<Box<dyn Backend>, Error> {
    find().map(|never| match never {}).map_err(Error::NoKvm)
}
