//! What is known about a mounted tree.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use micabox_mount::Manner;
use micabox_state::{BaseName, ProcessId};
use serde::{Deserialize, Serialize};

const FILE: &str = "mount.json";

/// A tree that is mounted on this machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MountRecord {
    /// The directory that it is mounted on, without links.
    pub place: PathBuf,
    /// What was mounted, as its user named it.
    pub source: String,
    /// What that is.
    pub kind: TreeKind,
    /// What serves it.
    pub by: ServedBy,
    /// Whether it can be changed.
    pub is_writable: bool,
    /// The folder with the changes; none if they are in memory.
    #[serde(default)]
    pub upper: Option<PathBuf>,
    /// When it was mounted, seconds since 1970-01-01 UTC.
    pub created: i64,
    /// Its image or root disk; none for a file and a directory.
    #[serde(flatten)]
    pub base: Option<BaseName>,
    /// The process that answers for it, or keeps the changes where the kernel does; none if there are none.
    pub process: Option<ProcessId>,
    pub(super) helper: bool,
    /// This run of the machine.
    pub(super) boot: String,
    /// The major and minor number of its files; none before it is mounted.
    pub(super) device: Option<(u32, u32)>,
}

/// What a tree is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TreeKind {
    /// An image in the store.
    Image,
    /// A sandbox, as it was when it was mounted.
    Sandbox,
    /// A snapshot.
    Snapshot,
    /// An EROFS or ext4 filesystem in a file.
    File,
    /// A directory of this machine.
    Directory,
    /// A filesystem in memory.
    Memory,
}

/// What serves a mounted tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServedBy {
    /// The kernel's own EROFS, and overlay.
    Kernel,
    /// A process of this program, over FUSE; a jailed one, unless it is a filesystem in memory.
    Fuse,
}

impl MountRecord {
    /// Returns how it is unmounted.
    pub(super) fn manner(&self) -> Manner {
        if self.helper {
            Manner::Helper
        } else {
            Manner::Kernel
        }
    }

    pub(super) fn read(directory: &Path) -> Option<Self> {
        let text = fs::read(directory.join(FILE)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    pub(super) fn write(&self, directory: &Path) -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        file.write_all(&serde_json::to_vec_pretty(self)?)?;
        file.persist(directory.join(FILE))?;
        Ok(())
    }
}

/// Returns an identifier of this run of the machine: devices have other numbers in the next.
pub(super) fn boot() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    text.unwrap_or_default().trim().to_owned()
}
