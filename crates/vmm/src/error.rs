//! Why a machine can't be started, saved or paused.

use std::io;
use std::path::PathBuf;

use crate::Lack;

/// Why a machine can't be started, saved or paused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// QEMU for this architecture is not installed.
    #[error("{binary} is not installed: install it ({install}) or name it in MICABOX_QEMU")]
    NoQemu {
        /// The program that was looked for.
        binary: String,
        /// A command that installs it.
        install: String,
    },
    /// KVM does not work here.
    #[error("KVM can't run machines here: {0}; the qemu backend works without it")]
    NoKvm(Lack),
    /// This process can't start containers.
    #[error("the host backend does not work here: {0}")]
    NoContainers(Lack),
    /// The configuration requests something that no backend has.
    #[error("this machine can't be built: {0}")]
    Config(String),
    /// A size that no machine has.
    #[error("this machine can't be built: {0}")]
    Size(#[from] micabox_spec::SizeError),
    /// A file of the machine is missing, unreadable or invalid.
    #[error("{}: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The configuration requests more than this backend has.
    #[error("{backend} {what}")]
    Unsupported {
        /// The backend's name.
        backend: &'static str,
        /// What the backend can't do, continuing the sentence.
        what: String,
    },
    /// The backend's process could not be started.
    #[error("starting {}", path.display())]
    Spawn {
        /// The program.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Machines of this backend can't be saved.
    #[error("snapshots of memory and forks need KVM, and this machine runs on {backend}")]
    NoSnapshots {
        /// The backend's name.
        backend: &'static str,
    },
    /// A running machine could not be saved.
    #[error("saving the machine: {0}")]
    Save(String),
    /// A running machine could not be paused.
    #[error("pausing the machine: {0}")]
    Pause(String),
    /// What was requested needs a machine that is not paused, as for a copy of its disk.
    #[error("the machine is paused")]
    Paused,
    /// The traffic of a running machine's disks could not be limited.
    #[error("limiting the machine's disks: {0}")]
    Limit(String),
    /// The machine's process can't be limited as required.
    #[error("the machine can't be limited in memory, processor time and tasks: {why}")]
    NoLimits {
        /// Why.
        why: String,
    },
    /// The operating system refused something that a machine needs.
    #[error("{what}")]
    System {
        /// What was being done.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl Error {
    /// Returns what makes the backend work that does not work here, where that is known.
    pub fn remedy(&self) -> Option<&str> {
        match self {
            Self::NoKvm(lack) | Self::NoContainers(lack) => lack.remedy(),
            _ => None,
        }
    }
}
