//! What tests of several crates share.
//!
//! Its manifest names the features of dependencies that only tests need. Whatever is built together
//! with this crate has the same dependencies as the tests, which are then compiled once for both.

#![forbid(unsafe_code)]

mod docker_registry;
pub mod image;
mod shell;

pub use docker_registry::DockerRegistry;
pub use shell::shell;
