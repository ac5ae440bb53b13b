//! Filesystems for tests, what the kernel says of them, and a model of what they hold.

pub mod engine;
pub mod kernel;
pub mod model;
pub mod places;
