//! Runs machines as QEMU processes.
//!
//! Each machine is one process, started without the user's configuration, default devices or
//! network, under QEMU's own seccomp filter and in a jail ([`jail`]). The agent's byte stream and
//! QEMU's monitor are ends of socket pairs that the process inherits, so no path exists that
//! another program could connect to.

mod args;
mod binary;
mod clock;
mod devices;
mod files;
mod jail;
mod options;
mod pci;

use std::path::PathBuf;
use std::sync::Arc;

use micabox_jail::{
    CAP_DAC_READ_SEARCH, CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN, Claim, MAX_FILES, Quota, arguments,
};

use crate::backend::{Acceleration, Backend, FilesPerRegion, Limits, Machine};
use crate::config::processor_time;
use crate::cpu::Flags;
use crate::process::{Channels, Launch, Process, SharedDescriptor};
use crate::{Error, Exit, MachineConfig, host_kvm};

pub use binary::{install_command, version};
use clock::Reading;
use files::Files;
pub use jail::QEMU_WORKER;
use jail::Start;

/// Bytes of address space beyond RAM and pmem: QEMU, its libraries, the emulator's code buffer, and
/// a stack and an allocator's arena for each thread.
const OWN_ADDRESS_SPACE: u64 = 4 << 30;

/// Bytes of QEMU's memory beyond the guest's: translated code, and a minimum of page cache behind
/// its disks.
const OWN_MEMORY: u64 = 1 << 30;

/// QEMU's threads, except those of processors: it has up to 64 that wait for files.
const OWN_TASKS: u64 = 96;

/// QEMU on this host.
#[derive(Clone, Debug)]
pub struct Qemu {
    program: PathBuf,
    acceleration: Acceleration,
    /// The counter's reading at creation, to compute its frequency when a machine starts.
    counter: Option<Reading>,
}

impl Qemu {
    /// Finds QEMU, and finds out whether KVM works.
    ///
    /// # Errors
    /// [`Error::NoQemu`] with what to install.
    pub fn probe() -> Result<Self, Error> {
        let program = binary::find()?;
        let flags = Flags::read();
        let counter = Reading::now(&flags);
        let acceleration = match host_kvm::probe(&flags) {
            Ok(()) => match jail::no_kvm() {
                None => Acceleration::Kvm,
                Some(why) => Acceleration::Emulated { why },
            },
            Err(why) => Acceleration::Emulated { why },
        };
        Ok(Self {
            program,
            acceleration,
            counter,
        })
    }

    /// Returns the path of the program that runs the machines.
    pub fn program(&self) -> &std::path::Path {
        &self.program
    }
}

/// Returns the length of the largest file that QEMU writes to. RAM that it shares is a file.
fn largest_file(config: &MachineConfig) -> u64 {
    let ram = if config.shares.is_empty() {
        0
    } else {
        config.ram()
    };
    config.largest_written_file().max(ram)
}

impl Backend for Qemu {
    fn name(&self) -> &'static str {
        "qemu"
    }

    fn acceleration(&self) -> &Acceleration {
        &self.acceleration
    }

    fn describe(&self) -> String {
        format!("QEMU with {}", self.acceleration)
    }

    fn limits(&self) -> Limits {
        Limits {
            files_per_region: FilesPerRegion::One,
            max_devices: pci::Functions::COUNT - options::OWN_DEVICES,
            cheap_regions: args::CHEAP_REGIONS,
            public_regions: rustix::process::geteuid().is_root(),
            snapshots: false,
            // QEMU's sockets have no such header, so the guest verifies the checksums of what it
            // receives.
            frame_header: false,
            vhost_user: true,
            parts: false,
            own_kernel: true,
        }
    }

    fn start(&self, config: &MachineConfig) -> Result<Box<dyn Machine>, Error> {
        config.check()?;
        let processor = match (&self.acceleration, &self.counter) {
            (Acceleration::Kvm | Acceleration::Native, _) => args::Processor::Host,
            (Acceleration::Emulated { .. }, counter) => args::Processor::Emulated {
                tsc_khz: counter.and_then(|counter| counter.frequency_khz()),
                one_thread: config.cpus() > 1 && binary::mixes_up_patches(&self.program),
            },
        };
        let channels = Channels::new()?;
        let system = |what| move |source| Error::System { what, source };
        let mut files = Files::of(config)?;
        let command = args::build(config, processor, channels.descriptors(), &files)?;
        let uses_kvm = matches!(processor, args::Processor::Host);
        let paths = std::mem::take(&mut files.paths);
        let start = Start::new(&self.program, command, paths, uses_kvm);
        let description = start
            .and_then(|start| start.write())
            .map_err(system("describing the machine to its worker"))?;
        let description = Arc::new(description);
        let claim = Claim::new().map_err(system("finding a user for the machine"))?;
        let link = config.network.iter().map(|interface| &interface.link);
        let shares = config.shares.iter().map(|share| &share.socket);
        let others = link
            .chain(shares)
            .chain([&description])
            .map(|file| Arc::clone(file) as SharedDescriptor);
        files.open.extend(others);
        files
            .open
            .extend(config.lifeline.clone().map(|file| file as _));
        let launch = Launch {
            program: micabox_jail::program(jail::NAME).map_err(|source| Error::Spawn {
                path: "mica".into(),
                source,
            })?,
            name: None,
            arguments: arguments(jail::NAME, &description, claim.as_ref()),
            forked: None,
            files: files.open,
            address_space: config.address_space().saturating_add(OWN_ADDRESS_SPACE),
            file_size: largest_file(config),
            // To change to another user, in a root of its own.
            capabilities: &[CAP_DAC_READ_SEARCH, CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN],
            descriptors: MAX_FILES,
            saves: 0,
            base: None,
            monitored: true,
            failure: |code, message| Exit::Failed { code, message },
            quota: Quota {
                memory: config.ram().saturating_add(OWN_MEMORY),
                processor_time: config.processor_time(),
                tasks: u64::from(config.cpus()) + OWN_TASKS,
            },
            whole_time: processor_time(config.cpus(), None),
            is_container: false,
            machine: config.machine,
            claim,
            attached: Some(Box::new(config.servers())),
        };
        Ok(Box::new(Process::start(launch, channels)?))
    }
}
