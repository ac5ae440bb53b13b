//! Names of files of a machine in a snapshot's directory.

use std::path::{Path, PathBuf};

/// Processors and devices.
pub(super) const MACHINE: &str = "machine";

/// The memory.
pub(super) const MEMORY: &str = "memory";

/// The memory, until all of it is here.
pub(super) const PART: &str = "memory.part";

/// The snapshot's manifest, until then.
pub(super) const MANIFEST: &str = "memory.manifest";

/// In which order an earlier start read a memory that was not all here.
pub(super) const ORDER: &str = "memory.order";

/// Returns where the map of a file is kept.
pub(super) fn map_of(file: &Path) -> PathBuf {
    file.with_extension("map")
}
