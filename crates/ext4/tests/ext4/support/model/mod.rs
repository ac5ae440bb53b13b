//! Random operations and their expected results: a filesystem as a tree in memory.

mod comparison;
mod engine;
mod operations;
mod tree;

use micabox_ext4::Errno;

pub use comparison::{assert_includes, describe, shape};
pub use engine::apply;
pub use operations::{Op, Path, Random};
pub use tree::Model;

/// The result of an operation.
pub type Outcome = Result<(), Errno>;

/// Formats bytes as runs.
pub fn summary(bytes: &[u8]) -> String {
    bytes
        .chunk_by(|a, b| a == b)
        .map(|run| format!("{}x{:x};", run.len(), run[0]))
        .collect()
}
