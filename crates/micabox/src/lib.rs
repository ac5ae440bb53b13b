#![doc = include_str!("../README.md")]
//!
//! # Sandboxes
//!
//! There is no daemon. A sandbox has an owner, a process of its own. The owner ends with the
//! process that made the sandbox, however that process ends, unless the sandbox is
//! [detached](Sandbox::detach). A sandbox with a disk ([`Upper::Disk`]) can be started again by any
//! process, with everything that was written to the disk. The state on disk ([`Sandboxes`]) is
//! enough for other processes to list sandboxes, to stop them, and to clean up after an owner that
//! was killed.
//!
//! Everything that a program needs is exported here, so it needs no other crate of Micabox. What names
//! a type that is not exported is for those other crates, which change without notice. [`image`] has the rest of what there is to do with images, such as loading archives.
//! Pulling them needs the feature `registry`, a default one, and with it an asynchronous runtime.

#![forbid(unsafe_code)]

mod archives;
pub mod builder;
mod expiry;
mod files;
mod kept;
mod packed;
mod pool;
mod process;
mod processes;
mod resources;
mod running;
mod sandbox;
mod sandboxes;
mod snapshots;
mod stop;
mod timings;
mod volumes;
mod worker;

pub use builder::{Builder, Restore};
pub use expiry::Expires;
pub use files::{Entries, FileReader, FileWriter, Files, Watch};
pub use process::{Handle, Output, Process, Stdin};
pub use resources::Resources;
pub use sandbox::Sandbox;
pub use sandboxes::{SandboxRef, Sandboxes};
pub use snapshots::EphemeralSnapshot;
pub use stop::{DEFAULT_GRACE, Stopped};
pub use timings::Timings;
pub use worker::worker_kinds;
pub use worker::{fork_processes, run_if_worker, run_if_worker_with};

pub use micabox_disks::{
    Arriving, Base, Beside, Change, ChangeKind, Departing, FrozenDisk, Kept, KeptChoice,
    KeptReport, Landing, Landings, MIN_VOLUME_SIZE, NewSnapshot, Patch, Place, Snapshot, Unread,
    Volume,
};
pub use micabox_error::{DiskProblem, Error, ErrorKind, PlanError, Source, VolumeUser, VolumeWish};
pub use micabox_file::{FileKind, Timestamp};
pub use micabox_holders::own_process::wait_for_processes;
pub use micabox_image as image;
pub use micabox_image::store::{Error as StoreError, Image};
pub use micabox_image::{
    AppendLayerError, Config as ImageConfig, Digest, ImageEdit, Limits, Reference, Store, Trim,
    TrimError,
};
pub use micabox_net::{Error as NetworkError, opens_what_is_closed};
pub use micabox_operations::{
    Attributes, DirectoryEntry, ExecOptions, FileEvent, Finished, GuestProcess, LeftOut,
    NotedCommand, Stdio, WriteOptions,
};
pub use micabox_overlay::view::PathKind;
pub use micabox_owner::protocol::Stats;
pub use micabox_owner::{Lost, LostReason};
pub use micabox_parsers::{Format, Notes, OpenDisk, RootDisk};
pub use micabox_spec::network::{
    Network, Protocol, Publish, PublishError, Rate as NetRate, Rule, RuleError, Rules as NetRules,
    UserNetwork,
};
pub use micabox_spec::words;
pub use micabox_spec::{
    BackendChoice, BindSource, Command, CommandError, DEFAULT_DISK_SIZE, DEFAULT_MEMORY_MIB,
    DiskRate, EnvChange, Expiry, ImageName, ImageSource, Machine as MachineSpec, Mount, MountError,
    MountSource, Overrides, Root, Setup, SizeError, Spec, Transport, Upper, VolumeSource,
};
pub use micabox_start::{
    Cancel, Ended, Event, GuestFiles, OwnerLog, Pool, PoolRecord, anonymous_volume,
};
pub use micabox_state::{
    BaseName, History, LogReader, LogRecord, LogStream, ProcessId, Record, SandboxEvent,
    SavedMachine, Status,
};
#[cfg(feature = "registry")]
pub use micabox_transfer as transfer;
#[cfg(feature = "registry")]
pub use micabox_transfer::{Cancellation, PullError, PullOptions, PullPolicy, pull, pull_blocking};
pub use micabox_trees::{
    MemoryRecord, MountOptions, MountRecord, MountedTree, Mounts, ServedBy, Tree, TreeKind,
    Unmounted,
};
pub use micabox_vmm::{Error as MachineError, Exit, control_groups};
pub use micabox_wire::files::{Existing, FileChange, FileStat};
pub use micabox_wire::{
    BootFailed, Confinement, DOCKERS_CAPABILITIES, ExitStatus, Init, StartFailed, StartFailure,
    Tmpfs, TtySize, Ulimit,
};
