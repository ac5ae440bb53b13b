//! Runs machines on KVM, with a virtual machine monitor of our own.
//!
//! The monitor is small because it has one purpose: a sandbox of Linux on x86-64, with the devices
//! that it needs and no others, no firmware and no buses to search for devices. All files of an
//! image are one pmem region.
//!
//! The machine runs in a process of its own ([`worker`]), which is this program again. The process
//! gets all that it ever needs as open descriptors ([`worker_spec`]). In it, every virtual processor
//! has a thread ([`vcpu`]), and one more serves all devices ([`virtio`]) except slow ones, which
//! have a thread each.
//!
//! ACPI describes the devices and the ways to end the machine ([`acpi`]). The kernel gets no other
//! description, and its command line disables the search for PCI.

mod acpi;
mod boot;
mod bus;
mod ending;
mod features;
mod legacy;
mod memory;
#[cfg(feature = "test-kvm")]
pub mod parts;
#[cfg(not(feature = "test-kvm"))]
mod parts;
mod saved;
mod vcpu;
mod virtio;
mod vmgenid;
mod vsock;
mod worker;
mod worker_spec;

use std::ops::Range;

use micabox_jail::{
    self as jail, CAP_DAC_READ_SEARCH, CAP_SETGID, CAP_SETUID, Claim, MAX_FILES, Quota, arguments,
};

use crate::backend::{Acceleration, Backend, FilesPerRegion, Limits, Machine};
use crate::config::processor_time;
use crate::cpu::Flags;
use crate::process::{Channels, Launch, Process};
use crate::snapshot::DELTA_HEAD;
use crate::{Begin, Error, Lack, MachineConfig, Sockets, host_kvm};
use vsock::{Inside, Outside};
use worker_spec::{Parts, WorkerSpec};

pub(crate) use features::{here as features_here, read as read_features};
pub(crate) use saved::VERSION as FORMAT;
pub use worker::{Thread, WORKER};

/// Entry points for `fuzz/` into the code that reads a hostile guest's data, or a file that claims
/// to be a saved machine.
#[cfg(feature = "fuzzing")]
pub mod fuzzing {
    use super::virtio::{hostile, vsock};

    pub use super::saved::fuzzing::{sample, saved};

    /// Runs `script` as a driver of a device of some kind.
    pub fn drive(kind: u8, script: &[u8]) {
        hostile::drive(kind, script);
    }

    /// As [`drive`], with a device that is restored from a state, whose length is the first two
    /// bytes.
    pub fn resume(kind: u8, script: &[u8]) {
        hostile::resume(kind, script);
    }

    /// Returns an input of [`resume`] for each kind of device, with a state that a driver produced.
    pub fn states() -> Vec<Vec<u8>> {
        hostile::states()
    }

    /// Runs `script` as a guest that sends packets to sockets, and its host.
    pub fn talk(script: &[u8]) {
        vsock::hostile::talk(script);
    }

    /// Returns scripts for [`talk`] to start from.
    pub fn conversations() -> Vec<(&'static str, Vec<u8>)> {
        vsock::hostile::seeds()
    }
}

/// Inputs of the interrupt controller for virtio devices, one each: those above the inputs of a
/// PC's own devices.
const INTERRUPTS: Range<u32> = 5..24;

/// Devices that every machine has or may have: the agent's channel, the random number
/// generator, the balloon, the network interface and sockets.
const OWN_DEVICES: usize = 5;

/// Bytes of address space of a worker beyond the guest's memory: the program, its threads' stacks
/// and an allocator's arena each.
const OWN_ADDRESS_SPACE: u64 = 2 << 30;

/// Bytes of memory of a worker beyond the guest's. Includes page cache behind its disks and layers,
/// which the kernel reclaims when it must.
const OWN_MEMORY: u64 = 256 << 20;

/// Tasks: the worker, its keeper and their threads, except those of processors and disks; and some
/// spare.
const OWN_TASKS: u64 = 9;

/// Checks that machines' regions can have files of which only a part is here, which have to be asked for: whether the host
/// permits this process a userfaultfd.
///
/// # Errors
/// What is lacking.
pub fn userfaultfd() -> Result<(), Lack> {
    parts::userfault::find().map(drop)
}

/// Returns what a machine's worker needs for files of which only a part is here; none if it has no such file. Where the host
/// permits no userfaultfd, regions map such files by FUSE.
fn parts(config: &MachineConfig) -> Result<Option<Parts>, Error> {
    let names = parts::names(config);
    if names.is_empty() {
        return Ok(None);
    }
    let servers = config.parts.clone();
    let servers = servers.ok_or_else(|| Error::Config("a part of a file without a server".into()));
    let line = parts::open(servers?, names).map_err(|source| Error::System {
        what: "serving a machine's files",
        source,
    })?;
    let mapped = config.pmem.iter().flat_map(|region| &region.files);
    let mut mapped = mapped.filter_map(|file| Some((file, file.part()?)));
    let Some((first, _)) = mapped.clone().next() else {
        return Ok(Some(Parts { line, faults: None }));
    };
    match parts::userfault::find() {
        Ok(access) => Ok(Some(Parts {
            line,
            faults: Some(access),
        })),
        Err(_) if mapped.all(|(_, part)| part.is_readable) => {
            Ok(Some(Parts { line, faults: None }))
        }
        Err(lack) => Err(first.failed(format!("only a part of it is here: {lack}"))),
    }
}

/// Our virtual machine monitor, on the host's KVM.
#[derive(Clone, Debug)]
pub struct Kvm {
    acceleration: Acceleration,
}

impl Kvm {
    /// Checks that KVM works, and that there is a program for the workers.
    ///
    /// # Errors
    /// Why not.
    pub fn probe() -> Result<Self, Lack> {
        host_kvm::probe(&Flags::read())?;
        Self::expect()
    }

    /// As [`Kvm::probe`], but makes no machine to see whether KVM works.
    ///
    /// # Errors
    /// As [`Kvm::probe`].
    pub fn expect() -> Result<Self, Lack> {
        host_kvm::look(&Flags::read())?;
        jail::program(worker::NAME).map_err(|error| Lack::new(error.to_string()))?;
        Ok(Self {
            acceleration: Acceleration::Kvm,
        })
    }
}

impl Backend for Kvm {
    fn name(&self) -> &'static str {
        "kvm"
    }

    fn acceleration(&self) -> &Acceleration {
        &self.acceleration
    }

    fn describe(&self) -> String {
        "Micabox's own virtual machine monitor on KVM".to_owned()
    }

    fn limits(&self) -> Limits {
        let max_devices = INTERRUPTS.len() - OWN_DEVICES;
        Limits {
            files_per_region: FilesPerRegion::Many,
            max_devices,
            cheap_regions: max_devices,
            public_regions: false,
            snapshots: true,
            frame_header: true,
            vhost_user: false,
            parts: true,
            own_kernel: true,
        }
    }

    fn start(&self, config: &MachineConfig) -> Result<Box<dyn Machine>, Error> {
        config.check()?;
        let program = jail::program(worker::NAME).map_err(|source| Error::Spawn {
            path: "mica".into(),
            source,
        })?;
        let kvm = host_kvm::open().map_err(|source| Error::System {
            what: "opening /dev/kvm",
            source,
        })?;
        let channels = Channels::new()?;
        let (vsock, inside) = match &config.vsock {
            None => (None, None),
            Some(Sockets::Nowhere) => (None, Some(Inside::nowhere()?)),
            Some(Sockets::At(path)) => Some(Outside::open(path)?).unzip(),
        };
        let base = match &config.begin {
            Begin::Boot { .. } => None,
            Begin::Restore(snapshot) => Some(snapshot.whole_memory()?),
        };
        let parts = parts(config)?;
        let (description, mut files) =
            WorkerSpec::prepare(config, kvm, inside, parts, channels.descriptors())?;
        files.extend(config.lifeline.clone().map(|file| file as _));
        let claim = Claim::new().map_err(|source| Error::System {
            what: "finding a user for the machine",
            source,
        })?;
        let launch = Launch {
            program,
            name: Some(config.name.clone()),
            arguments: arguments(worker::NAME, &description, claim.as_ref()),
            address_space: config.address_space().saturating_add(OWN_ADDRESS_SPACE),
            // The largest file of a snapshot is the RAM.
            file_size: config
                .largest_written_file()
                .max(config.ram().saturating_add(DELTA_HEAD)),
            descriptors: MAX_FILES,
            saves: config.ram(),
            base,
            monitored: false,
            // To read its own program, and to change its user in its jail.
            capabilities: &[CAP_DAC_READ_SEARCH, CAP_SETGID, CAP_SETUID],
            forked: None,
            files,
            failure: ending::exit,
            quota: Quota {
                memory: config.ram().saturating_add(OWN_MEMORY),
                processor_time: config.processor_time(),
                tasks: u64::from(config.cpus()) + config.disks.len() as u64 + OWN_TASKS,
            },
            whole_time: processor_time(config.cpus(), None),
            is_container: false,
            machine: config.machine,
            claim,
            attached: Some(Box::new((vsock, config.servers()))),
        };
        Ok(Box::new(Process::start(launch, channels)?))
    }
}
