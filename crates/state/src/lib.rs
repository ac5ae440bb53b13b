//! The state of sandboxes on disk, enough to find, stop and clean up those whose owner died.
//!
//! ```text
//! sandboxes/<id>/state.json   the record
//! sandboxes/<id>/state.spare  room for the next one, should the host's disk be full
//! sandboxes/<id>/lock         locked (flock) for as long as the owner or its machine lives
//! sandboxes/<id>/control      the owner's socket
//! sandboxes/<id>/upper.ext4   the disk for changes, if it has one
//! sandboxes/<id>/output.log   its output while detached
//! sandboxes/<id>/owner.log    what its owner logged, if it was to
//! sandboxes/<id>/lease.json   keeps the image in the store
//! locks/sandboxes             locked while a name is given or a directory is made or removed
//! ```

#![forbid(unsafe_code)]

mod base_name;
mod directory;
mod history;
mod layout;
mod lock;
mod log;
mod name;
mod record;
mod record_file;
mod registration;
mod sandboxes;
mod saved_machine;
mod stamp;
mod volumes;

pub use base_name::BaseName;
pub use directory::{Directory, Found, ID_LENGTH, upper_disk};
pub use history::{History, SandboxEvent, note_image};
pub use lock::Lock;
pub use log::{LogReader, LogRecord, LogStream, LogWriter};
pub use micabox_owner::process::ProcessId;
pub use name::is_valid as is_valid_name;
pub use record::{Record, Status};
pub use registration::Registration;
pub use sandboxes::Sandboxes;
pub use saved_machine::{SavedMachine, Written};
pub use stamp::Stamp;
pub use volumes::{VOLUME_DISK, forget_volume, old_volume, volume_disk};

#[cfg(test)]
mod tests;
