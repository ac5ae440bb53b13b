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

mod base;
pub mod builder;
mod cancel;
mod command;
mod commit;
mod error;
mod files;
mod freeze;
#[doc(hidden)]
pub mod fuzzing;
mod guest_files;
mod image_files;
#[doc(hidden)]
pub mod jailed;
mod log;
mod name;
mod network;
mod owner;
mod patch;
mod plan;
mod process;
mod registrar;
mod sandbox;
mod signal;
mod snapshot;
mod spec;
mod stamp;
mod state;
mod stop;
mod template;
mod timings;
mod upper;
mod worker;

pub use base::{Base, BaseName, DiskProblem, Format, ImageName, OpenDisk, RootDisk};
pub use builder::{Builder, DEFAULT_MEMORY_MIB, OwnerLog, Restore};
pub use cancel::Cancel;
pub use command::{Command, CommandError, EnvChange, Overrides};
pub use error::{Error, ErrorKind, Source};
pub use guest_files::GuestFiles;
pub use jailed::{Notes, Unread};
pub use log::{LogReader, LogRecord, LogStream};
pub use network::{Network, UserNetwork};
pub use patch::Patch;
pub use plan::{PlanError, Root, Transport};
pub use process::{ExecOptions, Finished, Handle, Output, Process, Stdin, Stdio};
pub use sandbox::{Ended, Event, Sandbox};
pub use signal::signal_number;
pub use snapshot::{EphemeralSnapshot, SavedMachine, Snapshot};
pub use spec::Spec;
pub use state::{ProcessId, Record, SandboxRef, Sandboxes, Status};
pub use stop::{DEFAULT_GRACE, Stopped};
pub use timings::Timings;
pub use upper::{Change, ChangeKind, DEFAULT_DISK_SIZE, FrozenDisk, Upper};
#[doc(hidden)]
pub use worker::worker_kinds;
pub use worker::{run_if_worker, run_if_worker_with};

pub use micabox_image as image;
pub use micabox_image::store::{Error as StoreError, Image};
pub use micabox_image::{AppendLayerError, Digest, ImageEdit, Limits, Reference, Store};
pub use micabox_net::{Error as NetworkError, Protocol, Publish, PublishError, Rule, RuleError};
pub use micabox_overlay::view::PathKind;
pub use micabox_owner::{Lost, LostReason};
#[cfg(feature = "registry")]
pub use micabox_transfer as transfer;
#[cfg(feature = "registry")]
pub use micabox_transfer::{PullError, PullOptions, PullPolicy, pull, pull_blocking};
pub use micabox_vmm::{BackendChoice, Error as MachineError, Exit, control_groups};
pub use micabox_wire::{BootFailed, ExitStatus, Init, StartFailed, StartFailure, TtySize};
pub use oci_spec::image::Config as ImageConfig;
