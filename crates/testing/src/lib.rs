//! Helpers that the tests of several crates share.
//!
//! The manifest names the features of dependencies that only tests need. Crates built together with
//! this one have the same dependencies as the tests, which are then compiled once for both.

#![forbid(unsafe_code)]

pub mod cosign;
mod docker_registry;
pub mod e2fsprogs;
mod gpg;
pub mod image;
mod kills;
pub mod mounts;
pub mod network;
mod process;
mod proxy;
mod shell;
mod wait;

pub use docker_registry::DockerRegistry;
pub use gpg::Gpg;
pub use kills::kills;
pub use process::{children, descendants, exists, run};
pub use proxy::{Answers, Proxy};
pub use shell::shell;
pub use wait::{PATIENCE, wait, wait_until, wait_until_none};
