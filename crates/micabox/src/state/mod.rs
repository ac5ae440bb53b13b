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

mod directory;
pub(crate) mod layout;
mod lock;
mod record;
mod record_file;
mod registration;
mod sandboxes;

pub(crate) use directory::{Directory, Found, HELD, ID_LENGTH};
pub(crate) use lock::Lock;
pub use micabox_owner::process::ProcessId;
pub use record::{Record, Status};
pub(crate) use registration::Registration;
pub use sandboxes::{SandboxRef, Sandboxes};

#[cfg(test)]
mod tests;
