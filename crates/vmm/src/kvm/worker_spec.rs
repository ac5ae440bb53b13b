//! What a machine's worker is given: descriptors and one description of them.
//!
//! The parent opens everything, so that the worker opens nothing: a path in the description is only
//! for messages.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;

use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};

use super::vsock::Inside;
use crate::file::open;
use crate::process::Descriptors;
use crate::{DiskSource, Error, MachineConfig};

/// A machine for a worker to run.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WorkerSpec {
    pub(super) memory_mib: u32,
    pub(super) cpus: u8,
    /// Whether the guest may run virtual machines.
    pub(super) is_host: bool,
    pub(super) kvm: RawFd,
    pub(super) start: Start,
    pub(super) agent: RawFd,
    pub(super) console: RawFd,
    pub(super) control: RawFd,
    pub(super) regions: Vec<Vec<SharedFile>>,
    pub(super) disks: Vec<SharedDisk>,
    pub(super) network: Option<SharedLink>,
    pub(super) vsock: Option<SharedVsock>,
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
        touched: Option<RawFd>,
    },
}

/// An open file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SharedFile {
    pub(super) descriptor: RawFd,
    /// Bytes of the file that the machine uses.
    pub(super) length: u64,
    pub(super) name: String,
}

/// A disk of open files.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SharedDisk {
    pub(super) files: Vec<SharedFile>,
    pub(super) serial: String,
    pub(super) read_only: bool,
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

/// The words of every machine's command line: log messages of level critical and above (the kernel
/// reports the lack of PCI as an error, and each letter costs two exits), an immediate reset after
/// a panic, and no search for PCI. The ACPI tables describe the rest.
const COMMAND_LINE: &str = "console=ttyS0 loglevel=3 panic=-1 pci=off";

impl WorkerSpec {
    /// Opens what `config` names. The worker inherits the descriptors under the same numbers; the
    /// first holds the description.
    pub(super) fn prepare(
        config: &MachineConfig,
        kvm: OwnedFd,
        vsock: Option<Inside>,
        channels: Descriptors,
    ) -> Result<Vec<OwnedFd>, Error> {
        let mut opened = Opened(vec![kvm]);
        let start = opened.start(config)?;
        let regions = config.pmem.iter().map(|region| {
            region
                .files
                .iter()
                .map(|file| opened.open(&file.path, Some(file.size), true))
                .collect::<Result<Vec<_>, _>>()
        });
        let regions = regions.collect::<Result<Vec<_>, _>>()?;
        let disks = config.disks.iter().map(|disk| {
            let files = match &disk.source {
                DiskSource::Raw(path) => vec![opened.open(path, None, disk.read_only)?],
                DiskSource::Files { files, .. } => files
                    .iter()
                    .map(|file| opened.open(&file.path, Some(file.size), true))
                    .collect::<Result<_, _>>()?,
            };
            Ok(SharedDisk {
                files,
                serial: disk.serial.clone(),
                read_only: disk.read_only,
            })
        });
        let disks = disks.collect::<Result<Vec<_>, Error>>()?;
        let network = config
            .network
            .as_ref()
            .zip(config.link()?)
            .map(|(interface, link)| {
                let descriptor = link.as_raw_fd();
                opened.0.push(link);
                SharedLink {
                    descriptor,
                    address: interface.address,
                    mtu: interface.mtu,
                }
            });
        let vsock = vsock.map(|inside| {
            let shared = SharedVsock {
                listener: inside.listener.as_raw_fd(),
                owner: inside.owner.as_raw_fd(),
            };
            opened.0.extend([inside.listener, inside.owner]);
            shared
        });
        let worker_spec = Self {
            memory_mib: config.memory_mib,
            cpus: config.cpus,
            is_host: config.nested_virtualization,
            kvm: opened.0.first().map_or(-1, AsRawFd::as_raw_fd),
            start,
            agent: channels.agent,
            console: channels.console,
            control: channels.control,
            regions,
            disks,
            network,
            vsock,
        };
        let description = worker_spec.write().map_err(|source| Error::System {
            what: "describing the machine to its worker",
            source,
        })?;
        opened.0.insert(0, description);
        Ok(opened.0)
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

/// Opened files, which stay open until the worker has them.
struct Opened(Vec<OwnedFd>);

impl Opened {
    fn start(&mut self, config: &MachineConfig) -> Result<Start, Error> {
        let Some(snapshot) = &config.resumed else {
            let words = std::iter::once(COMMAND_LINE)
                .chain(config.cmdline_extra.iter().map(String::as_str));
            return Ok(Start::Boot {
                kernel: self.open(&config.kernel, None, true)?.descriptor,
                initrd: self.open(&config.initrd, None, true)?.descriptor,
                command_line: words.collect::<Vec<_>>().join(" "),
            });
        };
        let (state, memory, touched) = snapshot.reopen().map_err(|source| Error::System {
            what: "handing over the snapshot",
            source,
        })?;
        let mut push = |file: File| {
            let descriptor = file.as_raw_fd();
            self.0.push(file.into());
            descriptor
        };
        Ok(Start::Resume {
            state: push(state),
            memory: push(memory),
            touched: touched.map(push),
        })
    }

    /// Opens a file, which must have `length` bytes if that is given.
    fn open(
        &mut self,
        path: &Path,
        length: Option<u64>,
        read_only: bool,
    ) -> Result<SharedFile, Error> {
        let (file, length) = open(path, length, read_only)?;
        let file = OwnedFd::from(file);
        let shared = SharedFile {
            descriptor: file.as_raw_fd(),
            length,
            name: path.display().to_string(),
        };
        self.0.push(file);
        Ok(shared)
    }
}
