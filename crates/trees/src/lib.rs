//! Trees of images, sandboxes and folders on this machine: mounted for its users, or once for all of a user's containers.

#![forbid(unsafe_code)]

pub mod lowers;
mod mounted;

pub use mounted::{
    KIND, LAYER_KIND, MemoryRecord, MountOptions, MountRecord, MountedTree, Mounts, Serve,
    ServedBy, Tree, TreeKind, Unmounted,
};
