//! What a worker sends of an archive that is loaded into a filesystem in memory.

use micabox_mount::{Filesystem, Limits, fuzzing};

/// The filesystem's size.
const BYTES: u64 = 1 << 20;
const INODES: u64 = 64;

/// Loads what a worker sends. The filesystem has no more than it may.
pub fn sent(bytes: &[u8]) {
    let limits = Limits {
        bytes: BYTES,
        inodes: INODES,
    };
    let files = Filesystem::new(limits, 0o755, 0, 0);
    let _ = fuzzing::receive(&files, bytes);
    let usage = files.usage();
    assert!(usage.bytes <= BYTES && usage.inodes <= INODES, "{usage:?}");
}

/// A tree of each kind of file.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    vec![("tree", fuzzing::sample())]
}
