//! Filesystems for tests, what e2fsprogs and the kernel say of them, and a model of what they hold.

pub mod e2fsprogs;
pub mod engine;
pub mod kernel;
pub mod model;
pub mod places;
