//! Helpers that the tests of several crates share.
//!
//! The manifest names the features of dependencies that only tests need. Crates built together with
//! this one have the same dependencies as the tests, which are then compiled once for both.

#![forbid(unsafe_code)]

mod docker_registry;
pub mod e2fsprogs;
pub mod image;
pub mod mounts;
pub mod network;
mod process;
mod shell;
mod wait;

pub use docker_registry::DockerRegistry;
pub use process::{children, descendants, exists, run};
pub use shell::shell;
pub use wait::{PATIENCE, wait, wait_until, wait_until_none};
