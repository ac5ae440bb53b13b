//! Virtual machines: what a machine is made of, and the backends that run it.
//!
//! A [`MachineConfig`] says what a machine has: a kernel, RAM, read-only pmem
//! regions, read-only disks. A [`Backend`] turns it into a running [`Machine`] with
//! one byte stream to whatever runs inside. Nothing in a configuration belongs to
//! one backend, and nothing above this crate knows which one runs.
//!
//! The guest is hostile. Whatever it sends, its console included, is bounded here.
//!
//! There are two backends: [`kvm`], our own, where KVM truly works, and [`qemu`], which
//! runs everywhere.

#![warn(unsafe_code)]

mod backend;
mod config;
mod console;
mod cpu;
mod error;
mod file;
mod host_kvm;
#[cfg(target_arch = "x86_64")]
pub mod kvm;
mod process;
pub mod qemu;
mod snapshot;

use std::path::PathBuf;

pub use backend::{Acceleration, Backend, Exit, FilesPerRegion, Limits, Machine};
pub use config::{
    Disk, DiskSource, MachineConfig, NetworkInterface, PmemFile, PmemRegion, Sockets,
};
pub use error::Error;
#[cfg(target_arch = "x86_64")]
pub use kvm::{Kvm, WORKER};
pub use qemu::{QEMU_WORKER, Qemu};
pub use snapshot::Snapshot;

/// Where machines' processes are limited by control groups, and in what: `memory`, `cpu`,
/// `pids`.
///
/// # Errors
/// Why they are not, continuing a sentence.
pub fn control_groups() -> Result<(PathBuf, Vec<&'static str>), String> {
    let place = micabox_jail::Place::find()?;
    Ok((place.directory().to_owned(), place.controllers))
}

/// Name of the virtio-serial port that carries the byte stream to the guest's agent.
pub const AGENT_PORT: &str = "micabox.agent.0";

/// The backend that somebody wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendChoice {
    /// The best one here.
    #[default]
    Auto,
    /// Our own on KVM, or an error that says why not.
    Kvm,
    /// [`Qemu`].
    Qemu,
}

/// The best backend for this machine: ours where KVM works, QEMU elsewhere.
///
/// # Errors
/// [`Error::NoQemu`] when there is none, with what to install.
pub fn probe() -> Result<Box<dyn Backend>, Error> {
    choose(BackendChoice::Auto)
}

/// The backend that `choice` asks for.
///
/// # Errors
/// [`Error::NoKvm`] or [`Error::NoQemu`], with what to do.
pub fn choose(choice: BackendChoice) -> Result<Box<dyn Backend>, Error> {
    match choice {
        BackendChoice::Kvm => own().map_err(|why| Error::NoKvm { why }),
        BackendChoice::Qemu => Ok(Box::new(Qemu::probe()?)),
        BackendChoice::Auto => match own() {
            Ok(kvm) => Ok(kvm),
            Err(_) => Ok(Box::new(Qemu::probe()?)),
        },
    }
}

#[cfg(target_arch = "x86_64")]
fn own() -> Result<Box<dyn Backend>, String> {
    Ok(Box::new(Kvm::probe()?))
}

#[cfg(not(target_arch = "x86_64"))]
fn own() -> Result<Box<dyn Backend>, String> {
    Err("our own virtual machine monitor is for x86-64".to_owned())
}
