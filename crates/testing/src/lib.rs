//! Helpers that the tests of several crates share.
//!
//! The manifest names the features of dependencies that only tests need. Crates built together with
//! this one have the same dependencies as the tests, which are then compiled once for both.

#![forbid(unsafe_code)]

mod docker_registry;
pub mod image;
mod shell;

pub use docker_registry::DockerRegistry;
pub use shell::shell;
