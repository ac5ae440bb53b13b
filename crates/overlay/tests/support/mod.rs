//! Shared code of the tests against the kernel's overlayfs.

pub mod case;
pub mod edits;
pub mod history;
pub mod tree;
