//! What a machine's worker is given: descriptors and one description of them.
//!
//! The worker inherits each file open, and opens nothing: a path in the description is only for
//! messages.

use std::collections::HashSet;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use micabox_spec::Machine;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};

use super::parts::Line;
use super::parts::userfault::Access;
use super::vsock::Inside;
use crate::process::{Descriptors, SharedDescriptor};
use crate::{Begin, Disk, Error, FileRef, MachineConfig, MachineFile, PmemRegion};

/// A machine for a worker to run.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WorkerSpec {
    pub(super) machine: Machine,
    pub(super) kvm: RawFd,
    pub(super) start: Start,
    pub(super) agent: RawFd,
    pub(super) console: RawFd,
    pub(super) control: RawFd,
    pub(super) regions: Vec<PmemRegion<FileRef>>,
    pub(super) disks: Vec<Disk<FileRef>>,
    pub(super) parts: Option<SharedParts>,
    pub(super) network: Option<SharedLink>,
    pub(super) vsock: Option<SharedVsock>,
    pub(super) shares: Vec<SharedFolder>,
}

/// How the machine begins.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Start {
    /// By booting a kernel.
    Boot {
        kernel: RawFd,
        initrd: RawFd,
        command_line: String,
    },
    /// By restoring a saved machine.
    Resume {
        state: RawFd,
        memory: RawFd,
        /// The memory that `memory` is a delta of, if it is one.
        base: Option<RawFd>,
        touched: Option<RawFd>,
    },
}

/// A network interface.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SharedLink {
    pub(super) descriptor: RawFd,
    pub(super) address: [u8; 6],
    pub(super) mtu: u16,
}

/// The host's side of the guest's sockets.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SharedVsock {
    pub(super) listener: RawFd,
    pub(super) owner: RawFd,
}

/// What it takes to have files of which only a part is here.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SharedParts {
    /// The line to the owner.
    line: RawFd,
    /// None where no region has such a file, or the host permits no userfaultfd.
    faults: Option<Faults>,
}

/// How the worker gets a userfaultfd.
#[derive(Debug, Serialize, Deserialize)]
enum Faults {
    /// By the device.
    Device(RawFd),
    /// By the system call, which the host permits to all.
    Call,
}

impl SharedParts {
    /// Takes both, in the worker.
    pub(super) fn take(self) -> std::io::Result<(Line, Option<Access>)> {
        let line = Line::new(own(self.line)?);
        let access = match self.faults {
            None => None,
            Some(Faults::Device(number)) => Some(Access::Device(own(number)?)),
            Some(Faults::Call) => Some(Access::Call),
        };
        Ok((line, access))
    }
}

/// A folder of the host.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SharedFolder {
    pub(super) server: RawFd,
    pub(super) tag: String,
}

/// What a worker gets for files of which only a part is here.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) line: OwnedFd,
    pub(super) faults: Option<Access>,
}

/// The words of every machine's command line: log messages of level critical and above (the kernel
/// reports the lack of PCI as an error, and each letter costs two exits), an immediate reset after
/// a panic, and no search for PCI. The ACPI tables describe the rest.
const COMMAND_LINE: &str = "console=ttyS0 loglevel=3 panic=-1 pci=off";

impl WorkerSpec {
    /// Describes the machine. Returns the description's file, and the descriptors that the worker
    /// must inherit under the same numbers: the description's is one of them.
    pub(super) fn prepare(
        config: &MachineConfig,
        kvm: OwnedFd,
        vsock: Option<Inside>,
        parts: Option<Parts>,
        channels: Descriptors,
    ) -> Result<(Arc<OwnedFd>, Vec<SharedDescriptor>), Error> {
        let mut inherited = Inherited::default();
        let kvm = inherited.add(Arc::new(kvm))?;
        let start = inherited.start(config)?;
        let regions = config.pmem.iter().cloned();
        let regions = regions.map(|region| region.try_map(|file| inherited.file(&file)));
        let regions = regions.collect::<Result<_, Error>>()?;
        let disks = config.disks.iter().cloned();
        let disks = disks.map(|disk| disk.try_map(|file| inherited.file(&file)));
        let disks = disks.collect::<Result<_, Error>>()?;
        let parts = parts.map(|parts| {
            let faults = parts.faults.map(|access| match access {
                Access::Device(device) => inherited.add(Arc::new(device)).map(Faults::Device),
                Access::Call => Ok(Faults::Call),
            });
            Ok::<_, Error>(SharedParts {
                line: inherited.add(Arc::new(parts.line))?,
                faults: faults.transpose()?,
            })
        });
        let parts = parts.transpose()?;
        let network = config.network.as_ref().map(|interface| {
            Ok::<_, Error>(SharedLink {
                descriptor: inherited.add(Arc::clone(&interface.link) as _)?,
                address: interface.address,
                mtu: interface.mtu,
            })
        });
        let vsock = vsock.map(|inside| {
            Ok::<_, Error>(SharedVsock {
                listener: inherited.add(Arc::new(inside.listener))?,
                owner: inherited.add(Arc::new(inside.owner))?,
            })
        });
        let shares = config.shares.iter().map(|share| {
            Ok(SharedFolder {
                server: inherited.add(Arc::clone(&share.socket) as _)?,
                tag: share.tag.clone(),
            })
        });
        let shares = shares.collect::<Result<_, Error>>()?;
        let worker_spec = Self {
            machine: Machine {
                cpus: Some(config.cpus()),
                ..config.machine
            },
            kvm,
            start,
            agent: channels.agent,
            console: channels.console,
            control: channels.control,
            regions,
            disks,
            parts,
            network: network.transpose()?,
            vsock: vsock.transpose()?,
            shares,
        };
        let description = worker_spec.write().map_err(|source| Error::System {
            what: "describing the machine to its worker",
            source,
        })?;
        let description = Arc::new(description);
        inherited.add(Arc::clone(&description) as _)?;
        Ok((description, inherited.descriptors))
    }

    fn write(&self) -> std::io::Result<OwnedFd> {
        let mut file = File::from(memfd_create("machine", MemfdFlags::CLOEXEC)?);
        file.write_all(&serde_json::to_vec(self)?)?;
        file.rewind()?;
        Ok(file.into())
    }

    /// Reads the description that `descriptor` holds, in the worker.
    pub(super) fn read(descriptor: RawFd) -> std::io::Result<Self> {
        let mut text = Vec::new();
        File::from(own(descriptor)?).read_to_end(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
    }
}

/// Takes ownership of an inherited descriptor, in the worker.
#[allow(unsafe_code)]
pub(super) fn own(descriptor: RawFd) -> std::io::Result<OwnedFd> {
    // SAFETY: the parent named it in one place of the description only.
    unsafe { micabox_jail::take(descriptor) }
}

/// Descriptors that the worker inherits, each number once.
#[derive(Debug, Default)]
struct Inherited {
    descriptors: Vec<SharedDescriptor>,
    numbers: HashSet<RawFd>,
}

impl Inherited {
    /// Adds a descriptor, or a duplicate if the worker has it already. Returns its number.
    fn add(&mut self, descriptor: SharedDescriptor) -> Result<RawFd, Error> {
        let number = descriptor.as_fd().as_raw_fd();
        if self.numbers.insert(number) {
            self.descriptors.push(descriptor);
            return Ok(number);
        }
        let again = descriptor.as_fd().try_clone_to_owned();
        self.add(Arc::new(again.map_err(|source| Error::System {
            what: "sharing a file",
            source,
        })?))
    }

    fn file(&mut self, file: &MachineFile) -> Result<FileRef, Error> {
        Ok(file.describe(self.add(Arc::clone(file.file()) as _)?))
    }

    fn start(&mut self, config: &MachineConfig) -> Result<Start, Error> {
        match &config.begin {
            Begin::Boot { kernel, initrd } => {
                let words = std::iter::once(COMMAND_LINE)
                    .chain(config.cmdline_extra.iter().map(String::as_str));
                // The worker reads them through the descriptors' offsets, which must be its own.
                Ok(Start::Boot {
                    kernel: self.file(&kernel.reopen()?)?.number,
                    initrd: self.file(&initrd.reopen()?)?.number,
                    command_line: words.collect::<Vec<_>>().join(" "),
                })
            }
            Begin::Restore(snapshot) => {
                let files = snapshot.for_reading();
                let files = files.map_err(|source| Error::System {
                    what: "handing over the snapshot",
                    source,
                })?;
                Ok(Start::Resume {
                    state: self.add(files.state)?,
                    memory: self.add(files.memory)?,
                    base: files.base.map(|base| self.add(base)).transpose()?,
                    touched: files.touched.map(|list| self.add(list)).transpose()?,
                })
            }
        }
    }
}

/// Takes an inherited file, in the worker.
pub(super) fn own_file(description: FileRef) -> std::io::Result<MachineFile> {
    let file = own(description.number)?;
    Ok(MachineFile::received(file.into(), description))
}
