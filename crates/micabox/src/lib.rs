//! Sandboxes from OCI images: the Rust SDK.
//!
//! A sandbox is a virtual machine whose root is an image: its layers, read-only and
//! shared with every other sandbox, under a disposable upper layer in memory.
//!
//! ```no_run
//! use micabox::{Command, Sandbox};
//! use micabox_image::Store;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Owners and machines are processes of this program.
//! micabox::run_if_worker();
//! let store = Store::open(&Store::default_root()?)?;
//! let image = store.image("debian:12")?;
//! let sandbox = Sandbox::create(&store, &image)?;
//! let process = sandbox.exec(&Command::new(["uname", "-a"]))?;
//! let finished = process.finish()?;
//! println!("{}", String::from_utf8_lossy(&finished.stdout));
//! # Ok(())
//! # }
//! ```
//!
//! There is no daemon. A sandbox has an owner, a process of its own. The owner ends with the
//! process that made the sandbox, however that process ends, unless the sandbox is
//! [detached](Sandbox::detach). A sandbox with a disk ([`Upper::Disk`]) can be started again by any
//! process, with everything that was written to the disk. The state on disk ([`Sandboxes`]) is
//! enough for other processes to list sandboxes, to stop them, and to clean up after an owner that
//! was killed.

#![forbid(unsafe_code)]

mod base;
mod builder;
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
pub mod jailed;
mod log;
mod name;
mod network;
mod owner;
mod patch;
pub mod plan;
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

pub use base::{Base, DiskProblem, Format, RootDisk};
pub use builder::{Builder, DEFAULT_MEMORY_MIB};
pub use cancel::Cancel;
pub use command::{Command, CommandError, EnvChange, Overrides};
pub use error::Error;
pub use guest_files::GuestFiles;
pub use jailed::{Notes, Unread};
pub use log::{LogReader, LogRecord, LogStream};
pub use micabox_net::{Publish, Rule};
pub use micabox_overlay::view::PathKind;
pub use micabox_owner::{Lost, LostReason};
pub use micabox_vmm::BackendChoice;
pub use micabox_wire::{ExitStatus, StartFailed, StartFailure, TtySize};
pub use network::{Network, UserNetwork};
pub use patch::Patch;
pub use plan::{Root, Transport};
pub use process::{ExecOptions, Finished, Handle, Output, Process, Stdin, Stdio};
pub use sandbox::{Ended, Event, Sandbox};
pub use signal::signal_number;
pub use snapshot::{EphemeralSnapshot, SavedMachine, Snapshot};
pub use spec::Spec;
pub use state::{ImageName, ProcessId, Record, Sandboxes, Status};
pub use stop::{DEFAULT_GRACE, Stopped};
pub use timings::Timings;
pub use upper::{Change, ChangeKind, DEFAULT_DISK_SIZE, FrozenDisk, Upper};
pub use worker::{run_if_worker, worker_kinds};
