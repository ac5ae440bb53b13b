//! Starts sandboxes: [plans](Plan) of a machine's devices, templates and pools, the steps of a [`Start`], and the process
//! that owns the sandbox from then on.

#![forbid(unsafe_code)]

mod cancel;
mod creator;
mod guest_files;
mod mount;
mod network;
mod owner;
mod plan;
mod pool;
mod registrar;
mod share;
mod start;
mod template;

pub use cancel::Cancel;
pub use creator::{Creator, Ended, Event, Started};
pub use guest_files::GuestFiles;
pub use mount::anonymous_volume;
pub use owner::{KIND, log_with};
pub use plan::Plan;
pub use pool::{Pool, PoolRecord};
pub use registrar::{EXIT_KILLED, EXIT_NOT_STARTED};
pub use start::{Origin, OwnerLog, Start, default_cpus};
