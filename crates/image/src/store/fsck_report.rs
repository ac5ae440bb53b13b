//! What a check of the store has found.

use std::path::PathBuf;

use serde::Serialize;

/// Result of [`Store::fsck`](crate::Store::fsck).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct FsckReport {
    /// Layers that were checked.
    pub layers: usize,
    /// Images that were checked.
    pub images: usize,
    /// Blobs that are kept as they came, and indexes, that were checked.
    pub blobs: usize,
    /// Disks and memories of snapshots and volumes that are packed, and were checked.
    pub files: usize,
    /// Chunks of layers which are here in part that have other bytes than their index says. They count as missing: they
    /// are fetched again when they are read.
    pub lost_chunks: usize,
    /// Bytes that were hashed.
    pub bytes: u64,
    /// Images of layers and merged metadata that the kernel checks as well (fs-verity).
    pub sealed: usize,
    /// The problems.
    pub findings: Vec<Finding>,
    /// Leftovers of killed imports: harmless, invisible, and removed by a later command. Removed
    /// here if a repair was requested.
    pub leftovers: usize,
    /// Files that don't belong to the store, relative to its root. They are left alone.
    pub strangers: Vec<PathBuf>,
}

impl FsckReport {
    /// Returns whether there are no problems, or all were repaired.
    pub fn is_clean(&self) -> bool {
        self.findings.iter().all(|finding| finding.repaired)
    }
}

/// A problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The file or directory, relative to the store's root.
    pub path: PathBuf,
    /// The problem.
    pub problem: String,
    /// How a repair fixes it.
    pub repair: Repair,
    /// Whether it was repaired.
    pub repaired: bool,
}

/// How a problem is repaired. No contents are ever modified in place: damaged files are removed, and
/// the next pull or load replaces them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Repair {
    /// Removes the layer; images that have it are removed, too.
    RemoveLayer,
    /// Removes the image, its names and its leases.
    RemoveImage,
    /// Removes the image of a layer whose packed form is sound.
    RemoveFile,
    /// Removes the packed form of a layer or a file that is whole.
    RemoveList,
    /// Nothing is removed: what is packed is a snapshot's or a volume's, which no pull brings again.
    Keep,
    /// Removes the blob that was kept as it came.
    RemoveBlob,
    /// Removes the trimmed view of an image.
    RemoveView,
    /// Removes the hash tree of an image's disk.
    RemoveTree,
    /// Switches fs-verity on for the file, which has the bytes that were published.
    Seal,
    /// Removes the name.
    RemoveName,
    /// Removes the sandbox's lease of an image.
    RemoveLease,
}

impl std::fmt::Display for Repair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::RemoveLayer => "remove the layer, so that the next pull or load brings it again",
            Self::RemoveImage => "remove the image and its names, so that it can be pulled again",
            Self::RemoveFile => "remove this form of the layer: the packed one is sound",
            Self::RemoveList => "remove the packed form; the layer or the file stays",
            Self::Keep => {
                "change nothing: remove the snapshot or the volume if you can do without it"
            }
            Self::RemoveBlob => {
                "remove the blob, which the next pull that keeps blobs brings again; the image stays"
            }
            Self::RemoveView => "remove the trimmed view, which the next start makes again",
            Self::RemoveTree => {
                "remove the hash tree, which the next start with --verity makes again"
            }
            Self::Seal => "switch fs-verity on for it again",
            Self::RemoveName => "remove the name",
            Self::RemoveLease => "remove the sandbox's hold on its image",
        })
    }
}
