//! Kinds of errors, for programs.

use std::io;

use micabox_image::AppendLayerError;
use micabox_image::store::Error as Store;
use micabox_net::Error as Network;
use micabox_owner::{LostReason, protocol};
use micabox_vmm::Error as Machine;
use micabox_wire::StartFailure;
use serde::{Deserialize, Serialize};

use super::{Error, Source};
use crate::DiskProblem;

/// The kind of an [`Error`]: what a program can do about it. The message is for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// Nothing has this name: no sandbox, snapshot or image, or no program or file in the sandbox.
    NotFound,
    /// Something else has this name.
    NameInUse,
    /// The sandbox runs, or another one uses the file, the port or the image.
    InUse,
    /// The sandbox does not run, or is paused.
    NotRunning,
    /// The request is wrong, or its parts do not go together. It fails wherever it is made.
    Invalid,
    /// The request is not possible for this sandbox, snapshot or root disk, or on this backend.
    Unsupported,
    /// The guest failed: it did not boot, broke the protocol, or lost something.
    Guest,
    /// The sandbox ended, or its owner did, while this process used it.
    Disconnected,
    /// This process cancelled the operation.
    Cancelled,
    /// Something did not happen in time.
    TimedOut,
    /// A file of the store, a snapshot or a disk is damaged, or was changed by something else.
    Damaged,
    /// The host's disk is full, or a quota is used up; or a filesystem in the sandbox is full.
    Full,
    /// A registry can't be reached, or does not serve at the moment.
    Unreachable,
    /// The host failed, or lacks something: a system call, a file, QEMU, the guest's kernel.
    Host,
}

/// What a failure of an owner is to a program. For a lost sandbox and a command that did not start, [`Error::kind`] has
/// it by the reason.
impl From<protocol::Kind> for ErrorKind {
    fn from(word: protocol::Kind) -> Self {
        use protocol::Kind;
        match word {
            Kind::Invalid | Kind::Start | Kind::TooLong => Self::Invalid,
            Kind::InUse => Self::InUse,
            Kind::NotFound => Self::NotFound,
            Kind::Ending | Kind::Lost => Self::Disconnected,
            Kind::Paused => Self::NotRunning,
            Kind::Silent => Self::TimedOut,
            Kind::NotFrozen | Kind::Unlimited | Kind::Unsupported => Self::Unsupported,
            Kind::Machine | Kind::Unknown | Kind::Unwritten => Self::Host,
        }
    }
}

impl Error {
    /// Returns the kind of the error.
    pub fn kind(&self) -> ErrorKind {
        use ErrorKind as Kind;
        match self {
            Self::Store(error) => of_store(error),
            Self::Machine(error) => of_machine(error),
            Self::Network(Network::Publish { source, .. }) => of_publish(source),
            Self::System { source, .. } if is_malformed(source) => Kind::Damaged,
            Self::Network(Network::System { source, .. })
            | Self::State { source, .. }
            | Self::System { source, .. } => of_io(source),
            Self::Commit(error) => of_commit(error),
            Self::Disk {
                what: "making",
                source,
                ..
            } => of_new_file(source),
            Self::ImageFile { source, .. } | Self::Disk { source, .. } => of_file(source),
            Self::UpperFolder { source, .. } => of_upper_folder(source),
            Self::Share { source, .. } => of_share(source),
            Self::Patch { source, .. } => of_patch(source),
            Self::RootDisk { problem, .. } => of_root_disk(problem),
            Self::Boot(lost) => of_boot(&lost.reason),
            Self::BadList | Self::BadReply => Kind::Guest,
            Self::File { source, .. } => of_guest_file(source),
            Self::Lost(lost) => of_lost(&lost.reason),
            Self::OwnerGone => Kind::Disconnected,
            Self::Refused { kind, .. } => *kind,
            Self::Start(failed) => of_start(failed.reason),
            Self::NoSuchCommand(_)
            | Self::NoSuchSandbox(_)
            | Self::NoSuchSnapshot(_)
            | Self::NoSuchTree(_)
            | Self::NoSuchVolume(_)
            | Self::NotMounted(_)
            | Self::NotPublished { .. } => Kind::NotFound,
            Self::NameTaken { .. } | Self::SnapshotExists(_) | Self::VolumeExists(_) => {
                Kind::NameInUse
            }
            Self::InUse(_)
            | Self::MountedAlready(_)
            | Self::PoolExists
            | Self::Running(_)
            | Self::UpperInUse(_)
            | Self::VolumeInUse { .. } => Kind::InUse,
            Self::DoesNotRun(_) | Self::Starts(_) | Self::NotRunning(_) | Self::Paused => {
                Kind::NotRunning
            }
            Self::Incomplete { .. } | Self::SnapshotIncomplete { .. } => Kind::Unreachable,
            Self::Cancelled => Kind::Cancelled,
            Self::HolderStuck(_) | Self::Silent(_) | Self::Stuck { .. } | Self::TimedOut(_) => {
                Kind::TimedOut
            }
            Self::BadRecord(_)
            | Self::DamagedSnapshot { .. }
            | Self::ImageNotMounted(_)
            | Self::MountedChanges { .. }
            | Self::NotKeptAtEnd { .. }
            | Self::NotServed { .. }
            | Self::SnapshotRefused { .. } => Kind::Damaged,
            Self::Command(_)
            | Self::Ambiguous(_)
            | Self::BadChange { .. }
            | Self::BadHostname(_)
            | Self::BadLabels(_)
            | Self::BadMount(_)
            | Self::BadName(_)
            | Self::BadSnapshotName(_)
            | Self::BadVolumeName(_)
            | Self::VolumeSize { .. }
            | Self::NoPlace
            | Self::NotInPlace(_)
            | Self::NotTrimmed(_)
            | Self::NotChecked(_)
            | Self::NothingRuns(_)
            | Self::RootDiskUnnamed(_)
            | Self::SnapshotDiffers { .. } => Kind::Invalid,
            Self::HasMemory(_)
            | Self::SnapshotStays { .. }
            | Self::SnapshotElsewhere { .. }
            | Self::InFolder { .. }
            | Self::MountedFolder(_)
            | Self::MountedReadOnly(_)
            | Self::MountedUpper { .. }
            | Self::NotByKernel { .. }
            | Self::NotInFolder(_)
            | Self::InPlace { .. }
            | Self::NoDiskOnHost(_)
            | Self::NoImage(_)
            | Self::NoLimits(_)
            | Self::NotKept(_)
            | Self::NotPossible(_)
            | Self::NoPool
            | Self::NotSaved { .. }
            | Self::Plan(_)
            | Self::Unlimited(_) => Kind::Unsupported,
            Self::MachineNotStarted(_)
            | Self::Mount(_)
            | Self::NoGuest { .. }
            | Self::GuestDenied { .. }
            | Self::NotStarted(_)
            | Self::ShareServer(_)
            | Self::Unwritten(_) => Kind::Host,
        }
    }
}

/// Whether what was read is not what it claims to be, or ends too early.
fn is_malformed(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
    )
}

fn of_io(error: &io::Error) -> ErrorKind {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::Full,
        _ => ErrorKind::Host,
    }
}

fn of_start(reason: StartFailure) -> ErrorKind {
    match reason {
        StartFailure::NotFound => ErrorKind::NotFound,
        StartFailure::Other => ErrorKind::Guest,
        _ => ErrorKind::Invalid,
    }
}

fn of_boot(reason: &LostReason) -> ErrorKind {
    match reason {
        LostReason::Silent => ErrorKind::TimedOut,
        LostReason::Stopped => ErrorKind::Disconnected,
        _ => ErrorKind::Guest,
    }
}

/// What a program loses beside the sandbox has a kind of its own.
fn of_lost(reason: &LostReason) -> ErrorKind {
    match reason {
        LostReason::Silent => ErrorKind::TimedOut,
        LostReason::BootFailed(_) | LostReason::Protocol(_) | LostReason::Unflushed(_) => {
            ErrorKind::Guest
        }
        LostReason::Machine(_) | LostReason::Closed | LostReason::Stopped => {
            ErrorKind::Disconnected
        }
    }
}

fn of_commit(error: &AppendLayerError) -> ErrorKind {
    match error {
        AppendLayerError::Store(error) => of_store(error),
        AppendLayerError::Read(error) => of_io(error),
        _ => ErrorKind::Damaged,
    }
}

fn of_share(error: &io::Error) -> ErrorKind {
    match error.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        _ => of_io(error),
    }
}

fn of_upper_folder(error: &io::Error) -> ErrorKind {
    use io::ErrorKind::{InvalidData, InvalidInput, NotADirectory, NotFound, Unsupported};
    match error.kind() {
        NotFound => ErrorKind::NotFound,
        InvalidInput | InvalidData | NotADirectory => ErrorKind::Invalid,
        Unsupported => ErrorKind::Unsupported,
        _ => of_io(error),
    }
}

fn of_patch(source: &Source) -> ErrorKind {
    match source.downcast_ref::<io::Error>() {
        Some(error) if error.kind() == io::ErrorKind::NotFound => ErrorKind::NotFound,
        Some(error) => of_io(error),
        None => ErrorKind::Invalid,
    }
}

fn of_guest_file(error: &io::Error) -> ErrorKind {
    match error.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::AlreadyExists => ErrorKind::NameInUse,
        // The agent's process was killed.
        io::ErrorKind::Interrupted => ErrorKind::Guest,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::Full,
        _ => ErrorKind::Invalid,
    }
}

/// A file that can't be opened or written is the host's problem; otherwise its contents are.
fn of_file(source: &Source) -> ErrorKind {
    source.downcast_ref().map_or(ErrorKind::Damaged, of_io)
}

/// A new file has no contents that could be damaged: its size is the problem.
fn of_new_file(source: &Source) -> ErrorKind {
    use io::ErrorKind::{FileTooLarge, InvalidInput};
    match source.downcast_ref::<io::Error>() {
        Some(error) if !matches!(error.kind(), FileTooLarge | InvalidInput) => of_io(error),
        _ => ErrorKind::Invalid,
    }
}

fn of_publish(error: &io::Error) -> ErrorKind {
    match error.kind() {
        io::ErrorKind::AddrInUse => ErrorKind::InUse,
        _ => of_io(error),
    }
}

fn of_store(error: &Store) -> ErrorKind {
    match error {
        Store::NoImage { .. } | Store::NoLayer { .. } => ErrorKind::NotFound,
        Store::Ambiguous { .. } => ErrorKind::Invalid,
        Store::NoArchive { .. } => ErrorKind::Unsupported,
        Store::InUse { .. } => ErrorKind::InUse,
        Store::Full { .. } => ErrorKind::Full,
        Store::Io { .. } | Store::NoHome => ErrorKind::Host,
        _ => ErrorKind::Damaged,
    }
}

fn of_machine(error: &Machine) -> ErrorKind {
    match error {
        Machine::Config(_) | Machine::Size(_) => ErrorKind::Invalid,
        Machine::NoLimits { .. } | Machine::NoSnapshots { .. } | Machine::Unsupported { .. } => {
            ErrorKind::Unsupported
        }
        Machine::System { source, .. } | Machine::Spawn { source, .. } => of_io(source),
        _ => ErrorKind::Host,
    }
}

fn of_root_disk(problem: &DiskProblem) -> ErrorKind {
    match problem {
        DiskProblem::Busy => ErrorKind::InUse,
        DiskProblem::Changed | DiskProblem::Unusable(_) => ErrorKind::Damaged,
        DiskProblem::Another => ErrorKind::Invalid,
        DiskProblem::Missing(_) => ErrorKind::NotFound,
        _ => ErrorKind::Unsupported,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_says_what_can_be_done() {
        let written = |kind: io::ErrorKind| Error::State {
            what: "writing",
            path: "/state.json".into(),
            source: kind.into(),
        };
        let published = |kind: io::ErrorKind| {
            Error::from(Network::Publish {
                port: "8080:80".parse().unwrap(),
                source: kind.into(),
            })
        };
        let image_file = |source: Source| Error::ImageFile {
            path: "/layer.erofs".into(),
            source,
        };
        let refused = || io::Error::from(io::ErrorKind::PermissionDenied);
        let name = || "it".to_owned();
        for (error, kind) in [
            (written(io::ErrorKind::StorageFull), ErrorKind::Full),
            (written(io::ErrorKind::PermissionDenied), ErrorKind::Host),
            (published(io::ErrorKind::AddrInUse), ErrorKind::InUse),
            (image_file(refused().into()), ErrorKind::Host),
            (image_file("another image".into()), ErrorKind::Damaged),
            (Store::NoImage { name: name() }.into(), ErrorKind::NotFound),
            (Machine::Config("?".into()).into(), ErrorKind::Invalid),
            (Error::NotKept(name()), ErrorKind::Unsupported),
            (Error::SnapshotExists(name()), ErrorKind::NameInUse),
            (Error::OwnerGone, ErrorKind::Disconnected),
        ] {
            assert_eq!(error.kind(), kind, "{error}");
        }
    }
}
