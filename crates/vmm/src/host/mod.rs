//! Runs sandboxes as containers: on this machine's own kernel.
//!
//! A machine of this backend is a tree of processes in namespaces of their own
//! ([`micabox_jail::container`]), whose first one is the guest's agent, taken out of the initrd that a
//! machine would boot. The agent's channel is a socketpair in place of a port, and a disk is a tree that is
//! mounted already; a network interface is a TAP device whose frames the keeper passes on ([`relay`]).
//!
//! The kernel is shared, so the boundary is the system calls that it offers. This backend is never chosen
//! unless it is named.

mod agent;
mod relay;
mod worker;

use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use micabox_jail::container::Subordinate;
use micabox_jail::{
    CAP_DAC_READ_SEARCH, CAP_MKNOD, CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN, Quota, plain_arguments,
    program,
};
use micabox_spec::DiskRate;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::mount::{FsOpenFlags, fsopen};
use serde::{Deserialize, Serialize};

use crate::backend::{Acceleration, Backend, FilesPerRegion, Limits, Machine};
use crate::process::{Channels, Launch, Process, SharedDescriptor};
use crate::{Begin, Error, Exit, FileRef, Lack, MachineConfig, Tree};

pub use worker::HOST_WORKER;

/// The backend's name in errors.
const NAME: &str = "the host backend";

/// Most trees of a machine: the agent gets a descriptor for each.
const MAX_TREES: usize = 64;

/// Bytes of memory beyond what the sandbox is given: the keeper's and the agent's.
const OWN_MEMORY: u64 = 16 << 20;

/// Tasks beside those of commands: the keeper, the agent and the reaper; and some spare.
const OWN_TASKS: u64 = 8;

/// Processes and threads of a sandbox, for each MiB of its memory: a machine's kernel by default allows
/// about as many.
const TASKS_PER_MIB: u64 = 8;

/// The kernel's largest limit of a group (`PID_MAX_LIMIT` of include/linux/threads.h).
const MOST_TASKS: u64 = 4 << 20;

/// What the server of an image answers, where the kernel does not read it itself.
const FUSE: &str = "/dev/fuse";

/// What makes network interfaces.
const TUN: &str = "/dev/net/tun";

/// Most descriptors that a command may have, as in Docker.
const DESCRIPTORS: u64 = 524_288;

/// The capability to kill the container, which is the keeper's child and another user's.
const CAP_KILL: libc::c_ulong = 5;

/// Containers on this machine's kernel.
#[derive(Clone, Debug)]
pub struct Host {
    acceleration: Acceleration,
}

/// A container for a worker to start.
#[derive(Debug, Serialize, Deserialize)]
struct Spec {
    agent: RawFd,
    initrd: FileRef,
    trees: Vec<Tree<RawFd>>,
    network: Option<Link>,
}

/// A network interface.
#[derive(Debug, Serialize, Deserialize)]
struct Link {
    descriptor: RawFd,
    address: [u8; 6],
    mtu: u16,
}

impl Host {
    /// Checks that this process may start containers.
    ///
    /// # Errors
    /// Why not.
    pub fn probe() -> Result<Self, Lack> {
        let is_root = rustix::process::geteuid().is_root();
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        if is_root && map.split_whitespace().ne(["0", "0", "4294967295"]) {
            return Err(Lack::new(
                "it takes this machine's root or a user, not root of a user namespace",
            ));
        }
        if !is_root {
            for_user()?;
        } else if let Err(why) = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC) {
            return Err(no_overlay(why));
        }
        program(worker::KIND).map_err(|error| Lack::new(error.to_string()))?;
        Ok(Self {
            acceleration: Acceleration::Native,
        })
    }
}

/// Returns why root is the only user in this user's containers, if that is so.
pub fn has_one_user() -> Option<String> {
    if rustix::process::geteuid().is_root() {
        return None;
    }
    Subordinate::find().err()
}

/// Checks what a user who is not root needs.
fn for_user() -> Result<(), Lack> {
    let limit = std::fs::read_to_string("/proc/sys/user/max_user_namespaces");
    if limit.is_ok_and(|limit| limit.trim() == "0") {
        return Err(Lack::new("users may make no namespaces here")
            .remedy_is("raise their number: `sudo sysctl user.max_user_namespaces=10000`"));
    }
    match File::options().read(true).write(true).open(FUSE) {
        Ok(_) => Ok(()),
        Err(error) => {
            let kinds = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
            let is_in_kernel = kinds.split_whitespace().any(|kind| kind == "fuse");
            Err(no_fuse(&error, is_in_kernel))
        }
    }
}

/// Returns what root lacks who can't make an overlay.
fn no_overlay(why: Errno) -> Lack {
    match why {
        // The kernel would have loaded the module.
        Errno::NODEV => Lack::new("this kernel has no overlay"),
        Errno::PERM => {
            Lack::new("root may mount nothing here, as in a container without CAP_SYS_ADMIN")
                .remedy_is(
                    "start the container with `--privileged`, or use a machine: `--backend auto`",
                )
        }
        why => Lack::new(format!("this kernel refuses an overlay ({why})")),
    }
}

/// Returns what a user lacks who can't open the device of FUSE.
fn no_fuse(error: &std::io::Error, is_in_kernel: bool) -> Lack {
    let lack = Lack::new(format!(
        "it takes {FUSE}, which serves the image to a user who is not root ({error})"
    ));
    match error.kind() {
        std::io::ErrorKind::NotFound if is_in_kernel => lack.remedy_is(format!(
            "the kernel has FUSE, but its device is not here: start the container with `--device {FUSE}`"
        )),
        std::io::ErrorKind::NotFound => {
            lack.remedy_is("load the kernel's module: `sudo modprobe fuse`")
        }
        std::io::ErrorKind::PermissionDenied => lack.remedy_is(format!(
            "open it to users, as distributions have it: `sudo chmod 666 {FUSE}`"
        )),
        _ => lack,
    }
}

impl Backend for Host {
    fn name(&self) -> &'static str {
        "host"
    }

    fn acceleration(&self) -> &Acceleration {
        &self.acceleration
    }

    fn describe(&self) -> String {
        "containers on this machine's own kernel".to_owned()
    }

    fn limits(&self) -> Limits {
        Limits {
            files_per_region: FilesPerRegion::One,
            max_devices: MAX_TREES,
            cheap_regions: 0,
            public_regions: false,
            snapshots: false,
            frame_header: true,
            vhost_user: false,
            parts: false,
            own_kernel: false,
        }
    }

    fn start(&self, config: &MachineConfig) -> Result<Box<dyn Machine>, Error> {
        config.check()?;
        check(config)?;
        if config.max_processes.is_some() {
            let group = micabox_jail::Place::find();
            if !group.is_ok_and(|group| group.controllers.contains(&"pids")) {
                let why =
                    "it takes a control group with the controller `pids` (`mica doctor`)".into();
                return Err(Error::NoLimits { why });
            }
        }
        let channels = Channels::new()?;
        let (description, files) = describe(config, channels.descriptors().agent)?;
        // Unlike a machine, it has no thread beside its processors.
        let whole_time = u64::from(config.cpus()) * 1000;
        let launch = Launch {
            program: program(worker::KIND).map_err(|source| Error::Spawn {
                path: "mica".into(),
                source,
            })?,
            name: Some(config.name.clone()),
            arguments: plain_arguments(worker::KIND, description).into(),
            forked: Some((worker::HOST_WORKER, description)),
            files,
            address_space: u64::MAX,
            file_size: u64::MAX,
            descriptors: DESCRIPTORS,
            // Root's: to map users and a mount's owners, to make device nodes, and to end what runs as one of them.
            capabilities: &[
                CAP_DAC_READ_SEARCH,
                CAP_KILL,
                CAP_MKNOD,
                CAP_SETGID,
                CAP_SETUID,
                CAP_SYS_ADMIN,
            ],
            saves: 0,
            base: None,
            monitored: false,
            failure: |code, message| Exit::Failed { code, message },
            quota: Quota {
                memory: config.ram().saturating_add(OWN_MEMORY),
                processor_time: config.machine.cpu_quota.map_or(whole_time, u64::from),
                tasks: config
                    .max_processes
                    .unwrap_or(u64::from(config.machine.memory_mib) * TASKS_PER_MIB)
                    .saturating_add(OWN_TASKS)
                    .min(MOST_TASKS),
            },
            whole_time,
            is_container: true,
            machine: config.machine,
            claim: None,
            attached: None,
        };
        Ok(Box::new(Process::start(launch, channels)?))
    }
}

/// Checks that this user may make network interfaces.
///
/// # Errors
/// [`Error::Unsupported`], with what is possible instead.
pub fn check_network() -> Result<(), Error> {
    network().map_err(|lack| Error::Unsupported {
        backend: NAME,
        what: format!("{lack} (--network none works)"),
    })
}

/// Checks that this user may make network interfaces.
///
/// # Errors
/// Why not, continuing a sentence about the backend.
pub fn network() -> Result<(), Lack> {
    let opened = File::options().read(true).write(true).open(TUN);
    opened.map(drop).map_err(|error| {
        let lack = Lack::new(format!("can't make a network interface: {TUN}: {error}"));
        match error.kind() {
            std::io::ErrorKind::NotFound => {
                lack.remedy_is("load the kernel's module: `sudo modprobe tun`")
            }
            std::io::ErrorKind::PermissionDenied => lack.remedy_is(format!(
                "open it to users, as distributions have it: `sudo chmod 666 {TUN}`"
            )),
            _ => lack,
        }
    })
}

/// Refuses what needs a kernel of the sandbox's own.
fn check(config: &MachineConfig) -> Result<(), Error> {
    let limits_disks = config.machine.disk_rate != DiskRate::default();
    let lacking = [
        (
            !config.pmem.is_empty(),
            "has no persistent memory (--transport pmem)",
        ),
        (
            !config.disks.is_empty(),
            "has no disks: the host's kernel would mount a filesystem that the sandbox can damage. Changes \
             are in memory, without volumes and `--upper disk`",
        ),
        (limits_disks, "has no disks whose rate could be limited"),
        (config.vsock.is_some(), "has no vsock"),
        (!config.shares.is_empty(), "shares no folders (-v)"),
        (
            config.machine.nested_virtualization,
            "has no processors that could be virtualised (--nested-virtualization)",
        ),
        (
            matches!(config.begin, Begin::Restore(_)),
            "can't restore a machine",
        ),
    ];
    match lacking.into_iter().find(|(is_wanted, _)| *is_wanted) {
        Some((_, what)) => Err(Error::Unsupported {
            backend: NAME,
            what: what.to_owned(),
        }),
        None => Ok(()),
    }
}

/// Describes the container to its worker. Returns the description's descriptor, and all that the worker
/// inherits.
fn describe(config: &MachineConfig, agent: RawFd) -> Result<(RawFd, Vec<SharedDescriptor>), Error> {
    let system = |source| Error::System {
        what: "describing the container to its worker",
        source,
    };
    let mut files: Vec<SharedDescriptor> = Vec::new();
    let Begin::Boot { initrd, .. } = &config.begin else {
        return Err(Error::NoSnapshots { backend: NAME });
    };
    files.push(Arc::clone(initrd.file()) as _);
    let initrd = initrd.describe(initrd.number());
    let trees = config.trees.iter().cloned().map(|tree| {
        tree.map(|file| {
            let number = file.as_raw_fd();
            files.push(file as _);
            number
        })
    });
    let trees = trees.collect();
    let network = config.network.as_ref().map(|interface| {
        files.push(Arc::clone(&interface.link) as _);
        Link {
            descriptor: interface.link.as_raw_fd(),
            address: interface.address,
            mtu: interface.mtu,
        }
    });
    files.extend(config.lifeline.clone().map(|file| file as _));
    let spec = Spec {
        agent,
        initrd,
        trees,
        network,
    };
    let description = memfd_create("container", MemfdFlags::CLOEXEC);
    let mut description = File::from(description.map_err(|error| system(error.into()))?);
    let text = serde_json::to_vec(&spec).map_err(|error| system(error.into()))?;
    description.write_all(&text).map_err(system)?;
    description.rewind().map_err(system)?;
    let number = description.as_raw_fd();
    files.push(Arc::new(OwnedFd::from(description)));
    Ok((number, files))
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;
    use crate::{Disk, MachineFile};

    #[test]
    fn what_a_container_lacks_is_told_from_what_a_kernel_lacks() {
        let kernel = no_overlay(Errno::NODEV);
        assert!(kernel.to_string().contains("kernel has no overlay"));
        assert_eq!(kernel.remedy(), None);
        let container = no_overlay(Errno::PERM);
        assert!(container.to_string().contains("CAP_SYS_ADMIN"));
        assert!(container.remedy().unwrap().contains("--privileged"));
        let missing = std::io::Error::from(ErrorKind::NotFound);
        let remedies = [true, false].map(|is_in_kernel| no_fuse(&missing, is_in_kernel));
        let [device, module] = remedies.map(|lack| lack.remedy().unwrap().to_owned());
        assert!(device.contains("--device /dev/fuse"), "{device}");
        assert!(module.contains("modprobe fuse"), "{module}");
    }

    #[test]
    fn what_needs_a_kernel_of_its_own_is_refused() {
        let file = || {
            let file = tempfile::tempfile().unwrap();
            MachineFile::new(file, "/store/file").unwrap()
        };
        let good = MachineConfig {
            name: "test".into(),
            begin: Begin::Boot {
                kernel: file(),
                initrd: file(),
            },
            machine: micabox_spec::Machine {
                memory_mib: 256,
                cpus: Some(1),
                ..micabox_spec::Machine::default()
            },
            pmem: Vec::new(),
            disks: Vec::new(),
            trees: Vec::new(),
            parts: None,
            network: None,
            vsock: None,
            shares: Vec::new(),
            cmdline_extra: Vec::new(),
            lifeline: None,
            max_processes: None,
        };
        check(&good).unwrap();
        for (spoil, word) in [
            (
                (|config| config.machine.nested_virtualization = true) as fn(&mut MachineConfig),
                "virtualised",
            ),
            (
                |config| config.vsock = Some(crate::Sockets::Nowhere),
                "vsock",
            ),
            (|config| config.machine.disk_rate.read = Some(1), "rate"),
            (
                |config| config.pmem = vec![crate::PmemRegion { files: Vec::new() }],
                "pmem",
            ),
            (
                |config| {
                    config.disks = vec![Disk {
                        files: Vec::new(),
                        read_only: false,
                        serial: "upper".into(),
                    }];
                },
                "--upper disk",
            ),
        ] {
            let mut config = good.clone();
            spoil(&mut config);
            let error = check(&config).unwrap_err().to_string();
            assert!(error.starts_with(NAME) && error.contains(word), "{error}");
        }
    }
}
