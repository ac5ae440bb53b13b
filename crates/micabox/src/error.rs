//! What can go wrong with a sandbox.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use micabox_owner::Lost;
use micabox_wire::StartFailed;

use crate::{CommandError, DiskProblem};

const NAME_RULE: &str =
    "2 to 63 letters, digits, `_`, `.` and `-`, beginning with a letter or digit";

/// What can go wrong with a sandbox.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store.
    #[error(transparent)]
    Store(#[from] micabox_image::store::Error),
    /// A file of the image is not what the store says.
    #[error("the image's file {} can't be used: {problem}", path.display())]
    ImageFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The virtual machine could not be started.
    #[error("starting a virtual machine: {0}")]
    Machine(#[from] micabox_vmm::Error),
    /// The network could not be started.
    #[error(transparent)]
    Network(#[from] micabox_net::Error),
    /// The image can't be given to a machine in the way asked for.
    #[error("{0}")]
    Plan(#[from] crate::plan::PlanError),
    /// The guest's kernel or agent is not installed.
    #[error("no guest {name} in {}", list(searched))]
    NoGuest {
        /// `vmlinux` or `initrd.cpio`.
        name: &'static str,
        /// Where it was looked for.
        searched: Vec<PathBuf>,
    },
    /// The sandbox's owner could not start a virtual machine.
    #[error("{0}")]
    MachineNotStarted(String),
    /// The sandbox's owner could not start what a machine needs.
    #[error("{0}")]
    NotStarted(String),
    /// The sandbox did not come up.
    #[error("the sandbox did not start: {0}")]
    Boot(Lost),
    /// The start was given up.
    #[error("the start was given up")]
    Cancelled,
    /// The sandbox ended while somebody used it.
    #[error("the sandbox ended: {0}")]
    Lost(#[from] Lost),
    /// The sandbox's owner was killed.
    #[error("the process that owned the sandbox is gone: it was killed")]
    OwnerGone,
    /// What to run is not clear.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The command could not be started in the sandbox.
    #[error("{}", .0.message)]
    Start(StartFailed),
    /// Another sandbox has the name.
    #[error("cannot create sandbox `{name}`: the name is in use by sandbox {id}")]
    NameTaken {
        /// The name.
        name: String,
        /// Who has it.
        id: String,
    },
    /// A name that can't be a sandbox's.
    #[error("invalid sandbox name `{0}`: {NAME_RULE}")]
    BadName(String),
    /// A name that can't be a snapshot's.
    #[error("invalid snapshot name `{0}`: {NAME_RULE}")]
    BadSnapshotName(String),
    /// No sandbox has this name or ID.
    #[error("no such sandbox: `{0}`")]
    NoSuchSandbox(String),
    /// More than one ID begins like this.
    #[error("more than one sandbox has an ID beginning with `{0}`")]
    Ambiguous(String),
    /// A running sandbox can't be removed.
    #[error("sandbox {0} is running")]
    Running(String),
    /// A sandbox whose changes were in memory is gone when it ends.
    #[error("sandbox {0} has no disk: its changes are in memory, and gone with it")]
    NotKept(String),
    /// A sandbox's disk.
    #[error("{what} the disk {}: {problem}", path.display())]
    Disk {
        /// What was being done.
        what: &'static str,
        /// The disk's file.
        path: PathBuf,
        /// Why it failed.
        problem: String,
    },
    /// A sandbox on a root disk that is written to has no changes apart from it.
    #[error("sandbox {name} makes its changes in {} itself", path.display())]
    InPlace {
        /// Its name.
        name: String,
        /// The root disk.
        path: PathBuf,
    },
    /// A file that is to be a root can't be one.
    #[error("the root disk {}: {problem}", path.display())]
    RootDisk {
        /// The file.
        path: PathBuf,
        /// Why not.
        problem: DiskProblem,
    },
    /// An imported snapshot has changes to a root disk, and which file that is here only the
    /// user can say.
    #[error("snapshot {0} was imported, and its root disk is not part of it")]
    RootDiskUnnamed(String),
    /// What only an image has is asked of a root disk.
    #[error("sandbox {0} is not made from an image")]
    NoImage(String),
    /// What can't be done to a root disk that is written to.
    #[error("{0} is for a root that is not written to, and this one is")]
    NotInPlace(&'static str),
    /// Changes are to be made in place, and there is no place for them.
    #[error("changes in place are for a root disk that is opened to be written to")]
    NoPlace,
    /// A record says something that cannot be.
    #[error("the record names an image by `{0}`, which is not a digest")]
    BadRecord(String),
    /// There is no snapshot of this name.
    #[error("no such snapshot: `{0}`")]
    NoSuchSnapshot(String),
    /// There is a snapshot of this name.
    #[error("cannot create snapshot `{0}`: there is one already")]
    SnapshotExists(String),
    /// Snapshots with memory are for this machine only.
    #[error("snapshot {0} holds a machine's memory, which goes on nowhere but here")]
    HasMemory(String),
    /// Only a running sandbox has a memory.
    #[error("sandbox {0} does not run, so it has no memory to save")]
    NotRunning(String),
    /// A sandbox could not be saved with its memory.
    #[error("sandbox {name} can't be saved: {why}")]
    NotSaved {
        /// Its name.
        name: String,
        /// Why.
        why: String,
    },
    /// The memory of a snapshot is not what was written.
    #[error("snapshot {name} is damaged ({} was altered); make it again", path.display())]
    DamagedSnapshot {
        /// Its name.
        name: String,
        /// The file.
        path: PathBuf,
    },
    /// Nothing runs in a snapshot that could go on.
    #[error("no command runs in snapshot {0}, so say which one to run")]
    NothingRuns(String),
    /// What is asked for is not what the snapshot has.
    #[error("snapshot {name} {problem}")]
    SnapshotDiffers {
        /// Its name.
        name: String,
        /// In which way.
        problem: &'static str,
    },
    /// No image could be made of a sandbox's changes.
    #[error(transparent)]
    Commit(#[from] Box<micabox_image::ExtendError>),
    /// A change before the first start.
    #[error("{what}: {problem}")]
    Patch {
        /// What was being done.
        what: String,
        /// Why it failed.
        problem: String,
    },
    /// A sandbox does not do what it was told.
    #[error("sandbox {name} did not end within {after:?}")]
    Stuck {
        /// Its name.
        name: String,
        /// How long it was waited for.
        after: Duration,
    },
    /// A file of the sandbox's state.
    #[error("{what} {}: {source}", path.display())]
    State {
        /// What was being done.
        what: &'static str,
        /// To what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The owner of the sandbox refused a request.
    #[error("the sandbox's owner refuses: {0}")]
    Refused(String),
    /// The operating system refused something.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl Error {
    /// The last lines of the guest's console where they may explain the error.
    pub fn console(&self) -> Option<&str> {
        match self {
            Self::Boot(lost) | Self::Lost(lost) => Some(lost.console.trim_end()),
            _ => None,
        }
        .filter(|console| !console.is_empty())
    }
}

fn list(paths: &[PathBuf]) -> String {
    let paths: Vec<_> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    paths.join(", ")
}

/// An error and its causes in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}
