//! Errors of sandboxes: all that can fail when one is made, used, copied or kept, and what a program can do about it.

#![forbid(unsafe_code)]

mod failure;
mod kind;
mod plan;
mod random;
mod root_disk;
mod volume;

use std::error::Error as StdError;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use micabox_ground::chain;
use micabox_owner::Lost;
use micabox_wire::StartFailed;

use micabox_spec::{CommandError, MountError};

pub use kind::ErrorKind;
pub use plan::{MOST_LAYERS, PlanError};
pub use random::random;
pub use root_disk::DiskProblem;
pub use volume::{VolumeUser, VolumeWish};

/// The cause of an [`Error`] that has causes of several types.
pub type Source = Box<dyn StdError + Send + Sync>;

const NAME_RULE: &str =
    "2 to 63 letters, digits, `_`, `.` and `-`, beginning with a letter or digit";

/// An error of a sandbox. Its message includes those of its [sources](StdError::source).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] micabox_image::store::Error),
    /// A file of the image is not as the store describes it.
    #[error("the image's file {} can't be used: {}", path.display(), chain(&**source))]
    ImageFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with the file.
        source: Source,
    },
    /// The machine or container could not be started, saved or paused.
    #[error(transparent)]
    Machine(#[from] micabox_vmm::Error),
    /// The network could not be started.
    #[error(transparent)]
    Network(#[from] micabox_net::Error),
    /// The image can't be given to a machine with the requested transport and root.
    #[error("{0}")]
    Plan(#[from] PlanError),
    /// The guest's kernel or agent is not installed.
    #[error("guest file {name} not found in {}", list(searched))]
    NoGuest {
        /// `vmlinux` or `initrd.cpio`.
        name: &'static str,
        /// The directories that were searched.
        searched: Vec<PathBuf>,
    },
    /// This user may not see whether the guest's kernel or agent is there.
    #[error("can't look for the guest's {}: permission denied", path.display())]
    GuestDenied {
        /// The file.
        path: PathBuf,
    },
    /// Another process keeps such machines ready.
    #[error("a pool for this configuration is already running")]
    PoolExists,
    /// Such sandboxes don't start from a template that can be saved, or need more than a ready
    /// machine.
    #[error("no machine can be kept ready for such a sandbox")]
    NoPool,
    /// The sandbox's owner could not start a virtual machine.
    #[error("{0}")]
    MachineNotStarted(String),
    /// The backend can't do what was requested of it.
    #[error("{0}")]
    NotPossible(String),
    /// No control group of the host can limit the machine's process as required.
    #[error("{0}")]
    NoLimits(String),
    /// The sandbox's owner could not start something else that a machine needs.
    #[error("{0}")]
    NotStarted(String),
    /// Something else uses what the sandbox needs, such as a port of the host.
    #[error("{0}")]
    InUse(String),
    /// The guest did not boot or restore.
    #[error("the sandbox did not start: {0}")]
    Boot(#[source] Lost),
    /// The guest's kernel could not mount a filesystem of the image.
    #[error("the sandbox did not start: {0}")]
    ImageNotMounted(#[source] Lost),
    /// The start was cancelled.
    #[error("start cancelled")]
    Cancelled,
    /// The sandbox ended while a client used it.
    #[error("the sandbox ended: {0}")]
    Lost(#[from] Lost),
    /// The sandbox's owner was killed.
    #[error("the process that owned the sandbox is gone: it was killed")]
    OwnerGone,
    /// The command to run is not valid.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The command could not be started in the sandbox.
    #[error("{}", .0.message)]
    Start(StartFailed),
    /// Another sandbox has the name.
    #[error("cannot call a sandbox `{name}`: the name is in use by sandbox {id}")]
    NameTaken {
        /// The name.
        name: String,
        /// The ID of the sandbox with the name.
        id: String,
    },
    /// Not a valid name of a sandbox.
    #[error("invalid sandbox name `{0}`: {NAME_RULE}")]
    BadName(String),
    /// Nothing can be mounted there.
    #[error(transparent)]
    BadMount(#[from] MountError),
    /// Not valid labels of a sandbox.
    #[error("invalid labels: {0}")]
    BadLabels(&'static str),
    /// A folder or file of the host can't be shared with a sandbox.
    #[error("cannot share `{}`", path.display())]
    Share {
        /// The path on the host.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The server of a folder of the host does not run.
    #[error(transparent)]
    ShareServer(#[from] micabox_share::Error),
    /// Not a valid name of a snapshot.
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
    /// The sandbox does not run, and the operation needs a running one.
    #[error("sandbox {0} does not run")]
    DoesNotRun(String),
    /// The sandbox is not ready yet, and the operation needs one that is.
    #[error("sandbox {0} still starts")]
    Starts(String),
    /// No command that runs has this process ID.
    #[error("{0}")]
    NoSuchCommand(String),
    /// The sandbox is paused.
    #[error("the sandbox is paused")]
    Paused,
    /// The guest's list of processes is malformed.
    #[error("the guest's list of processes is malformed")]
    BadList,
    /// An operation on a running sandbox's file failed. The kind of `source` says why:
    /// [`io::ErrorKind::NotFound`], [`io::ErrorKind::PermissionDenied`],
    /// [`io::ErrorKind::IsADirectory`], [`io::ErrorKind::StorageFull`] and so on.
    #[error("{what} `{}` in the sandbox: {source}", path.display())]
    File {
        /// What was being done.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed, by the guest's account.
        source: io::Error,
    },
    /// The guest's reply to an operation on files is malformed.
    #[error("the guest's reply about a file is malformed")]
    BadReply,
    /// The sandbox has no disk: its changes are in memory and lost when it ends.
    #[error("sandbox {0} has no disk: its changes are in memory only")]
    NotKept(String),
    /// The sandbox shares this machine's kernel, so it has no disk: its changes are in memory and lost when it
    /// ends.
    #[error(
        "sandbox {0} shares this machine's kernel and has no disk: its changes are in memory only"
    )]
    NoDiskOnHost(String),
    /// An operation on a sandbox's disk failed.
    #[error("{what} the disk {}: {}", path.display(), chain(&**source))]
    Disk {
        /// What was being done.
        what: &'static str,
        /// The disk's file.
        path: PathBuf,
        /// Why it failed.
        source: Source,
    },
    /// The sandbox's changes are in a folder of the host, and the operation is one on a disk.
    #[error("the changes of sandbox {name} are in the folder {}, not on a disk", path.display())]
    InFolder {
        /// Its name.
        name: String,
        /// The folder.
        path: PathBuf,
    },
    /// A folder of the host can't hold a sandbox's changes.
    #[error("the folder `{}` for a sandbox's changes: {source}", path.display())]
    UpperFolder {
        /// Its path.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Another sandbox has its changes in the folder, and runs; or its changes are being read.
    #[error("the folder `{}` for a sandbox's changes is in use", _0.display())]
    UpperInUse(PathBuf),
    /// Changes before the start can't be made in a folder.
    #[error("changes before the start can't be made in the folder `{}`", _0.display())]
    NotInFolder(PathBuf),
    /// The sandbox writes to its root disk itself, so it has no changes apart from it.
    #[error("sandbox {name} writes its changes directly to {}", path.display())]
    InPlace {
        /// Its name.
        name: String,
        /// The root disk.
        path: PathBuf,
    },
    /// The file can't be a root disk.
    #[error("the root disk {}: {problem}", path.display())]
    RootDisk {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        problem: DiskProblem,
    },
    /// An imported snapshot has changes to a root disk, and the user must name that disk's file.
    #[error("snapshot {0} was imported, and its root disk is not part of it")]
    RootDiskUnnamed(String),
    /// The operation needs an image, and the sandbox has a root disk.
    #[error("sandbox {0} is not made from an image")]
    NoImage(String),
    /// Only an image's one merged filesystem can be trimmed.
    #[error("{0} can't be trimmed")]
    NotTrimmed(&'static str),
    /// The guest can only check an image that is one disk.
    #[error("the guest can't check what it reads of {0}")]
    NotChecked(&'static str),
    /// The operation is not possible on a root disk that is written to.
    #[error("{0} needs a read-only root disk")]
    NotInPlace(&'static str),
    /// Changes in place were requested without a root disk that is written to.
    #[error("changes in place need a root disk that is opened for writing")]
    NoPlace,
    /// A record names an image by something that is not a digest.
    #[error("the record names an image by `{0}`, which is not a digest")]
    BadRecord(String),
    /// No snapshot has this name.
    #[error("no such snapshot: `{0}`")]
    NoSuchSnapshot(String),
    /// A snapshot has this name already.
    #[error("cannot create snapshot `{0}`: there is one already")]
    SnapshotExists(String),
    /// Not a valid host name.
    #[error(
        "invalid host name {0:?}: up to 64 letters, digits, `-`, `_` and `.`, no part beginning or \
         ending with `-`"
    )]
    BadHostname(String),
    /// Not a valid name of a volume.
    #[error("invalid volume name `{0}`: {NAME_RULE}")]
    BadVolumeName(String),
    /// No volume has this name.
    #[error("no such volume: `{0}`")]
    NoSuchVolume(String),
    /// A volume has this name already.
    #[error("cannot create volume `{0}`: there is one already")]
    VolumeExists(String),
    /// A volume can't have this size.
    #[error("volume {name} can't have that size: {problem}")]
    VolumeSize {
        /// Its name.
        name: String,
        /// Why not.
        problem: String,
    },
    /// A sandbox or another process uses the volume: it has one writer or many readers.
    #[error("volume {name} is in use: {user}")]
    VolumeInUse {
        /// Its name.
        name: String,
        /// What uses it.
        user: VolumeUser,
        /// What it can't be used for now.
        wish: VolumeWish,
    },
    /// A snapshot with memory can't be exported as a file, which says nothing of what its machine needs.
    #[error("snapshot {0} holds a machine's memory, which a file can't have")]
    HasMemory(String),
    /// A snapshot has something that is on this machine only, so that it can't go to a registry.
    #[error("snapshot {name} can't be pushed: {problem}")]
    SnapshotStays {
        /// Its name.
        name: String,
        /// What it has.
        problem: String,
    },
    /// What a registry has of a snapshot contradicts itself, or is of another version.
    #[error("cannot use the snapshot {name}: {problem}")]
    SnapshotRefused {
        /// Its name in the registry.
        name: String,
        /// Which part of it, and what is wrong with it.
        problem: String,
    },
    /// A machine that was saved elsewhere can't continue on this machine.
    #[error("cannot use the snapshot {name} on this machine: {source}")]
    SnapshotElsewhere {
        /// Its name in the registry.
        name: String,
        /// What differs.
        source: Box<micabox_vmm::Difference>,
    },
    /// Only a running sandbox has memory to save.
    #[error("sandbox {0} does not run, so it has no memory to save")]
    NotRunning(String),
    /// A sandbox could not be saved with its memory.
    #[error("sandbox {name} can't be saved: {}", chain(&**source))]
    NotSaved {
        /// Its name.
        name: String,
        /// Why.
        source: Source,
    },
    /// The memory file of a snapshot has changed since it was written.
    #[error("snapshot {name} is damaged ({} was altered); make it again", path.display())]
    DamagedSnapshot {
        /// Its name.
        name: String,
        /// The file.
        path: PathBuf,
    },
    /// No command runs in the snapshot that could be reattached.
    #[error("no command runs in snapshot {0}, so name one to run")]
    NothingRuns(String),
    /// The requested settings differ from the snapshot's.
    #[error("snapshot {name} {problem}")]
    SnapshotDiffers {
        /// Its name.
        name: String,
        /// How it differs.
        problem: &'static str,
    },
    /// No image could be made of a sandbox's changes.
    #[error(transparent)]
    Commit(#[from] Box<micabox_image::AppendLayerError>),
    /// A patch, or reading or writing an archive, failed.
    #[error("{what}: {}", chain(&**source))]
    Patch {
        /// What was being done.
        what: String,
        /// Why it failed.
        source: Source,
    },
    /// The sandbox did not end in time.
    #[error("sandbox {name} did not end within {after:?}")]
    Stuck {
        /// Its name.
        name: String,
        /// How long the caller waited.
        after: Duration,
    },
    /// A file of the sandbox's state could not be read or written.
    #[error("{what} {}: {source}", path.display())]
    State {
        /// What was being done.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The guest did not answer in time.
    #[error("{0}")]
    Silent(String),
    /// The command was ended because its time was over.
    #[error("the command was stopped after its timeout of {0:?}")]
    TimedOut(Duration),
    /// No port of the host leads to the sandbox's port.
    #[error("port {port} of sandbox {name} is not published")]
    NotPublished {
        /// The sandbox's name.
        name: String,
        /// The TCP port inside.
        port: u16,
    },
    /// No control group of the host limits the machine's process.
    #[error("no control group limits the sandbox's processor time: {0}")]
    Unlimited(String),
    /// A sandbox can't have what was requested of a change.
    #[error("sandbox {name} can't be changed: {problem}")]
    BadChange {
        /// Its name.
        name: String,
        /// Why not.
        problem: String,
    },
    /// A command's output can't be written to where it was to go.
    #[error("{0}")]
    Unwritten(String),
    /// The sandbox's owner refused a request.
    #[error("the sandbox's owner refuses: {message}")]
    Refused {
        /// What that is to a program.
        kind: ErrorKind,
        /// Why.
        message: String,
    },
    /// Nothing that can be mounted has this name.
    #[error("no such file, sandbox, snapshot or image: `{0}`")]
    NoSuchTree(String),
    /// A tree can't be mounted or unmounted.
    #[error(transparent)]
    Mount(#[from] micabox_mount::Error),
    /// Another tree is mounted on the directory.
    #[error("a tree is mounted on {} already", .0.display())]
    MountedAlready(PathBuf),
    /// The process that has an image, or a snapshot's memory, for all of a user's sandboxes does not answer.
    #[error("the process that serves {0} neither ends nor answers")]
    HolderStuck(String),
    /// Only a part of an image is here.
    #[error("of image {image} only a part is here, and the rest can't be fetched: {problem}")]
    Incomplete {
        /// What it is called.
        image: String,
        /// Why not.
        problem: String,
    },
    /// Only a part of a snapshot's memory is here.
    #[error(
        "of the memory of snapshot {name} only a part is here, and the rest can't be fetched: {problem}"
    )]
    SnapshotIncomplete {
        /// Its name.
        name: String,
        /// Why not.
        problem: String,
    },
    /// The server of a mounted tree ended before the tree was there.
    #[error("mounting `{tree}`: {problem}")]
    NotServed {
        /// What was to be mounted.
        tree: String,
        /// Why not.
        problem: String,
    },
    /// The kernel is asked to serve what it can't.
    #[error("the kernel can't serve `{tree}` itself: {problem}")]
    NotByKernel {
        /// What was to be mounted.
        tree: String,
        /// Why not.
        problem: String,
    },
    /// A mounted tree's changes can't be kept in a folder.
    #[error("changes can't be kept in `{}`: {problem}", upper.display())]
    MountedUpper {
        /// The folder.
        upper: PathBuf,
        /// Why not.
        problem: String,
    },
    /// The sandbox's changes are in a folder.
    #[error("its changes are in the folder {}, over its image", .0.display())]
    MountedFolder(PathBuf),
    /// No tree of this store is mounted on a directory.
    #[error("no tree is mounted on {} by mica", .0.display())]
    NotMounted(PathBuf),
    /// A filesystem in memory was unmounted, and what was in it is not saved.
    #[error("{} is unmounted, and what was in it is lost in part or whole: {problem}", place.display())]
    NotKeptAtEnd {
        /// The directory.
        place: PathBuf,
        /// Why it is not saved.
        problem: String,
    },
    /// A mounted tree can't be changed.
    #[error("the tree on {} is mounted read-only, so nothing in it has changed", .0.display())]
    MountedReadOnly(PathBuf),
    /// The changes in a mounted tree can't be listed or made into a layer.
    #[error("the changes on {}: {problem}", place.display())]
    MountedChanges {
        /// The directory.
        place: PathBuf,
        /// Why not.
        problem: String,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl Error {
    /// Makes an error of a file of the state: what was being done, and with which file.
    pub fn state(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::State { what, path, source }
    }

    /// Makes the error of a system call, by what was being done.
    pub fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, source }
    }

    /// Returns the last lines of the guest's console if they may explain the error.
    pub fn console(&self) -> Option<&str> {
        match self {
            Self::Boot(lost) | Self::ImageNotMounted(lost) | Self::Lost(lost) => {
                Some(lost.console.trim_end())
            }
            _ => None,
        }
        .filter(|console| !console.is_empty())
    }
}

/// An error in a stream; for one of a file the kind is the system's.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::File { source, .. } => source.kind(),
            _ => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

fn list(paths: &[PathBuf]) -> String {
    let paths: Vec<_> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    paths.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared<T: StdError + Send + Sync + 'static>() {}

    #[test]
    fn a_cause_is_kept_and_told_once() {
        shared::<Error>();
        let refused = || io::Error::from(io::ErrorKind::PermissionDenied);
        let error = Error::Disk {
            what: "copying",
            path: "/disk".into(),
            source: refused().into(),
        };
        let words = "copying the disk /disk: permission denied";
        assert_eq!(
            (error.to_string().as_str(), error.kind()),
            (words, ErrorKind::Host)
        );
        assert_eq!(chain(&error), words);
        let cause = error
            .source()
            .and_then(|cause| cause.downcast_ref::<io::Error>());
        assert_eq!(cause.unwrap().kind(), io::ErrorKind::PermissionDenied);

        // One that keeps its own cause out of its message.
        let hidden = micabox_vmm::Error::Spawn {
            path: "/qemu".into(),
            source: refused(),
        };
        let error = Error::NotSaved {
            name: "it".into(),
            source: hidden.into(),
        };
        let words = "sandbox it can't be saved: starting /qemu: permission denied";
        assert_eq!(
            (error.to_string().as_str(), chain(&error).as_str()),
            (words, words)
        );
    }
}
