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
//! Everything that occurs in a signature is exported here, so a program needs no other crate of
//! Micabox. [`image`] has the rest of what there is to do with images, such as loading archives.
//! Pulling them needs the feature `registry`, a default one, and with it an asynchronous runtime.

#![forbid(unsafe_code)]

mod archives;
mod base;
pub mod builder;
mod cancel;
mod commit;
mod error;
mod expiry;
mod files;
mod flush;
mod freeze;
#[doc(hidden)]
pub mod fuzzing;
mod guest_files;
mod held;
mod history;
mod holders;
mod image_files;
#[doc(hidden)]
pub mod jailed;
mod layers;
mod log;
mod lowers;
mod mount;
mod mounted;
mod name;
mod network;
mod own_process;
mod owner;
mod patch;
mod plan;
mod pool;
mod process;
mod processes;
mod registrar;
mod resources;
mod running;
mod sandbox;
mod share;
mod snapshot;
mod stamp;
mod state;
mod stop;
mod template;
mod timings;
mod upper;
mod volume;
mod worker;

pub use base::{Base, BaseName, DiskProblem, Format, OpenDisk, RootDisk};
pub use builder::{Builder, OwnerLog, Restore};
pub use cancel::Cancel;
pub use error::{Error, ErrorKind, Source};
pub use expiry::Expires;
#[doc(hidden)]
pub use files::FileTask;
pub use files::{
    Attributes, DirectoryEntry, Entries, FileEvent, FileReader, FileWriter, Files, LeftOut, Watch,
    WriteOptions,
};
pub use guest_files::GuestFiles;
pub use history::{History, SandboxEvent};
pub use jailed::{Notes, Unread};
pub use log::{LogReader, LogRecord, LogStream};
pub use mount::anonymous_volume;
pub use mounted::{
    MemoryRecord, MountOptions, MountRecord, MountedTree, Mounts, ServedBy, Tree, TreeKind,
    Unmounted,
};
pub use own_process::{fork_processes, wait_for_processes};
pub use patch::Patch;
pub use plan::PlanError;
pub use pool::{Pool, PoolRecord};
pub use process::{ExecOptions, Finished, Handle, Output, Process, Stdin, Stdio};
pub use processes::GuestProcess;
pub use resources::Resources;
pub use running::NotedCommand;
pub use sandbox::{Ended, Event, Sandbox};
pub use snapshot::{EphemeralSnapshot, NewSnapshot, SavedMachine, Snapshot};
pub use state::{ProcessId, Record, SandboxRef, Sandboxes, Status};
pub use stop::{DEFAULT_GRACE, Stopped};
pub use timings::Timings;
pub use upper::{Change, ChangeKind, FrozenDisk};
pub use volume::{MIN_VOLUME_SIZE, Volume, VolumeUser, VolumeWish};
#[doc(hidden)]
pub use worker::worker_kinds;
pub use worker::{run_if_worker, run_if_worker_with};

pub use micabox_file::{FileKind, Timestamp};
pub use micabox_image as image;
pub use micabox_image::store::{Error as StoreError, Image};
pub use micabox_image::{
    AppendLayerError, Digest, ImageEdit, Limits, Reference, Store, Trim, TrimError,
};
pub use micabox_net::{Error as NetworkError, opens_what_is_closed};
pub use micabox_overlay::view::PathKind;
pub use micabox_owner::protocol::Stats;
pub use micabox_owner::{Lost, LostReason};
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
#[cfg(feature = "registry")]
pub use micabox_transfer as transfer;
#[cfg(feature = "registry")]
pub use micabox_transfer::{Cancellation, PullError, PullOptions, PullPolicy, pull, pull_blocking};
pub use micabox_vmm::{Error as MachineError, Exit, control_groups};
pub use micabox_wire::files::{Existing, FileChange, FileStat};
pub use micabox_wire::{
    BootFailed, Confinement, DOCKERS_CAPABILITIES, ExitStatus, Init, StartFailed, StartFailure,
    Tmpfs, TtySize, Ulimit,
};
pub use oci_spec::image::Config as ImageConfig;
