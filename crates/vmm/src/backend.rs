//! What a backend promises.

use std::fmt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Error, MachineConfig, Snapshot};

/// Something that runs machines.
pub trait Backend: Send + Sync {
    /// A word for it: `qemu`.
    fn name(&self) -> &'static str;

    /// How guest code is executed.
    fn acceleration(&self) -> &Acceleration;

    /// One line for a user: the backend, how it executes guest code and, when that
    /// is slow, why.
    fn describe(&self) -> String;

    /// What its machines can have.
    fn limits(&self) -> Limits;

    /// Starts a machine. It runs when this returns; whether its kernel boots shows
    /// on the agent's stream.
    ///
    /// The machine does not outlive this process, however this process ends.
    ///
    /// # Errors
    /// As [`Error`] says; nothing is left behind.
    fn start(&self, config: &MachineConfig) -> Result<Box<dyn Machine>, Error>;
}

/// How guest code is executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acceleration {
    /// By the processor, under KVM.
    Kvm,
    /// By an emulator: correct, and some ten times slower.
    Emulated {
        /// Why not by KVM.
        why: String,
    },
}

/// What a backend's machines can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many files one pmem region can be made of.
    pub files_per_region: FilesPerRegion,
    /// Most pmem regions and disks of one machine together.
    pub max_devices: usize,
    /// Up to how many pmem regions a boot is no slower than with one disk. A hint.
    pub cheap_regions: usize,
    /// Whether the files of a region must be readable by everyone, because the machine's process
    /// opens them itself and is nobody.
    pub public_regions: bool,
    /// Whether they can be saved, and others go on from there.
    pub snapshots: bool,
    /// Whether frames for a machine come behind a virtio-net header, as
    /// [`NetworkInterface`](crate::NetworkInterface) says.
    pub frame_header: bool,
}

/// How many files one pmem region can be made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilesPerRegion {
    /// Every file is a device of its own.
    One,
    /// Any number, mapped back to back.
    Many,
}

/// A running machine. Dropping it kills it and waits until it is gone.
pub trait Machine: Send + Sync {
    /// The byte stream to the agent. It ends when the machine does.
    ///
    /// # Errors
    /// None but the operating system's on duplicating a descriptor.
    fn agent(&self) -> std::io::Result<UnixStream>;

    /// The process that runs it.
    fn pid(&self) -> u32;

    /// Has the machine stand still, writes it into `to`, which is empty, does `meanwhile`,
    /// and has it go on.
    ///
    /// # Errors
    /// [`Error::NoSnapshots`] or [`Error::Save`]; the machine goes on, unless it is gone.
    fn save(&self, to: &Snapshot, meanwhile: &mut dyn FnMut()) -> Result<(), Error>;

    /// Pauses the machine, does `meanwhile`, and has it go on: no processor runs, and nothing
    /// is written to its disks from the beginning of `meanwhile` to its end. One at a time:
    /// a second pause, or [`Machine::save`], waits for the first.
    ///
    /// # Errors
    /// [`Error::Pause`]; then `meanwhile` was not done.
    fn pause(&self, meanwhile: &mut dyn FnMut()) -> Result<(), Error>;

    /// Whether something that the guest writes waits for room on the host's disk.
    fn is_stalled(&self) -> bool;

    /// Waits for the machine's end, for at most `timeout`; None if it still runs.
    fn wait(&self, timeout: Duration) -> Option<Exit>;

    /// Ends the machine at once, as pulling the plug does. [`Machine::wait`] tells
    /// when it is gone.
    fn kill(&self);

    /// The last part of what the guest wrote to its console.
    fn console_tail(&self) -> String;
}

/// How a machine ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// The guest powered off or asked for a reset.
    PoweredOff,
    /// The guest's kernel gave up.
    Panicked {
        /// Its own words.
        message: String,
    },
    /// A processor of the guest shut down because it could not handle an exception, nor
    /// the failure to: its kernel is broken beyond saying so.
    TripleFault,
    /// It was to go on from a [`Snapshot`] that is damaged, or was made by another version
    /// or on another processor.
    BadSnapshot {
        /// What is wrong with it.
        message: String,
    },
    /// The process that runs it ended on its own with an error: a bad argument, a
    /// missing file, no memory.
    Failed {
        /// Its exit code.
        code: i32,
        /// What it wrote to stderr, bounded.
        message: String,
    },
    /// A signal ended the process that runs it.
    Killed {
        /// The signal's number.
        signal: i32,
        /// Whether it was [`Machine::kill`]'s.
        by_us: bool,
        /// What it wrote to stderr, bounded.
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
                format!("the virtual machine monitor failed with code {code}"),
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
                    "something killed the virtual machine monitor with signal {signal}{}",
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
            Self::Emulated { why } => write!(f, "emulation (TCG), slow: {why}"),
        }
    }
}
