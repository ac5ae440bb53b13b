//! Doors for `fuzz/` to what is read of others' files.

use std::io;

use crate::Snapshot;
use crate::snapshot::file::head_alone;

/// The head of an exported snapshot, and the runs of bytes that its disk has.
///
/// # Errors
/// What an import would say.
pub fn snapshot_head(mut file: &[u8]) -> io::Result<(Snapshot, Vec<(u64, u64)>)> {
    head_alone(&mut file)
}
