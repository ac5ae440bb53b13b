//! The interface of a backend and of the machines that it runs.

use std::fmt;
use std::fs::File;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use micabox_spec::DiskRate;
use serde::{Deserialize, Serialize};

use crate::{Error, Lack, MachineConfig, Snapshot};

/// A way to run machines.
pub trait Backend: Send + Sync {
    /// Returns the backend's name, one word: `qemu`.
    fn name(&self) -> &'static str;

    /// Returns how guest code is executed.
    fn acceleration(&self) -> &Acceleration;

    /// Returns one line for a user: the backend, how it executes guest code and, when that is slow,
    /// why.
    fn describe(&self) -> String;

    /// Returns what its machines can have.
    fn limits(&self) -> Limits;

    /// Starts a machine, which runs when this returns. Whether its kernel boots shows on the
    /// agent's stream.
    ///
    /// The machine does not outlive this process, however this process ends.
    ///
    /// # Errors
    /// [`Error`]; nothing is left behind.
    fn start(&self, config: &MachineConfig) -> Result<Box<dyn Machine>, Error>;
}

/// How guest code is executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acceleration {
    /// By the processor, under KVM.
    Kvm,
    /// By the processor, under this machine's own kernel.
    Native,
    /// By an emulator: correct, and some ten times slower.
    Emulated {
        /// Why KVM is not used.
        why: Lack,
    },
}

/// What a backend's machines can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many files one pmem region can consist of.
    pub files_per_region: FilesPerRegion,
    /// Maximum number of pmem regions and disks of one machine together.
    pub max_devices: usize,
    /// Number of pmem regions up to which a boot is not slower than with one disk. A hint.
    pub cheap_regions: usize,
    /// Whether the files of a region must be readable by everyone, because the machine's process
    /// opens them itself as an unprivileged user.
    pub public_regions: bool,
    /// Whether machines can be saved, and others restored from the snapshot.
    pub snapshots: bool,
    /// Whether frames for a machine come behind a virtio-net header, as described at
    /// [`NetworkInterface`](crate::NetworkInterface).
    pub frame_header: bool,
    /// Whether a server of a shared folder is spoken to by vhost-user. It then maps the guest's
    /// memory.
    pub vhost_user: bool,
    /// Whether disks can have files that have to be asked for ([`Part`](crate::Part)), and regions too where
    /// [`userfaultfd`](crate::userfaultfd) works.
    pub parts: bool,
    /// Whether a machine has a kernel of its own. Otherwise it has no disks, but trees that are mounted
    /// already ([`Tree`](crate::Tree)).
    pub own_kernel: bool,
}

/// How many files one pmem region can consist of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilesPerRegion {
    /// Every file is a device of its own.
    One,
    /// Any number, mapped back to back.
    Many,
}

/// A running machine. Dropping it kills it and waits until it is gone.
pub trait Machine: Send + Sync {
    /// Returns the byte stream to the agent. The stream ends when the machine does.
    ///
    /// # Errors
    /// Only the operating system's, if it can't duplicate a descriptor.
    fn agent(&self) -> std::io::Result<UnixStream>;

    /// Returns the ID of the process that runs the machine.
    fn pid(&self) -> u32;

    /// Pauses the machine, writes it into `to`, which must be empty, runs `meanwhile`, and resumes
    /// the machine.
    ///
    /// # Errors
    /// [`Error::NoSnapshots`] or [`Error::Save`]; the machine runs on, unless it has ended.
    fn save(&self, to: &Snapshot, meanwhile: &mut dyn FnMut()) -> Result<(), Error>;

    /// Returns the memory that this machine was restored with, or its base: with it as
    /// [`Snapshot::base`], [`Machine::save`] writes only the pages that differ.
    fn base(&self) -> Option<Arc<File>> {
        None
    }

    /// Writes a list of the pages that this restored machine has written to into an empty file,
    /// for [`Snapshot::touched`]. The file stays empty if they are too many.
    ///
    /// # Errors
    /// [`Error::NoSnapshots`] or [`Error::Save`].
    fn touched(&self, to: &File) -> Result<(), Error> {
        let _ = to;
        Err(Error::NoSnapshots { backend: "QEMU" })
    }

    /// Pauses the machine, runs `meanwhile`, and resumes the machine. While `meanwhile` runs, no
    /// virtual processor runs, and nothing is written to the machine's disks. A second pause, or
    /// [`Machine::save`], waits for the first to end.
    ///
    /// # Errors
    /// [`Error::Pause`]; then `meanwhile` did not run.
    fn pause(&self, meanwhile: &mut dyn FnMut()) -> Result<(), Error>;

    /// Limits how much processor time the machine's process may use from now on, as
    /// [`Machine::cpu_quota`](micabox_spec::Machine::cpu_quota) did at its start.
    ///
    /// # Errors
    /// [`Error::NoLimits`] if its process has no control group that can limit it.
    fn limit_processors(&self, quota: Option<u32>) -> Result<(), Error>;

    /// Limits the traffic of each of the machine's disks from now on, as
    /// [`Machine::disk_rate`](micabox_spec::Machine::disk_rate) did at its start. A request that
    /// waits already counts within a second.
    ///
    /// # Errors
    /// [`Error::Unsupported`]; [`Error::Paused`]; [`Error::Limit`].
    fn limit_disks(&self, rate: &DiskRate) -> Result<(), Error>;

    /// Returns what counts the machine's memory.
    fn memory(&self) -> Memory {
        Memory::OfProcesses
    }

    /// Returns whether anything keeps it from more memory than it was given.
    fn has_memory_limit(&self) -> bool {
        true
    }

    /// Returns whether anything keeps it from more processors than it was given.
    fn has_processor_limit(&self) -> bool {
        true
    }

    /// Returns whether a write of the guest waits for room on the host's disk.
    fn is_stalled(&self) -> bool;

    /// Waits for the machine's end, for at most `timeout`. Returns None if it still runs.
    fn wait(&self, timeout: Duration) -> Option<Exit>;

    /// Kills the machine, as pulling the plug does. [`Machine::wait`] returns when it is gone.
    fn kill(&self);

    /// Returns the last part of the guest's console output.
    fn console_tail(&self) -> String;
}

/// What is known of a machine's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// It is that of its processes, which the system counts.
    OfProcesses,
    /// Counted for all of its processes together, with the files that they have in memory.
    Counted {
        /// Bytes that are not of files on disks.
        own: u64,
        /// Bytes that are, which others may share.
        shared: u64,
    },
    /// Nothing counts it: files in memory belong to no process.
    Unknown,
}

/// How a machine ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "MachineExit"))]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// The guest powered off or asked for a reset.
    PoweredOff,
    /// The guest's kernel gave up.
    Panicked {
        /// The kernel's reason.
        message: String,
    },
    /// A virtual processor shut down because it could not handle an exception, nor the failure to
    /// handle it: the guest's kernel is too broken to report it.
    TripleFault,
    /// The machine could not be restored: the [`Snapshot`] is damaged, or was made by another
    /// version or on another processor.
    BadSnapshot {
        /// The reason.
        message: String,
    },
    /// The machine's process failed: a bad argument, a missing file, no memory.
    Failed {
        /// The process's exit code.
        code: i32,
        /// What the process wrote to stderr, bounded.
        message: String,
    },
    /// A signal ended the machine's process.
    Killed {
        /// The signal's number.
        signal: i32,
        /// Whether [`Machine::kill`] sent it.
        by_us: bool,
        /// What the process wrote to stderr, bounded.
        message: String,
    },
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, message) = match self {
            Self::PoweredOff => return f.write_str("the machine powered off"),
            Self::TripleFault => {
                return f.write_str("a processor of the guest shut down (triple fault)");
            }
            Self::BadSnapshot { message } => {
                return write!(f, "the snapshot can't be resumed: {}", message.trim());
            }
            Self::Panicked { message } => ("the guest's kernel panicked".to_owned(), message),
            Self::Failed { code, message } => (
                format!("the machine's process failed with code {code}"),
                message,
            ),
            Self::Killed {
                signal,
                by_us: true,
                ..
            } => return write!(f, "the machine was killed (signal {signal})"),
            Self::Killed {
                signal, message, ..
            } => (
                format!(
                    "something killed the machine's process with signal {signal}{}",
                    if *signal == libc::SIGKILL {
                        " (is the host out of memory?)"
                    } else {
                        ""
                    }
                ),
                message,
            ),
        };
        f.write_str(&what)?;
        match message.trim() {
            "" => Ok(()),
            message => write!(f, ": {message}"),
        }
    }
}

impl fmt::Display for Acceleration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kvm => f.write_str("KVM"),
            Self::Native => f.write_str("this machine's kernel"),
            Self::Emulated { why } => write!(f, "emulation (TCG), slow: {why}"),
        }
    }
}
